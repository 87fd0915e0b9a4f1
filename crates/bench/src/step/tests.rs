use super::*;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::results::SubjectInfo;
use crate::size::Scale;
use crate::storage::{Directory, Storage};
use crate::subject::{Copier, Direction, Tuning};

/// A subject that is a directory, or a program that copies, with a shell for its daemon.
struct Fake {
    storage: Directory,
    directory: Option<PathBuf>,
    pids: Vec<u32>,
    /// CPU that it takes to settle, by the thread that asks for it.
    settling: Duration,
}

impl Copier for Fake {
    fn copy(&self, _: Direction, _: bool, _: &Path, _: &Path) -> Command {
        unreachable!("a step runs the command of the test")
    }
}

impl Subject for Fake {
    fn info(&self) -> SubjectInfo {
        unreachable!("a step does not ask for it")
    }

    fn storage(&self) -> &dyn Storage {
        &self.storage
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

    fn settle(&mut self, _: &Executor) -> Result<(), Failure> {
        let end = cpu_of_thread() + self.settling;
        while cpu_of_thread() < end {}
        Ok(())
    }
}

fn cpu_of_thread() -> Duration {
    nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().into()
}

fn fake(directory: Option<&Path>, pids: Vec<u32>) -> Fake {
    let storage = Directory::new("fake", "/nonexistent");
    Fake { storage, directory: directory.map(Path::to_owned), pids, settling: Duration::ZERO }
}

fn context<'a>(
    subject: &'a Fake,
    session: &'a mut Fake,
    (size, executor, dir): (&'a Size, &'a Executor, &'a Path),
    limit: Duration,
    server: &'a dyn ServerMeter,
) -> StepContext<'a> {
    StepContext {
        subject,
        session,
        size,
        seed: 1,
        scratch: dir,
        corpus: dir,
        executor,
        deadline: Instant::now() + limit,
        server,
        trace_cpu: false,
    }
}

/// A server that uses two seconds of CPU and moves ten bytes between two looks at it.
#[derive(Default)]
struct Busy(AtomicU32);

impl ServerMeter for Busy {
    fn usage(&self) -> Option<Usage> {
        let looks = self.0.fetch_add(1, Relaxed) + 1;
        Some(Usage { user_s: f64::from(looks) * 2.0, ..Usage::default() })
    }

    fn wire(&self) -> Option<Wire> {
        let bytes = u64::from(self.0.load(Relaxed)) * 10;
        Some(Wire { to_server_bytes: bytes, from_server_bytes: bytes + 5 })
    }
}

const LONG: Duration = Duration::from_secs(30);

/// Runs a busy shell as the measured program of a session.
fn measure(mut session: Fake, server: &dyn ServerMeter) -> Measured {
    let (dir, subject) = (tempfile::tempdir().unwrap(), fake(None, Vec::new()));
    let (size, executor) = (Size::of(Scale::Quick), Executor::new());
    let with = (&size, &executor, dir.path());
    let mut context = context(&subject, &mut session, with, LONG, server);
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
    while daemon.words() != "up" {
        assert!(daemon.is_running(), "{}", daemon.words());
        std::thread::yield_now();
    }
    let measured = measure(fake(Some(Path::new("/")), vec![daemon.pid()]), &());
    let application = measured.application.unwrap();
    assert!(application.user_s > 0.0, "{application:?}");
    assert!(measured.client.user_s + measured.client.system_s < 0.005, "{:?}", measured.client);
    assert!(measured.client.peak_memory_bytes > 100_000, "{:?}", measured.client);
    assert!(measured.seconds > 0.0);
    assert_eq!(measured.server, None);
}

#[test]
fn a_copying_programs_client_is_itself() {
    let server = Busy::default();
    let measured = measure(fake(None, Vec::new()), &server);
    assert!(measured.client.user_s > 0.0, "{:?}", measured.client);
    assert_eq!(measured.application, None);
    assert_eq!(measured.server.unwrap().user_s, 2.0);
    assert_eq!(measured.wire, Some(Wire { to_server_bytes: 10, from_server_bytes: 10 }));
}

#[test]
fn a_step_ends_with_its_deadline() {
    let (dir, subject) = (tempfile::tempdir().unwrap(), fake(None, Vec::new()));
    let (size, executor, mut session) =
        (Size::of(Scale::Quick), Executor::new(), fake(None, Vec::new()));
    let with = (&size, &executor, dir.path());
    let mut context = context(&subject, &mut session, with, Duration::from_millis(100), &());
    let sleep = || {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    };
    assert!(matches!(context.timed(sleep()).unwrap_err(), Failure::TimedOut { .. }));
    assert!(matches!(context.aside(sleep()).unwrap_err(), Failure::TimedOut { .. }));
}

#[test]
fn what_settles_later_counts_with_its_time_and_cpu() {
    const SETTLING: Duration = Duration::from_millis(50);
    let (dir, subject) = (tempfile::tempdir().unwrap(), fake(None, Vec::new()));
    let (size, executor) = (Size::of(Scale::Quick), Executor::new());
    // This process stands for a daemon that sends what it has acknowledged.
    let mut session = fake(Some(dir.path()), vec![std::process::id()]);
    session.settling = SETTLING;
    let server = Busy::default();
    let with = (&size, &executor, dir.path());
    let mut context = context(&subject, &mut session, with, LONG, &server);
    let one_second = Usage { user_s: 1.0, peak_memory_bytes: 1, ..Usage::default() };
    let mut measured = Measured {
        seconds: 1.0,
        client: one_second,
        server: Some(one_second),
        wire: Some(Wire { to_server_bytes: 1, from_server_bytes: 2 }),
        ..Measured::default()
    };
    context.settle(&mut measured).unwrap();
    let settling_s = SETTLING.as_secs_f64();
    assert!(measured.seconds >= 1.0 + settling_s, "{measured:?}");
    let client = measured.client;
    assert!(client.user_s + client.system_s >= 1.0 + 0.9 * settling_s, "{client:?}");
    assert!(client.peak_memory_bytes > 1, "the greater one, not the sum: {client:?}");
    assert_eq!(measured.server.unwrap().user_s, 3.0);
    assert_eq!(measured.wire, Some(Wire { to_server_bytes: 11, from_server_bytes: 12 }));
    // Where the server is another machine, nothing is known of it then either.
    measured.server = None;
    context.settle(&mut measured).unwrap();
    assert_eq!(measured.server, None);
}
