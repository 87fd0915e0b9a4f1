//! File systems with sshfs's command line: sshfs, sshoal, and programs that a user names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::executor::{Executor, find_program};
use crate::failure::{Failure, Result};
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Session, Started, Subject, Tuning};

use super::identity::Identity;
use super::mount::{Cache, MountSession};
use super::{identity, programs};
use crate::quoting::{joined, shown, shown_command};

/// A program that mounts as `PROGRAM [options] host:dir mountpoint`, and with `-f` stays in the
/// foreground.
pub struct Mounted {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) options: Vec<String>,
    pub(super) server: Arc<Server>,
    pub(super) start_limit: Duration,
    /// What a user would type, where that is not the program's path.
    pub(super) typed: Option<&'static str>,
    /// The package that has the program, for a peer.
    pub(super) package: Option<&'static str>,
    /// It keeps a cache on the disk, which begins empty with each session, and outlives its mounts.
    pub(super) has_cache: bool,
    /// It reaches the server by TCP with other settings ([`Server::tuned`]).
    pub(super) tunes_tcp: bool,
    pub(super) identity: Identity,
}

/// The directory of a session's cache, in its own.
const CACHE: &str = "cache";

impl Mounted {
    /// `options` are words of the command line: `-o`, `max_conns=1`. A `program` without `/` is
    /// looked for in `PATH`. The start fails when it is not mounted after `start_limit`.
    pub fn new(
        name: impl Into<String>,
        program: PathBuf,
        options: Vec<String>,
        server: Arc<Server>,
        start_limit: Duration,
    ) -> Mounted {
        Mounted {
            name: name.into(),
            program,
            options,
            server,
            start_limit,
            typed: None,
            package: None,
            has_cache: false,
            tunes_tcp: false,
            identity: Identity::default(),
        }
    }

    /// The words between the program and the mount point.
    fn words(&self, cipher: Option<&str>) -> Result<Vec<OsString>> {
        let root = self.server.storage().root();
        let source = joined(&[self.server.destination().as_ref(), ":".as_ref(), root.as_ref()]);
        // The server's options come first, since of ssh's options the first one counts: a
        // cipher that a workload wants wins over one that the subject has.
        let mut words: Vec<OsString> = vec!["-f".into()];
        if self.tunes_tcp {
            let tuned = self.server.tuned(&self.name);
            let tuned = tuned.map_err(|left_out| Failure::failed(left_out.why))?;
            let ssh = joined(&["ssh_command=".as_ref(), tuned.ssh_command()]);
            words.extend(["-o".into(), ssh]);
            words.extend(tuned.ssh_options(cipher));
        } else {
            words.extend(self.server.ssh_options(cipher));
        }
        words.extend(self.options.iter().map(OsString::from));
        words.push(source);
        Ok(words)
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
            let remedy = self.package.map(|package| format!("install the package {package}"));
            let why = format!("{} is not installed", shown(&self.program));
            return Err(LeftOut { remedy, ..LeftOut::new(&self.name, why) });
        };
        device_of_fuse(&self.name)?;
        if self.tunes_tcp {
            self.server.tuned(&self.name)?;
        }
        self.identity.version(|| programs::version(&program, "-V", executor));
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        self.server.storage()
    }

    fn start(&self, scratch: &Path, tuning: &Tuning, executor: &Executor) -> Started {
        let program = find_program(&self.program)
            .ok_or_else(|| Failure::failed("the program is no longer there"))?;
        let program = std::path::absolute(program)?;
        let mut words = self.words(tuning.cipher.as_deref())?;
        let mut cache = Cache::Unknown;
        if self.has_cache {
            let dir = scratch.canonicalize()?.join(CACHE);
            words.extend(["-o".into(), joined(&["cache_dir=".as_ref(), dir.as_os_str()])]);
            cache = Cache::Kept(dir);
        }
        let make = move |point: &Path, _: u32| {
            let mut command = Command::new(&program);
            command.args(&words).arg(point).current_dir("/");
            command
        };
        let session = MountSession::start(scratch, self.start_limit, executor, cache, make)?;
        // While it is mounted, the ciphers in the command line of its ssh.
        let told = || identity::of_ssh_among(&session.client_pids());
        self.identity.cipher(tuning, executor, || self.server.ssh(told().as_deref()));
        Ok(Box::new(session))
    }
}

/// Nothing can be mounted without it.
pub(super) fn device_of_fuse(subject: &str) -> Result<(), LeftOut> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map(drop).map_err(|error| {
        LeftOut::new(subject, format!("/dev/fuse cannot be opened: {error}"))
            .with_remedy("load the module fuse; in a container, give it the device")
    })
}
