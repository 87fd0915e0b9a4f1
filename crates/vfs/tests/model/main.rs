//! Random operations through the [`Vfs`](vfs::Vfs) over a remote in memory agree with the
//! reference model, errno included.

mod kernel;

use std::time::Duration;

use kernel::{Kernel, Memory};
use testkit::model::{Runs, run};
use vfs::{Config, Consistency, Links, Timeout};

/// Lists of up to 60 operations: long enough for several handles of a file, renames and links to
/// interact; 800 lists take a few seconds. `SSHOAL_MODEL_LISTS` sets another number of lists.
fn runs() -> Runs {
    let lists = std::env::var("SSHOAL_MODEL_LISTS").ok().and_then(|lists| lists.parse().ok());
    Runs { lists: lists.unwrap_or(800) / 2, most_ops: 60 }
}

/// Over a remote as SFTP is, and over one that tells files apart.
fn run_over_both(config: &Config, memory: Memory) {
    for shows_inodes in [false, true] {
        run(runs(), || Kernel::new(config.clone(), memory, shows_inodes));
    }
}

fn config() -> Config {
    Config { links: Links::Any, login: Some((0, 0)), ..Config::default() }
}

#[test]
fn with_caches_and_everything_remembered() {
    run_over_both(&config(), Memory::Long);
}

#[test]
fn with_caches_off_and_everything_forgotten() {
    let off = Timeout::fixed(Duration::ZERO);
    run_over_both(&Config { files: off, dirs: off, ..config() }, Memory::Short);
}

#[test]
fn strict_and_with_writes_that_wait() {
    let strict = Config { consistency: Consistency::Strict, sync_writes: true, ..config() };
    run_over_both(&strict, Memory::Long);
}

#[test]
fn with_writers_that_wait_for_room_and_little_read_ahead() {
    let bounds = Config {
        dirty_bytes: 9_000,
        dirty_file_bytes: 5_000,
        readahead_bytes: 300_000,
        prefetch: vfs::Prefetch::None,
        ..config()
    };
    run_over_both(&bounds, Memory::Long);
}

/// A listing from before a change was used once the changed file had been forgotten.
#[test]
fn regression_a_listing_outlives_the_node_of_a_changed_file() {
    use base::{Access::ReadWrite, Create, OpenFlags};
    use testkit::model::{Op, check};
    let flags = OpenFlags { create: Create::Exclusive(0o644), ..OpenFlags::existing(ReadWrite) };
    let ops = [
        Op::Open { fd: 2, path: "a", flags },
        Op::Readdir { path: "" },
        Op::Ftruncate { fd: 2, size: 1 },
        Op::Open { fd: 2, path: "b", flags: OpenFlags::existing(ReadWrite) },
    ];
    let mut kernel = Kernel::new(config(), Memory::Long, false);
    check(&ops, &mut kernel).unwrap_or_else(|why| panic!("{why}"));
}

/// A rename of one name of a file to another leaves both, even if this mount does not know that
/// they are of one file.
#[test]
fn regression_a_rename_of_a_link_over_another_leaves_both() {
    use base::{Access::ReadWrite, Create, OpenFlags, RenameMode};
    use testkit::model::{Op, check};
    let flags = OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(ReadWrite) };
    let ops = [
        Op::Open { fd: 2, path: "c", flags },
        Op::Close { fd: 2 },
        Op::Link { existing: "c", new: "b" },
        Op::Readdir { path: "" },
        Op::Rename { from: "b", to: "c", mode: RenameMode::Replace },
        Op::Open { fd: 0, path: "b/a", flags },
    ];
    let mut kernel = Kernel::new(config(), Memory::Short, false);
    check(&ops, &mut kernel).unwrap_or_else(|why| panic!("{why}"));
}
