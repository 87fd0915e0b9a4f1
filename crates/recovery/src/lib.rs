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

mod call;
mod change;
mod clock;
mod config;
mod expect;
mod file;
mod io;
mod known;
mod link;
mod listing;
mod log;
mod names;
mod open;
mod recover;
mod remote;
mod run;
mod status;
mod turn;
mod unsynced;

use std::sync::Arc;

use base::{Errno, Remote};
use tokio::sync::watch;

pub use config::{Config, Patience};
pub use status::{Standing, Status};

use clock::Clock;
use file::Files;
use known::Known;
use link::Link;
use listing::Listings;
use names::Renames;
use run::Run;

/// A remote that outlives its connections. See the [crate](self).
///
/// To be used within a tokio runtime.
pub struct Steady {
    core: Arc<Core>,
    /// Its end tells the tasks of this crate that nobody wants them any more.
    _wants: watch::Sender<()>,
}

impl Steady {
    /// Around `inner`, which nobody else should change the content of.
    #[must_use]
    pub fn new(inner: Arc<dyn Remote>, config: Config) -> Arc<Steady> {
        let (wants, wanted) = watch::channel(());
        let core = Arc::new_cyclic(|core| Core {
            files: Files::new(inner.clone(), core.clone()),
            listings: Listings::new(inner.clone()),
            inner,
            config,
            link: Link::default(),
            renames: Renames::default(),
            known: Known::default(),
            clock: Clock::default(),
            run: Run::default(),
            wanted,
        });
        if core.inner.is_away() {
            // Whoever can do without it does not wait for two more failures.
            core.link.lost(&core, Errno::EHOSTDOWN);
        }
        Arc::new(Steady { core, _wants: wants })
    }

    /// How it stands now, for those who want to see it.
    #[must_use]
    pub fn status(&self) -> Status {
        status::of(&self.core)
    }
}

/// What all parts share.
pub(crate) struct Core {
    pub(crate) inner: Arc<dyn Remote>,
    pub(crate) config: Config,
    pub(crate) link: Link,
    pub(crate) files: Files,
    pub(crate) renames: Renames,
    pub(crate) listings: Listings,
    pub(crate) known: Known,
    pub(crate) clock: Clock,
    pub(crate) run: Run,
    /// Closed when the [`Steady`] is dropped.
    pub(crate) wanted: watch::Receiver<()>,
}
