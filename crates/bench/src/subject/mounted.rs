//! File systems with sshfs's command line: sshfs, sshoal, and programs that a user names.

use std::ffi::{OsStr, OsString};
use std::fs;
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
    /// Where to get the program, for a peer.
    pub(super) remedy: Option<String>,
    pub(super) sources: Sources,
    /// It reaches the server by TCP with other settings ([`Server::tuned`]).
    pub(super) tunes_tcp: bool,
    pub(super) identity: Identity,
}

/// What a mount is made of. A second directory is empty, on the private server, and reached by its
/// second link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sources {
    /// The directory of the server.
    One,
    /// The same, merged with a second one, which each lookup has to consider.
    Merged,
    /// The same and a second one, each below a name of its own.
    Placed,
    /// The directory by both links, as by two gateways to it.
    Pool,
}

impl Sources {
    /// The operands for two hosts and their directories.
    fn operands(self, hosts: [&OsStr; 2], directories: [&OsStr; 2]) -> Vec<OsString> {
        let [host, host2] = hosts;
        let [first, second] = directories;
        let [colon, comma] = [":", ","].map(OsStr::new);
        let source = joined(&[host, colon, first]);
        let source2 = || joined(&[host2, colon, second]);
        let placed =
            |place: &str, source: OsString| joined(&[place.as_ref(), "=".as_ref(), &source]);
        match self {
            Sources::One => vec![source],
            Sources::Merged => vec![source, source2()],
            Sources::Placed => vec![placed(PLACE, source), placed(PLACE2, source2())],
            Sources::Pool => vec![joined(&[host, comma, host2, colon, first])],
        }
    }
}

/// The directory of a session's caches on the disk, in its own. They begin empty with each session,
/// and outlive its mounts.
const CACHE: &str = "cache";

/// The second directory of a session, in its own.
const SECOND: &str = "second";

/// The names below which the directories of [`Sources::Placed`] are.
const PLACE: &str = "data";
const PLACE2: &str = "empty";

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
            remedy: None,
            sources: Sources::One,
            tunes_tcp: false,
            identity: Identity::default(),
        }
    }

    /// The words between the program and the mount point.
    fn words(&self, cipher: Option<&str>, second: &Path) -> Result<Vec<OsString>> {
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
        let host = self.server.destination();
        let hosts = [host, self.server.second_destination().unwrap_or(host)].map(OsStr::new);
        let root = self.server.storage().root();
        words.extend(self.sources.operands(hosts, [root.as_ref(), second.as_ref()]));
        Ok(words)
    }
}

impl Subject for Mounted {
    fn info(&self) -> SubjectInfo {
        let typed = self.typed.map_or_else(|| self.program.clone().into(), OsString::from);
        let mut words = vec![typed];
        words.extend(self.options.iter().map(OsString::from));
        let hosts = ["HOST", "HOST2"].map(OsStr::new);
        words.extend(self.sources.operands(hosts, ["DIR", "DIR2"].map(OsStr::new)));
        words.push("MOUNTPOINT".into());
        self.identity.info(&self.name, "mount", shown_command(&words))
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        let Some(program) = find_program(&self.program) else {
            let why = format!("{} is not installed", shown(&self.program));
            return Err(LeftOut { remedy: self.remedy.clone(), ..LeftOut::new(&self.name, why) });
        };
        if self.sources != Sources::One {
            require_two_links(&self.name, &self.server)?;
        }
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
        let own = scratch.canonicalize()?;
        let second = own.join(SECOND);
        if self.sources != Sources::One {
            fs::create_dir(&second)?;
        }
        let words = self.words(tuning.cipher.as_deref(), &second)?;
        // The user's own would have what an earlier run has read.
        let caches = own.join(CACHE);
        let cache = Cache::Kept(caches.clone());
        let program_of_mount = program.clone();
        let make = move |point: &Path, _: u32| {
            let mut command = Command::new(&program);
            command.args(&words).arg(point).current_dir("/").env("XDG_CACHE_HOME", &caches);
            command
        };
        let mut session = MountSession::start(scratch, self.start_limit, executor, cache, make)?;
        if self.sources == Sources::Placed {
            session.show(PLACE);
        }
        if self.typed.is_some() {
            session.counted_by = Some(program_of_mount);
        }
        // While it is mounted, the ciphers in the command line of its ssh.
        let told = || identity::of_ssh_among(&session.client_pids());
        self.identity.cipher(tuning, executor, || self.server.ssh(told().as_deref()));
        Ok(Box::new(session))
    }
}

/// Of a host there is only the one way that the user has named.
pub(super) fn require_two_links(subject: &str, server: &Server) -> Result<(), LeftOut> {
    let why = "only a private server has two links";
    match server.second_destination() {
        Some(_) => Ok(()),
        None => Err(LeftOut::new(subject, why).with_remedy("leave --host out")),
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
