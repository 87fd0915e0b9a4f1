//! Prefetching: listings, small files and validations that are requested before a program needs
//! them.
//!
//! What is predicted, and from what:
//!
//! | module | prefetches | predicted from |
//! | --- | --- | --- |
//! | [`listings`] | listings of directories | lookups of single names in one directory; a walk, in which directories are listed depth first |
//! | [`files`] | whole small files | opens in the order of a listing, of names or of inode numbers; [`traversal`] computes the files that come next |
//! | [`revalidation`] | confirmations that files are unchanged | the order of earlier opens ([`history`]) |
//!
//! What bounds it: each predictor has a window of requests in flight. That of listings grows when
//! they are used in time, that of files while answers are fast ([`throttle`]), that of
//! revalidations when an open has to wait; all shrink when results expire unused. Memory is bounded
//! by the directory cache, by a limit of [`files`] for contents, and by the length of the history.
//!
//! Nothing here is needed for correctness. A result is subject to the same rules as the answer to
//! any other request: it is dropped if a local change overlapped with the request, and is valid for
//! no longer. A caller waits for a prefetch in flight for at most [`MAX_WAIT`], then it sends the
//! request itself; errors of prefetches are ignored. All prefetches are background tasks that end
//! with the mount. `strict` turns them off, and so does [`Prefetch::None`].
//!
//! The boundary: all of it is in [`Prefetcher`]. The rest of the crate calls its methods with what
//! happens (an open, a lookup, a listing), and takes results from it where it would otherwise send
//! a request.

pub(crate) mod files;
pub(crate) mod history;
mod listings;
mod revalidation;
mod throttle;
mod traversal;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use revalidation::Revisit;

use crate::shared::Shared;

/// How long a caller waits for a prefetch in flight before it sends the request itself: longer than
/// a round trip on most links, and short enough not to look like a hang.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Prefetcher {
    listings: listings::ListingPrefetch,
    pub(crate) files: files::FilePrefetch,
    revalidation: revalidation::Revalidation,
}

/// Begins a background task that uses the mount.
pub(crate) fn start<F>(shared: &Arc<Shared>, job: impl FnOnce(Arc<Shared>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    shared.background.start(job(shared.clone()));
}
