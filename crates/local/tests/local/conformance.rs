//! The rules of every remote, on a disk and in memory.

use std::path::Path;

use testkit::conformance::{Expectations, Fixture};

use super::{Real, descriptors_below};

async fn ground(parent: &Path) -> Fixture {
    let real = Real::below(parent);
    let dir = real.dir.path().to_owned();
    let expectations = Expectations {
        nanoseconds: true,
        chown: rustix::process::getuid().is_root(),
        ..Expectations::default()
    };
    Fixture::new(real.local.clone())
        .expecting(expectations)
        .counting(move || descriptors_below(&dir))
        .keeping(real)
}

mod on_disk {
    async fn ground() -> testkit::conformance::Fixture {
        super::ground(&std::env::temp_dir()).await
    }

    testkit::conformance!(ground);
}

/// Another file system: other statistics, another order of listings, and another cache.
mod in_memory {
    async fn ground() -> testkit::conformance::Fixture {
        super::ground(&super::super::parents().pop().unwrap()).await
    }

    testkit::conformance!(ground);
}
