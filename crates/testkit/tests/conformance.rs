//! The conformance suite over the remotes of this crate.

use std::sync::Arc;

use testkit::conformance::Ground;
use testkit::mem::Options;
use testkit::{FaultyRemote, MemRemote};

fn counted(remote: Arc<MemRemote>) -> Ground {
    let counted = remote.clone();
    Ground::new(remote).counting(move || counted.open_handles())
}

/// Answers at once.
mod memory {
    use super::*;

    async fn ground() -> Ground {
        counted(Arc::new(MemRemote::new()))
    }

    testkit::conformance!(ground);
}

/// Answers from elsewhere, in small pieces, and tells as little as it may.
mod pending {
    use super::*;

    pub(crate) fn remote() -> Arc<MemRemote> {
        let options = Options {
            read_piece_bytes: Some(5_000),
            copy_max_bytes: 100_000,
            listing_batch: 7,
            listing_attrs: false,
            ..Options::default()
        };
        let remote = Arc::new(MemRemote::with(options));
        remote.set_pending(true);
        remote
    }

    async fn ground() -> Ground {
        counted(remote())
    }

    testkit::conformance!(ground);
}

/// A faulty remote that was told nothing is what it wraps.
mod faithful {
    use super::*;

    async fn ground() -> Ground {
        let inner = pending::remote();
        let counted = inner.clone();
        let remote = Arc::new(FaultyRemote::new(inner));
        Ground::new(remote).counting(move || counted.open_handles())
    }

    testkit::conformance!(ground);
}
