//! What is measured, before and while it runs.
//!
//! Which subjects there are, and by which names: [`catalog`]. A file system that is mounted by a
//! command line like that of sshfs: [`mounted`]. A mounted directory: [`target`].

pub mod catalog;
mod copiers;
mod daemons;
mod identity;
mod local;
mod mount;
pub mod mounted;
mod nfs;
mod peer;
mod programs;
mod rclone;
mod target;

use std::path::Path;
use std::process::Command;

use crate::executor::Executor;
use crate::failure::Result;
use crate::results::{LeftOut, Requests, SubjectInfo, Wire};
use crate::step::ServerMeter;
use crate::storage::Storage;

pub use mount::START_LIMIT;
pub(crate) use programs::version;
pub use target::{Target, target};

/// A program, mount or transport that can be measured.
pub trait Subject: Send + Sync {
    /// Its name and how it is started. The version is known after [`Subject::check`], the cipher
    /// after the first start without a tuning.
    fn info(&self) -> SubjectInfo;

    /// Whether it can be measured here: installed, mounted, writable, large enough. Asked before
    /// anything runs; must not block on a dead mount (use the executor).
    fn check(&self, _executor: &Executor) -> Result<(), LeftOut> {
        Ok(())
    }

    /// Where its files are.
    fn storage(&self) -> &dyn Storage;

    /// Starts it, with nothing cached. `scratch` is an empty directory for its mount point, cache
    /// and logs.
    fn start(&self, scratch: &Path, tuning: &Tuning, executor: &Executor) -> Started;
}

/// A subject at work, or why it is not.
pub type Started = Result<Box<dyn Session>>;

/// Settings of the connection that a workload may vary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Only this one, in ssh's name; `None` for the subject's default.
    pub cipher: Option<String>,
}

/// A subject at work. Dropping it without [`Session::stop`] is as [`Session::abandon`].
pub trait Session {
    /// How it is used.
    fn access(&self) -> Access<'_>;

    /// The processes of the client side whose CPU counts, with all below them: daemon, ssh.
    /// None of their own have programs that are started for each step.
    fn client_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The processes of the server side that are not sshd's, as a daemon of its own.
    fn server_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Bytes so far on the link that it uses: the server's, unless it has one of its own, or none.
    fn wire(&self, server: &dyn ServerMeter) -> Option<Wire> {
        server.wire()
    }

    /// Requests so far since it was started or mounted anew, if it counts them.
    fn requests(&self, _executor: &Executor) -> Option<Requests> {
        None
    }

    /// Returns when all that was acknowledged has arrived at the storage, for subjects that write
    /// back later than `close` and `fsync` say. To be called before what was written is compared.
    fn settle(&mut self, _executor: &Executor) -> Result<()> {
        Ok(())
    }

    /// Forgets all that the client has cached (mounts anew, or drops caches), on the disk too; the
    /// server's page cache stays. `Ok(false)` where that cannot be done: the sample is then not
    /// called cold. After a failure the session can only be abandoned. Programs that are started
    /// for each step have nothing to forget.
    fn forget(&mut self, _executor: &Executor) -> Result<bool> {
        Ok(true)
    }

    /// As [`Session::forget`], but keeps what is cached on the disk.
    fn remount(&mut self, executor: &Executor) -> Result<bool> {
        self.forget(executor)
    }

    /// Ends it in order: unmounts, waits for its processes. Where nothing can be lost, by force.
    fn stop(&mut self, _executor: &Executor) -> Result<()> {
        self.abandon();
        Ok(())
    }

    /// Ends it by force: kills, detaches, aborts. Never blocks for long.
    fn abandon(&mut self) {}
}

/// The ways in which a session is used.
pub enum Access<'a> {
    /// A directory that shows the storage.
    Directory(&'a Path),
    /// A program that copies files and trees between this machine and the storage.
    Copier(&'a dyn Copier),
    /// `ssh HOST cat`: a program that copies, but files only.
    Stream(&'a dyn Copier),
    /// SFTP over ssh with no file system above it. The command that speaks it on stdin and stdout.
    Sftp(&'a dyn Fn() -> Command),
    /// NFS without a kernel client: reading and writing files, and nothing else.
    Nfs {
        /// Of 127.0.0.1.
        port: u16,
        /// The storage, from the server's root.
        export: &'a Path,
    },
}

/// The kind of an [`Access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// [`Access::Directory`]
    Directory,
    /// [`Access::Copier`]
    Copier,
    /// [`Access::Stream`]
    Stream,
    /// [`Access::Sftp`]
    Sftp,
    /// [`Access::Nfs`]
    Nfs,
}

impl Access<'_> {
    /// Its kind.
    pub fn kind(&self) -> AccessKind {
        match self {
            Access::Directory(_) => AccessKind::Directory,
            Access::Copier(_) => AccessKind::Copier,
            Access::Stream(_) => AccessKind::Stream,
            Access::Sftp(_) => AccessKind::Sftp,
            Access::Nfs { .. } => AccessKind::Nfs,
        }
    }
}

/// From or to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the storage to this machine.
    Out,
    /// The other way.
    In,
}

impl Direction {
    /// Source and target.
    pub(crate) fn sorted<T>(self, storage: T, local: T) -> [T; 2] {
        match self {
            Direction::Out => [storage, local],
            Direction::In => [local, storage],
        }
    }
}

/// A program that copies.
pub trait Copier {
    /// Copies a file or a tree between a path of the storage and an absolute local path; a stream
    /// copies files only. A local target does not exist; its parent does. A target in the storage
    /// does not exist, or is an older state of the same.
    fn copy(&self, direction: Direction, is_tree: bool, storage: &Path, local: &Path) -> Command;
}

#[cfg(test)]
mod tests;
