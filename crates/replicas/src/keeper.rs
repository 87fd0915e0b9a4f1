//! One task for each gateway: looks whether it answers while it is used, probes it while it is
//! left out.
//!
//! Slow is not dead. As long as anything is answered, however little, a gateway makes progress. One
//! that answers nothing for half the deadline is asked for the attributes of the root, and is
//! silent when that is not answered either in the other half, and nothing else. It is left out only
//! while there are others: of the last one nothing better is known.
//!
//! The tasks end when the other side of `wanted` is dropped.

use std::sync::Arc;
use std::time::Duration;

use base::RemotePath;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::gateways::{Gateways, is_loss};
use crate::member::{Member, Weight};
use crate::status::Why;

/// Looks within a deadline.
const LOOKS: u32 = 4;

/// Time from a failed probe to the next; doubles with each failure. The first probe comes at once:
/// often only one connection has ended, and the next stands within a moment.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest time between probes. A probe of a host that is not connected asks for nothing but its
/// next attempt, whose pace is the host's own.
const LAST_PAUSE: Duration = Duration::from_secs(4);

/// Time between two probes however much somebody wants one, and from a good one to the next.
const LEAST_PAUSE: Duration = Duration::from_millis(250);

/// Probes in a row that have to be answered.
const GOOD_PROBES: u32 = 2;

/// What became of a gateway that was used.
enum Trouble {
    /// It is left out already.
    LeftOut,
    /// It says that it is away.
    Gone,
    /// It answered nothing for so long.
    Silent(Duration),
}

/// Keeps an eye on `member` until nobody wants the pool any more.
pub(crate) async fn keep(
    gateways: Arc<Gateways>,
    member: Arc<Member>,
    deadline: Duration,
    mut wanted: watch::Receiver<()>,
) {
    let kept = async {
        loop {
            let trouble = tokio::select! {
                biased;
                () = member.left_out() => Trouble::LeftOut,
                () = member.remote.disconnected() => Trouble::Gone,
                silent_for = silence(&gateways, &member, deadline) => Trouble::Silent(silent_for),
            };
            match trouble {
                Trouble::LeftOut => {}
                Trouble::Gone => gateways.leave_out(&member, Why::Away),
                Trouble::Silent(time) => gateways.leave_out(&member, Why::Silent(time)),
            }
            until_well(&gateways, &member, deadline).await;
            gateways.learn_run(&member).await;
        }
    };
    tokio::select! {
        () = kept => {}
        _ = wanted.changed() => {}
    }
}

/// Returns when `member` has answered nothing by its deadline, and tells for how long.
async fn silence(gateways: &Gateways, member: &Member, deadline: Duration) -> Duration {
    let look = (deadline / LOOKS).max(Duration::from_millis(1));
    loop {
        member.something_asked().await;
        let (mut answers, mut since) = (member.answers(), Instant::now());
        while member.in_flight() > 0 {
            sleep(look).await;
            if member.answers() != answers {
                (answers, since) = (member.answers(), Instant::now());
                continue;
            }
            let silent_for = since.elapsed();
            if silent_for < deadline / 2 {
                continue;
            }
            let rest = deadline.saturating_sub(silent_for).max(look);
            // Answered or not: what counts is whether anything was.
            let _ = timeout(rest, ask_root(gateways, member)).await;
            if member.answers() == answers && gateways.has_others(member) {
                return since.elapsed();
            }
        }
    }
}

/// The smallest question there is. Any answer will do that is the server's own.
async fn ask_root(gateways: &Gateways, member: &Member) -> bool {
    let root = RemotePath::root();
    let call = member.remote.lstat(&root);
    !matches!(gateways.ask(member, Weight::Small, call).await, Err(errno) if is_loss(errno))
}

/// Probes `member` until it may be used again, and takes it back.
async fn until_well(gateways: &Gateways, member: &Member, deadline: Duration) {
    let (mut good, mut pause) = (0, FIRST_PAUSE);
    let mut wanted = gateways.wanted.subscribe();
    while !member.is_usable() {
        wanted.mark_unchanged();
        let answered = timeout(deadline, ask_root(gateways, member)).await == Ok(true);
        if answered && !member.remote.is_disconnected() {
            good += 1;
            if good >= GOOD_PROBES || gateways.usable() == 0 {
                gateways.take_back(member);
                return;
            }
            sleep(LEAST_PAUSE).await;
            continue;
        }
        good = 0;
        sleep(LEAST_PAUSE).await;
        tokio::select! {
            () = sleep(pause.saturating_sub(LEAST_PAUSE)) => {}
            _ = wanted.changed() => {}
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
