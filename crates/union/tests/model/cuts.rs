//! The model test over links that break: no operation may show it.
//!
//! Each branch is steady over a link of its own. During an operation one link loses a request or an
//! answer, or is cut with all that is in flight; the handles of that branch are stale then. The
//! rules are those of a union without faults.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use recovery::Recovering;
use testkit::faulty::Fault;
use testkit::{FaultyRemote, MemRemote};

use super::check::Ground;
use super::generate::{Case, cases};

/// The longest list of operations that [`cases`] makes.
const MOST_OPS: usize = 20;

/// Lists of operations to try; `UNION_CASES` sets how many instead. Most is waiting for nothing:
/// the clock stands still.
const CASES: u32 = 300;

/// Bound on an operation, in paused time.
const PATIENCE: Duration = Duration::from_secs(3_600);

type Link = Arc<FaultyRemote<MemRemote>>;

fn faults() -> impl Strategy<Value = (usize, Fault)> {
    let fault = prop_oneof![
        1 => Just(Fault::None),
        2 => (1..8u64).prop_map(Fault::Unsent),
        3 => (1..8u64).prop_map(Fault::Unanswered),
        3 => (0..16usize, 0..3u64).prop_map(|(turns, secs)| Fault::Cut(turns, secs)),
        2 => (0..16usize, 1..8u64).prop_map(|(turns, nth)| Fault::CutAndUnanswered(turns, nth)),
    ];
    (any::<prop::sample::Index>(), fault).prop_map(|(branch, fault)| (branch.index(60), fault))
}

async fn check_over_cuts(case: &Case, faults: &[(usize, Fault)]) {
    let links = RefCell::new(Vec::<Link>::new());
    let mut ground = Ground::new(case, |memory| {
        // Every answer takes a poll, so that there is a time between request and answer.
        memory.set_pending(true);
        let link = Arc::new(FaultyRemote::new(memory));
        links.borrow_mut().push(link.clone());
        Recovering::new(link, recovery::Config::default())
    });
    let links = links.into_inner();
    ground.compare("at first").await;
    for (op, (branch, fault)) in case.ops.iter().zip(faults) {
        ground.look_up(op).await;
        let link = &links[branch % links.len()];
        // A fault that was not reached must not hit the comparison.
        let meanwhile = fault.happen(link);
        let step = ground.step(op, meanwhile, || link.clear());
        let in_time = tokio::time::timeout(PATIENCE, step).await;
        in_time.unwrap_or_else(|_| panic!("{op:?} with {fault:?} hangs"));
    }
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ground.open_handles(), 0, "handles leaked");
}

#[test]
fn broken_links_do_not_change_results() {
    let count = std::env::var("UNION_CASES").map_or(CASES, |count| count.parse().unwrap());
    let config = Config { cases: count, failure_persistence: None, ..Config::default() };
    let lists = (cases(), vec(faults(), MOST_OPS));
    let result = TestRunner::new(config).run(&lists, |(case, faults)| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(check_over_cuts(&case, &faults));
        Ok(())
    });
    result.unwrap_or_else(|why| panic!("{why}"));
}
