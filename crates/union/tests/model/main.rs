//! Random operations on random trees, with what a union must be as a pure function of what its
//! branches are.
//!
//! For each operation, whatever the modes, places and policies:
//!
//! - what the union shows before and after is what [`merge`] makes of the branches;
//! - if it succeeds, it shows afterwards what one file system would after the same operation;
//! - if it fails, no branch has changed, and the error is that of one file system, or one that
//!   tells of the branches, where there is a reason for it;
//! - a branch that is `ro` never changes, and one that is `nc` gets no new files.
//!
//! All of it holds as well when the links to the branches break ([`cuts`]).

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
    // Some 4,000 operations, each with a look at everything.
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(config);
    let result = runner.run(&cases(), |case| {
        runtime.block_on(check(&case));
        Ok(())
    });
    result.unwrap_or_else(|why| panic!("{why}"));
}
