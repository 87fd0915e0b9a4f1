//! The conformance suite over a cached remote.

use std::sync::Arc;

use cache::{Cached, CachedConfig, Mode, SourceId};
use tempfile::TempDir;
use testkit::conformance::{Expectations, Fixture};
use testkit::{FaultyRemote, MemRemote};

use super::stage::{identifying_files, open_store};

/// No file is too young to be kept, or recently changed: a rule's writes are read from the store as
/// soon as possible.
fn eager(mode: Mode) -> CachedConfig {
    let zero = std::time::Duration::ZERO;
    CachedConfig { mode, recent_change: zero, ..CachedConfig::new(SourceId::new(b"conformance")) }
}

fn ground_with(memory: Arc<MemRemote>, config: CachedConfig) -> Fixture {
    let dir = TempDir::new().expect("a directory");
    let counted = memory.clone();
    let faulty = FaultyRemote::new(memory);
    let cached = Cached::new(Arc::new(faulty), open_store(dir.path()), config);
    Fixture::new(cached.expect("threads can be made"))
        .counting(move || counted.open_handles())
        .keeping(dir)
}

mod close_to_open {
    use super::*;

    async fn ground() -> Fixture {
        ground_with(Arc::new(MemRemote::new()), eager(Mode::CloseToOpen))
    }

    testkit::conformance!(ground);
}

/// Over a remote that identifies files.
mod identified {
    use super::*;

    async fn ground() -> Fixture {
        ground_with(identifying_files(), eager(Mode::CloseToOpen))
            .expecting(Expectations { inodes: true, ..Expectations::default() })
    }

    testkit::conformance!(ground);
}

/// Over a remote that answers later.
mod later {
    use super::*;

    async fn ground() -> Fixture {
        let memory = Arc::new(MemRemote::new());
        memory.set_pending(true);
        ground_with(memory, eager(Mode::CloseToOpen))
    }

    testkit::conformance!(ground);
}

/// Changes made here are visible here, also where no request is sent twice.
mod immutable {
    use super::*;

    async fn ground() -> Fixture {
        let memory = Arc::new(MemRemote::new());
        memory.set_pending(true);
        ground_with(memory, eager(Mode::Immutable))
    }

    testkit::conformance!(ground);
}

/// With a store full of former contents of the same names.
mod warm {
    use super::*;
    use crate::stage::{LONG_AGO, keep, list};

    async fn ground() -> Fixture {
        let dir = TempDir::new().expect("a directory");
        let old = Arc::new(MemRemote::new());
        let names = ["a", "b", "c", "file", "busy", "d/a", "d/b", "e/b", "dir/file", "made", "cut"];
        for name in names {
            old.put_file(name, format!("what {name} was"));
            old.set_mtime(name, LONG_AGO);
        }
        old.put_symlink("link", "nowhere");
        let config = eager(Mode::CloseToOpen);
        let cached = Cached::new(old, open_store(dir.path()), config.clone());
        let cached = cached.expect("threads can be made");
        for directory in ["", "d", "e", "dir"] {
            list(&cached, directory).await.expect("it can be listed");
        }
        for name in names {
            keep(&cached, name).await;
        }
        assert_eq!(cached.status().completed, names.len() as u64);
        drop(cached);
        let memory = Arc::new(MemRemote::new());
        memory.set_pending(true);
        let counted = memory.clone();
        let cached = Cached::new(memory, open_store(dir.path()), config);
        Fixture::new(cached.expect("threads can be made"))
            .counting(move || counted.open_handles())
            .keeping(dir)
    }

    testkit::conformance!(ground);
}
