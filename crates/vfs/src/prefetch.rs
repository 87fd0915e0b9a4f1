//! Metadata and small files that are fetched before a program requests them.

pub(crate) mod files;
pub(crate) mod history;
mod listings;
mod revalidation;
mod throttle;
mod traversal;

use std::time::Duration;

pub(crate) use revalidation::Revisit;

/// How long a caller waits for a prefetch in flight before it sends the request itself: longer than
/// a round trip on most links, and short enough not to look like a hang.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Prefetch {
    listings: listings::ListingPrefetch,
    pub(crate) files: files::FilePrefetch,
    revalidation: revalidation::Revalidation,
}
