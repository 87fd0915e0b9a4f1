//! The conformance suite over the remotes of this crate.

use std::sync::Arc;

use testkit::conformance::Fixture;
use testkit::mem::Options;
use testkit::{FaultyRemote, MemRemote};

fn counted(remote: Arc<MemRemote>) -> Fixture {
    let counted = remote.clone();
    Fixture::new(remote).counting(move || counted.open_handles())
}

/// Replies at once.
mod memory {
    use super::*;

    async fn fixture() -> Fixture {
        counted(Arc::new(MemRemote::new()))
    }

    testkit::conformance!(fixture);
}

/// Replies from another task, in small chunks, with as few attributes as allowed.
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

    async fn fixture() -> Fixture {
        counted(remote())
    }

    testkit::conformance!(fixture);
}

/// A faulty remote without instructions behaves as the inner one.
mod faithful {
    use super::*;

    async fn fixture() -> Fixture {
        let inner = pending::remote();
        let counted = inner.clone();
        let remote = Arc::new(FaultyRemote::new(inner));
        Fixture::new(remote).counting(move || counted.open_handles())
    }

    testkit::conformance!(fixture);
}
