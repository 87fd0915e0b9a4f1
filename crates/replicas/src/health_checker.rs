//! One task per gateway: checks that it answers while it is used, and probes it while it is left
//! out.
//!
//! Slow is not dead: a gateway that answers anything makes progress. One that answers nothing for
//! half the deadline is probed for the attributes of the root. It is silent if it answers neither
//! the probe nor any other request in the other half. It is left out only while there are others:
//! there is no better choice than the last one.

use std::sync::Arc;
use std::time::Duration;

use base::RemotePath;
use tokio::time::{Instant, sleep, timeout};

use crate::gateways::Gateways;
use crate::member::{Member, Weight};
use crate::status::Reason;

/// Checks within a deadline.
const CHECKS_PER_DEADLINE: u32 = 4;

/// Time from a failed probe to the next; doubles with each failure. The first probe is sent at
/// once: often only one connection has ended, and the next is up soon.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest time between probes. A probe of a host without a connection only requests its next
/// attempt, whose rate the host limits.
const MAX_PAUSE: Duration = Duration::from_secs(4);

/// Shortest time between two probes, and the time from a good one to the next.
const MIN_PAUSE: Duration = Duration::from_millis(250);

/// Probes in a row that have to be answered.
const GOOD_PROBES: u32 = 2;

/// Why a gateway has to be probed.
enum Problem {
    /// It is left out already.
    LeftOut,
    /// It reports itself unreachable.
    Unreachable,
    /// It answered nothing for this long.
    Silent(Duration),
}

/// Checks `member` for ever.
pub(crate) async fn run(gateways: Arc<Gateways>, member: Arc<Member>, deadline: Duration) {
    loop {
        // A gateway that has come back may fall silent before it reports its epoch.
        let record_epoch = async {
            gateways.record_epoch(&member).await;
            std::future::pending().await
        };
        let problem = tokio::select! {
            biased;
            () = member.left_out() => Problem::LeftOut,
            () = member.remote.disconnected() => Problem::Unreachable,
            silent_for = wait_for_silence(&gateways, &member, deadline) => Problem::Silent(silent_for),
            problem = record_epoch => problem,
        };
        match problem {
            Problem::LeftOut => {}
            Problem::Unreachable => gateways.leave_out(&member, Reason::Away),
            Problem::Silent(time) => gateways.leave_out(&member, Reason::Silent(time)),
        }
        probe_until_usable(&gateways, &member, deadline).await;
    }
}

/// Returns when `member` has answered nothing by its deadline, with the time of silence.
async fn wait_for_silence(gateways: &Gateways, member: &Member, deadline: Duration) -> Duration {
    let look = (deadline / CHECKS_PER_DEADLINE).max(Duration::from_millis(1));
    loop {
        member.wait_for_request().await;
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
            // Whether the probe itself was answered does not matter, only whether anything was.
            let _ = timeout(rest, probe(gateways, member)).await;
            if member.answers() == answers && gateways.has_others(member) {
                return since.elapsed();
            }
        }
    }
}

/// Sends the smallest request. Any answer of the server itself will do.
async fn probe(gateways: &Gateways, member: &Member) -> bool {
    let root = RemotePath::root();
    let call = member.remote.lstat(&root);
    !matches!(gateways.call(member, Weight::Small, call).await, Err(errno) if errno.is_loss())
}

/// Probes `member` until it may be used again, and readmits it.
async fn probe_until_usable(gateways: &Gateways, member: &Member, deadline: Duration) {
    let (mut good, mut pause) = (0, FIRST_PAUSE);
    let mut requested = gateways.probe_requests.subscribe();
    while !member.is_usable() {
        requested.mark_unchanged();
        let answered = timeout(deadline, probe(gateways, member)).await == Ok(true);
        if answered && !member.remote.is_disconnected() {
            good += 1;
            if good >= GOOD_PROBES || gateways.usable() == 0 {
                gateways.readmit(member);
                return;
            }
            sleep(MIN_PAUSE).await;
            continue;
        }
        good = 0;
        sleep(MIN_PAUSE).await;
        tokio::select! {
            () = sleep(pause.saturating_sub(MIN_PAUSE)) => {}
            _ = requested.changed() => {}
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
