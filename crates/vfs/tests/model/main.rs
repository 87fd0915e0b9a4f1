//! Random operations through the [`Vfs`](vfs::Vfs) over a remote in memory agree with the
//! reference model, errno included.

mod kernel;

use std::time::Duration;

use kernel::{Kernel, Memory};
use testkit::model::{Runs, run};
use vfs::{Config, Consistency, Links, Timeout};

/// Lists of up to 60 operations: long enough for several handles of a file, renames and links to
/// meet; 800 of them take a few seconds.
const RUNS: Runs = Runs { lists: 800, most_ops: 60 };

fn config() -> Config {
    Config { links: Links::Any, ..Config::default() }
}

#[test]
fn with_caches_and_everything_remembered() {
    run(RUNS, || Kernel::new(config(), Memory::Long));
}

#[test]
fn with_caches_off_and_everything_forgotten() {
    let off = Timeout::fixed(Duration::ZERO);
    run(RUNS, || Kernel::new(Config { files: off, dirs: off, ..config() }, Memory::Short));
}

#[test]
fn strict_and_with_writes_that_wait() {
    let strict = Config { consistency: Consistency::Strict, sync_writes: true, ..config() };
    run(RUNS, || Kernel::new(strict.clone(), Memory::Long));
}
