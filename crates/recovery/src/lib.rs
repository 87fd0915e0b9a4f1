//! A [`base::Remote`] that recovers open files and outstanding calls after a lost connection, as an
//! NFS client recovers its state.
//!
//! The inner remote (`host`, or `replicas` for several gateways to one directory) fails with
//! `EHOSTDOWN` or `ETIMEDOUT` when its connection is lost, and its handles become `ESTALE`. This
//! crate makes the call wait until the connection is back, and then returns the result that the
//! call would have had without the loss.
//!
//! | interrupted call | recovery | module |
//! |---|---|---|
//! | idempotent (lstat, readlink, open of an existing file, setattr, statvfs) | repeated | `retry` |
//! | about an extended attribute | repeated; its effect is checked if it seems to be there already | `xattr` |
//! | through an open file | the file is reopened and compared, then the call is repeated | `file`, `reopen` |
//! | changes an open file | kept in a log, and replayed in order | `change_log`, `reopen` |
//! | creates, renames or removes a name | the names are checked before the call returns | `name_ops` |
//! | sets a lock on an open file | the locks are set again when the file is reopened; a holder that has lost one gets `EIO` | `file::locks` |
//! | through an open directory | listed again from the start, without the names already returned | `directory` |
//!
//! Invariants:
//! 1. A call without a loss uses no task and no channel, and copies no data: the future of the
//!    inner remote is polled in place.
//! 2. Inner handles do not leave this crate. An outer handle keeps its number until it is closed,
//!    even if its inner handle is replaced. Closing the outer handle closes the inner one.
//! 3. A change of a file is in the log of the file from its first poll until it is answered. After
//!    a loss the log is replayed in its order, and no newer change is sent before the replay has
//!    ended, so rule 2 of [`base::Remote`] holds across a loss. An append is never in flight
//!    together with another change that may move the end of the file (`change_queue`).
//! 4. A reopened file must have the expected kind, size, mtime, owner and permissions
//!    (`expected_attrs`), or must have grown with its old end unchanged (`file::tail`). If these are
//!    not known since the last write, it must have the bytes of that.
//!    Otherwise its handles return `ESTALE` from then on.
//! 5. A request that may have been executed, and is not idempotent, is never repeated without a
//!    check.
//! 6. Dropping a future returns at once. A write that was cancelled is not replayed.
//! 7. A lock is held for a few instructions, never across an await. Lock order: the table of open
//!    files, the state of a file, the name history.
//!
//! Assumption: after a cut connection, the server executes a request that it has received within a
//! second, or never. After a stall this does not hold (`docs/semantics.md`, "Not promised across a
//! loss"). This crate cannot verify it.
//!
//! Not here: connecting and its backoff (`host`), choosing between gateways (`replicas`), caching.
#![forbid(unsafe_code)]

mod change;
mod change_log;
mod change_queue;
mod connection;
mod directory;
mod expected_attrs;
mod file;
mod io;
mod name_history;
mod name_ops;
mod open;
mod remote;
mod reopen;
mod retry;
mod server_clock;
mod status;
mod unstable;
mod write_verifier;
mod xattr;

use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Lifetime, Mutex, Owner, Remote};

pub use status::{ConnectionState, Status};

use connection::ConnectionMonitor;
use directory::OpenDirectories;
use file::OpenFiles;
use name_history::NameHistory;
use name_ops::ActiveRenames;
use reopen::Listings;
use server_clock::ServerClock;
use write_verifier::WriteVerifier;

/// How long a call waits for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Without limit, until the caller cancels it (`hard`).
    #[default]
    Hard,
    /// Each call at most this time, counted from the moment at which it noticed that there is no
    /// connection; then `ETIMEDOUT` (`soft=SECONDS`). A call without a reply counts as lost only
    /// when the inner remote closes the connection.
    Soft(Duration),
    /// Not at all: the call returns the error. Open files are reopened nevertheless.
    None,
}

/// Configuration of a [`Recovering`].
#[derive(Clone, Debug)]
pub struct Config {
    /// How long calls wait.
    pub retry_policy: RetryPolicy,
    /// Name of the remote in log messages: the source as the user wrote it, safe for a terminal.
    pub name: String,
    /// An outage of at least this time is logged once, and its end once.
    pub notice_after: Duration,
}

impl Default for Config {
    /// Waits without limit, and logs an outage after 10 s.
    fn default() -> Config {
        Config {
            retry_policy: RetryPolicy::Hard,
            name: "the server".to_owned(),
            notice_after: Duration::from_secs(10),
        }
    }
}

/// A remote that recovers open files and outstanding calls after a lost connection. See the
/// [crate](self).
///
/// Needs a tokio runtime.
pub struct Recovering {
    core: Arc<Core>,
    /// Dropping it ends the background tasks of this crate.
    _owner: Owner,
}

impl Recovering {
    /// Wraps `inner`. Other clients may change its content: an open file that they changed returns
    /// `ESTALE` after a loss, unless it has only grown.
    pub fn new(inner: Arc<dyn Remote>, config: Config) -> Arc<Recovering> {
        let owner = Owner::default();
        let core = Arc::new_cyclic(|core| Core {
            files: OpenFiles::new(inner.clone(), core.clone()),
            directories: OpenDirectories::default(),
            inner,
            retry_policy: Mutex::new(config.retry_policy),
            config,
            connection: ConnectionMonitor::default(),
            renames: ActiveRenames::default(),
            listings: Listings::default(),
            history: NameHistory::default(),
            clock: ServerClock::default(),
            write_verifier: WriteVerifier::default(),
            lifetime: owner.lifetime(),
        });
        if core.inner.is_disconnected() {
            // The first call then fails or waits at once, instead of after two more losses.
            core.connection.set_disconnected(&core, Errno::EHOSTDOWN);
        }
        Arc::new(Recovering { core, _owner: owner })
    }

    /// Changes how long calls wait. Calls that wait already are not affected.
    pub fn set_retry_policy(&self, policy: RetryPolicy) {
        *self.core.retry_policy.lock() = policy;
    }

    /// The current state, for `sshoal status`.
    pub fn status(&self) -> Status {
        status::collect(&self.core)
    }
}

impl Core {
    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        *self.retry_policy.lock()
    }
}

/// State that all modules share.
pub(crate) struct Core {
    pub(crate) inner: Arc<dyn Remote>,
    pub(crate) config: Config,
    /// How long calls wait now. Read only by calls that have lost the connection.
    retry_policy: Mutex<RetryPolicy>,
    pub(crate) connection: ConnectionMonitor,
    pub(crate) files: OpenFiles,
    pub(crate) renames: ActiveRenames,
    pub(crate) listings: Listings,
    pub(crate) directories: OpenDirectories,
    pub(crate) history: NameHistory,
    pub(crate) clock: ServerClock,
    pub(crate) write_verifier: WriteVerifier,
    /// That of the [`Recovering`].
    pub(crate) lifetime: Lifetime,
}
