//! Random operations through a mount agree with the reference model, errno included.
//!
//! What differs from the same test in `vfs` is everything below and above it: the kernel with its
//! caches, FUSE, the server and what SFTP cannot tell.

use testkit::model::{DirSubject, Runs, run};

use crate::world::{World, is_big_run};

/// About 6,000 operations for each set of options, which take five seconds.
const RUNS: Runs = Runs { lists: 200, most_ops: 60 };

/// With `SSHOAL_TEST_BIG=1`, about 100,000.
const BIG_RUNS: Runs = Runs { lists: 2_000, most_ops: 100 };

#[track_caller]
fn agrees(options: &[&str]) {
    let world = World::new();
    let mount = world.mount(options);
    let runs = if is_big_run() { BIG_RUNS } else { RUNS };
    // SFTP tells no link counts; those that the mount knows are right only while the kernel
    // remembers the inode.
    run(runs, || DirSubject::below(mount.place(), false));
    mount.unmount();
}

#[test]
fn with_all_caches() {
    agrees(&[]);
}

#[test]
fn without_caches_of_names_and_attributes() {
    agrees(&["-o", "dir_cache=no"]);
}

#[test]
fn with_several_connections() {
    agrees(&["-o", "max_conns=3"]);
}

#[test]
fn strict_and_with_writes_that_wait() {
    agrees(&["-o", "consistency=strict,sshfs_sync"]);
}
