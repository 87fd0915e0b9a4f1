//! A [`base::Remote`] that outlives the connections of the one below it.
//!
//! What is below (`host`, or several gateways to one directory) fails with `EHOSTDOWN` or
//! `ETIMEDOUT` when its connection is lost, and its handles become `ESTALE`. Here such a call waits
//! until there is a connection again and then has the outcome that it would have had.
//!
//! | a call that was cut off | what becomes of it | module |
//! |---|---|---|
//! | may be repeated (lstat, readlink, open of what is there, setattr, statvfs) | is repeated | `call` |
//! | on an open file | the file is opened anew, compared, and the call repeated | `file`, `recover` |
//! | changes an open file | is kept, and sent again in its order | `log`, `recover` |
//! | makes, moves or removes a name | the names are looked at, then it is answered | `names` |
//! | on an open directory | the listing begins anew, without the names already given | `listing` |
//!
//! Invariants:
//! 1. On the way of a call that is not cut off there is no task, no channel and no copy of data: the
//!    future below is polled in place.
//! 2. Handles below never leave this crate: a handle here is the same for as long as it is open,
//!    whatever becomes of those below. When it ends here, its handle below is closed.
//! 3. What changes a file is in that file's log from its first poll until it is answered; in the
//!    order of the log it is sent again, and nothing newer goes out before that (rule 2 of
//!    [`base::Remote`] holds across a loss).
//!    Appends, and what else may move the end of the file, are never under way at once (`turn`).
//! 4. A file that is opened again is the one that was open, as far as kind, size, times, owner and
//!    permissions can tell, or it has grown, and its old end is still there (`file::tail`); if not,
//!    its handles answer `ESTALE` from then on.
//! 5. What may have happened is never blindly done again.
//! 6. Whoever waits is freed at once when its future is dropped; a write that was given up so is not
//!    sent again.
//! 7. Locks are held for a few instructions, never across an await. Order: the table of files, a
//!    file's state, what is known of names.
//!
//! What cannot be known here: whether a server that was given up still carries out what it had
//! received. It does so at once or never, as far as a connection was cut and not merely stopped.
//!
//! Not here: connecting and its pace (`host`), choosing between gateways (`replicas`), caching.
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

use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Remote};
use tokio::sync::watch;

pub use status::{ConnectionState, Status};

use connection::ConnectionMonitor;
use directory::OpenDirectories;
use file::OpenFiles;
use name_history::NameHistory;
use name_ops::ActiveRenames;
use server_clock::ServerClock;
use write_verifier::WriteVerifier;

/// How long a call waits for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// For ever, or until its caller gives up (`hard`).
    Hard,
    /// So long after the connection was lost; then `ETIMEDOUT` (`soft=SECONDS`). A call that the
    /// server does not answer counts as lost when the remote below gives the connection up.
    Soft(Duration),
    /// Not at all: the error is the caller's. Open files are opened again all the same.
    None,
}

/// How a [`Recovering`] is to behave.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long calls wait.
    pub retry_policy: RetryPolicy,
    /// What the log calls it: the source as the user wrote it, fit for a terminal.
    pub name: String,
    /// A connection that is missing for so long is told in the log, once, and once that it is back.
    pub notice_after: Duration,
}

impl Default for Config {
    /// Waits for ever, and says so after 10 s.
    fn default() -> Config {
        Config {
            retry_policy: RetryPolicy::Hard,
            name: "the server".to_owned(),
            notice_after: Duration::from_secs(10),
        }
    }
}

/// A remote that outlives its connections. See the [crate](self).
///
/// To be used within a tokio runtime.
pub struct Recovering {
    core: Arc<Core>,
    /// Its end tells the tasks of this crate that nobody wants them any more.
    _shutdown: watch::Sender<()>,
}

impl Recovering {
    /// Around `inner`, which nobody else should change the content of.
    #[must_use]
    pub fn new(inner: Arc<dyn Remote>, config: Config) -> Arc<Recovering> {
        let (shutdown_sender, shutdown) = watch::channel(());
        let core = Arc::new_cyclic(|core| Core {
            files: OpenFiles::new(inner.clone(), core.clone()),
            directories: OpenDirectories::new(inner.clone()),
            inner,
            config,
            connection: ConnectionMonitor::default(),
            renames: ActiveRenames::default(),
            history: NameHistory::default(),
            clock: ServerClock::default(),
            write_verifier: WriteVerifier::default(),
            shutdown,
        });
        if core.inner.is_disconnected() {
            // Whoever can do without it does not wait for two more failures.
            core.connection.set_disconnected(&core, Errno::EHOSTDOWN);
        }
        Arc::new(Recovering { core, _shutdown: shutdown_sender })
    }

    /// How it stands now, for those who want to see it.
    #[must_use]
    pub fn status(&self) -> Status {
        status::collect(&self.core)
    }
}

/// What all parts share.
pub(crate) struct Core {
    pub(crate) inner: Arc<dyn Remote>,
    pub(crate) config: Config,
    pub(crate) connection: ConnectionMonitor,
    pub(crate) files: OpenFiles,
    pub(crate) renames: ActiveRenames,
    pub(crate) directories: OpenDirectories,
    pub(crate) history: NameHistory,
    pub(crate) clock: ServerClock,
    pub(crate) write_verifier: WriteVerifier,
    /// Closed when the [`Recovering`] is dropped.
    pub(crate) shutdown: watch::Receiver<()>,
}
