//! Random operations on random trees, compared with a union as a pure function of its branches.
//!
//! For each operation, whatever the modes, places and policies:
//!
//! - the union shows before and after what [`merge`] makes of the branches;
//! - if it succeeds, the union shows what one file system would show after the same operation;
//! - if it fails, no branch has changed, and the error is that of one file system, or one that the
//!   branches justify;
//! - a branch that is `ro` never changes, and one that is `nc` gets no new files.
//!
//! All of it also holds when the links to the branches break ([`cuts`]).

mod apply;
mod check;
mod cuts;
mod generate;
mod merge;

use check::check;
use generate::cases;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn the_tree_is_what_its_branches_are() {
    // Some 4,000 operations, each followed by a comparison of the whole tree.
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(config);
    let result = runner.run(&cases(), |case| {
        runtime.block_on(check(&case));
        Ok(())
    });
    result.unwrap_or_else(|why| panic!("{why}"));
}
