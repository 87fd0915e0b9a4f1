use super::*;

use std::path::PathBuf;
use std::time::Duration;

use crate::place::{Directory, Place};
use crate::results::{LeftOut, SubjectInfo};
use crate::size::Scale;
use crate::subject::{Copier, Tuning};

/// A subject that is a directory, or a program that copies, with a shell for its daemon.
struct Fake {
    place: Directory,
    directory: Option<PathBuf>,
    pids: Vec<u32>,
}

impl Copier for Fake {
    fn pull(&self, _: &Path, _: &Path) -> Option<Command> {
        None
    }

    fn push(&self, _: &Path, _: &Path) -> Option<Command> {
        None
    }
}

impl Subject for Fake {
    fn info(&self) -> SubjectInfo {
        unreachable!("a step does not ask for it")
    }

    fn check(&self, _: &Executor) -> Result<(), LeftOut> {
        Ok(())
    }

    fn place(&self) -> &dyn Place {
        &self.place
    }

    fn start(&self, _: &Path, _: &Tuning, _: &Executor) -> Result<Box<dyn Session>, Failure> {
        Err(Failure::failed("it is started by the test"))
    }
}

impl Session for Fake {
    fn access(&self) -> Access<'_> {
        match &self.directory {
            Some(directory) => Access::Directory(directory),
            None => Access::Copier(self),
        }
    }

    fn client_pids(&self) -> Vec<u32> {
        self.pids.clone()
    }

    fn forget(&mut self, _: &Executor) -> Result<bool, Failure> {
        Ok(false)
    }

    fn stop(&mut self, _: &Executor) -> Result<(), Failure> {
        Ok(())
    }

    fn abandon(&mut self) {}
}

fn fake(directory: Option<&Path>, pids: Vec<u32>) -> Fake {
    let place = Directory::new("fake", "/nonexistent");
    Fake { place, directory: directory.map(Path::to_owned), pids }
}

/// Runs a busy shell as the measured program of a session.
fn measure(mut session: Fake, server_usage: &dyn Fn() -> Option<Usage>) -> Measured {
    let dir = tempfile::tempdir().unwrap();
    let mut context = StepContext {
        subject: &fake(None, Vec::new()),
        session: &mut session,
        size: &Size::of(Scale::Quick),
        seed: 1,
        scratch: dir.path(),
        corpus: dir.path(),
        executor: &Executor::new(),
        deadline: Instant::now() + Duration::from_secs(30),
        server_usage,
    };
    let mut command = Command::new("sh");
    command.args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done"]);
    let (output, measured) = context.timed(command).unwrap();
    assert_eq!(output.stdout, b"done\n");
    measured
}

#[test]
fn a_file_systems_client_is_its_daemon() {
    let executor = Executor::new();
    let mut idle = Command::new("sh");
    idle.args(["-c", "echo up; exec sleep 1000"]);
    let daemon = executor.spawn(idle).unwrap();
    daemon.wait_for("up", Duration::from_secs(30)).unwrap();
    let measured = measure(fake(Some(Path::new("/")), vec![daemon.pid()]), &|| None);
    let application = measured.application.unwrap();
    assert!(application.user_s > 0.0, "{application:?}");
    assert!(measured.client.user_s + measured.client.system_s < 0.005, "{:?}", measured.client);
    assert!(measured.client.peak_memory_bytes > 100_000, "{:?}", measured.client);
    assert!(measured.seconds > 0.0);
    assert_eq!(measured.server, None);
}

#[test]
fn a_copying_programs_client_is_itself() {
    let calls = std::cell::Cell::new(0);
    let server = || {
        calls.set(calls.get() + 1);
        Some(Usage { user_s: f64::from(calls.get()) * 2.0, ..Usage::default() })
    };
    let measured = measure(fake(None, Vec::new()), &server);
    assert!(measured.client.user_s > 0.0, "{:?}", measured.client);
    assert_eq!(measured.application, None);
    assert_eq!(measured.server.unwrap().user_s, 2.0);
}

#[test]
fn a_step_ends_with_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let mut context = StepContext {
        subject: &fake(None, Vec::new()),
        session: &mut fake(None, Vec::new()),
        size: &Size::of(Scale::Quick),
        seed: 1,
        scratch: dir.path(),
        corpus: dir.path(),
        executor: &Executor::new(),
        deadline: Instant::now() + Duration::from_millis(100),
        server_usage: &|| None,
    };
    let sleep = || {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    };
    assert!(matches!(context.timed(sleep()).unwrap_err(), Failure::TimedOut { .. }));
    assert!(matches!(context.aside(sleep()).unwrap_err(), Failure::TimedOut { .. }));
}
