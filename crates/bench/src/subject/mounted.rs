//! File systems with sshfs's command line: sshfs, sshoal, and programs that a user names.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::account;
use crate::executor::{Executor, find_program};
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Access, Session, Subject, Tuning};

use super::identity::Identity;
use super::mount::{Remounting, START_LIMIT};
use super::programs;
use super::{identity, local};
use crate::quoting::{joined, shell_quoted};

/// A program that mounts as `PROGRAM [options] host:dir mountpoint`, and with `-f` stays in the
/// foreground.
pub struct Mounted {
    name: String,
    program: PathBuf,
    options: Vec<String>,
    server: Arc<Server>,
    start_limit: Duration,
    /// What a user would type, where that is not the program's path.
    typed: Option<&'static str>,
    /// The package that has the program, for a peer.
    package: Option<&'static str>,
    /// It keeps a cache on the disk, which a session has for itself.
    cache: bool,
    identity: Identity,
}

/// The directory of a session's cache, in its own.
const CACHE: &str = "cache";

impl Mounted {
    /// `options` are words of the command line: `-o`, `max_conns=1`. A `program` without `/` is
    /// looked for in `PATH`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        program: PathBuf,
        options: Vec<String>,
        server: Arc<Server>,
    ) -> Mounted {
        Mounted {
            name: name.into(),
            program,
            options,
            server,
            start_limit: START_LIMIT,
            typed: None,
            package: None,
            cache: false,
            identity: Identity::default(),
        }
    }

    /// The same with a cache on the disk that begins empty with each session, and outlives its
    /// mounts.
    pub(super) fn with_own_cache(self) -> Mounted {
        Mounted { cache: true, ..self }
    }

    /// The same, which fails when it is not mounted after this time.
    #[must_use]
    pub fn with_start_limit(self, start_limit: Duration) -> Mounted {
        Mounted { start_limit, ..self }
    }

    /// The same, of which it is known which package has the program.
    pub(super) fn with_package(self, package: &'static str) -> Mounted {
        Mounted { package: Some(package), ..self }
    }

    /// The same, which reports name so.
    pub(super) fn typed(self, typed: &'static str) -> Mounted {
        Mounted { typed: Some(typed), ..self }
    }

    /// The words between the program and the mount point.
    fn words(&self, cipher: Option<&str>) -> Vec<OsString> {
        let root = self.server.storage().root();
        let source = joined(&[self.server.destination().as_ref(), ":".as_ref(), root.as_ref()]);
        // The server's options come first, since of ssh's options the first one counts: a
        // cipher that a workload wants wins over one that the subject has.
        let mut words: Vec<OsString> = vec!["-f".into()];
        words.extend(self.server.ssh_options(cipher));
        words.extend(self.options.iter().map(OsString::from));
        words.push(source);
        words
    }
}

impl Subject for Mounted {
    fn info(&self) -> SubjectInfo {
        let typed = self.typed.map_or_else(|| self.program.clone().into(), OsString::from);
        let mut words = vec![typed];
        words.extend(self.options.iter().map(OsString::from));
        words.extend(["HOST:DIR".into(), "MOUNTPOINT".into()]);
        self.identity.info(&self.name, "mount", shown_command(&words))
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        let Some(program) = find_program(&self.program) else {
            let name = self.program.to_string_lossy().escape_debug().to_string();
            return Err(LeftOut {
                name: self.name.clone(),
                why: format!("{name} is not installed"),
                remedy: self.package.map(|package| format!("install the package {package}")),
            });
        };
        device_of_fuse(&self.name)?;
        self.identity.version(|| programs::version(&program, "-V", executor));
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        self.server.storage()
    }

    fn start(
        &self,
        scratch: &Path,
        tuning: &Tuning,
        executor: &Executor,
    ) -> Result<Box<dyn Session>, Failure> {
        let program = find_program(&self.program)
            .ok_or_else(|| Failure::failed("the program is no longer there"))?;
        let program = std::path::absolute(program)?;
        let mut words = self.words(tuning.cipher.as_deref());
        let cache = self.cache.then(|| scratch.canonicalize()).transpose()?;
        let cache = cache.map(|scratch| scratch.join(CACHE));
        if let Some(dir) = &cache {
            words.extend(["-o".into(), joined(&["cache_dir=".as_ref(), dir.as_os_str()])]);
        }
        let make = move |point: &Path, _: u32| {
            let mut command = Command::new(&program);
            command.args(&words).arg(point).current_dir("/");
            command
        };
        let mounting = Remounting::start(scratch, self.start_limit, executor, make)?;
        if let Some(daemon) = mounting.mount().pid() {
            // While it is mounted, the ciphers in the command line of its ssh.
            let told = || identity::of_ssh_among(&account::family(daemon));
            self.identity.cipher(tuning, executor, || self.server.ssh(told().as_deref()));
        }
        Ok(Box::new(MountedSession { mounting, cache }))
    }
}

/// Nothing can be mounted without it.
pub(super) fn device_of_fuse(subject: &str) -> Result<(), LeftOut> {
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => Err(LeftOut {
            name: subject.to_owned(),
            why: format!("/dev/fuse cannot be opened: {error}"),
            remedy: Some("load the module fuse; in a container, give it the device".to_owned()),
        }),
    }
}

/// A command line as a user would type it.
pub(super) fn shown_command<Word: AsRef<OsStr>>(words: &[Word]) -> String {
    let quoted =
        words.iter().map(|word| shell_quoted(word.as_ref()).to_string_lossy().into_owned());
    quoted.collect::<Vec<_>>().join(" ")
}

struct MountedSession {
    mounting: Remounting,
    /// Where it keeps what it has read.
    cache: Option<PathBuf>,
}

impl Session for MountedSession {
    fn access(&self) -> Access<'_> {
        Access::Directory(self.mounting.mount().point())
    }

    fn client_pids(&self) -> Vec<u32> {
        self.mounting.mount().processes()
    }

    fn forget(&mut self, executor: &Executor) -> Result<bool, Failure> {
        self.mounting.mount_mut().stop()?;
        if let Some(cache) = &self.cache {
            // What it has is then read from the disk, as that of `local` is.
            local::drop_from_memory(cache, executor)?;
        }
        self.mounting.mount_again(executor)?;
        Ok(true)
    }

    fn stop(&mut self, _: &Executor) -> Result<(), Failure> {
        self.mounting.mount_mut().stop()
    }

    fn abandon(&mut self) {
        self.mounting.mount_mut().abandon();
    }
}
