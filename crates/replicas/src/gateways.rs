//! Chooses the gateway of each request, and learns from the answers.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Errno, Remote, RemotePath, Result, SmallSet, Window};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::{Gateway, MAX_GATEWAYS, Mode};
use crate::member::{Health, LARGE_BYTES, Member, Weight};
use crate::server_epoch::Losses;
use crate::status::Reason;

/// How long a request waits for a gateway when all are left out, before it fails. As long as a host
/// waits before its next attempt to connect.
const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// While a request waits, gateways that are left out are probed at this interval: the delay after
/// which a new connection is noticed.
const PROBE_REQUEST_INTERVAL: Duration = Duration::from_millis(250);

/// How long a request waits for a gateway that was just lost and has changed the path in question.
const RECONNECT_GRACE: Duration = Duration::from_secs(1);

/// Bound on the suggested bytes in flight of all gateways together: a reader that reads ahead keeps
/// that much in memory.
const MAX_WINDOW_BYTES: u64 = 64 << 20;

/// A call of a [`Remote`] in flight.
pub(crate) type RemoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A set of gateways.
pub(crate) type GatewaySet = SmallSet;

/// The gateway that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Any gateway.
    Any,
    /// This one, and others when it is left out.
    Prefer(usize),
    /// This one, and others when it is left out; one that was just lost is waited for, since often
    /// only a connection has ended, and data written through it has not reached the other gateways.
    PreferWaiting(usize),
    /// This one alone, without a limit on the time.
    Only(usize),
}

/// All gateways of a pool.
pub(crate) struct Gateways {
    pub(crate) members: Vec<Arc<Member>>,
    mode: Mode,
    /// The number of usable gateways.
    usable: watch::Sender<usize>,
    /// Changed when a request waits for a gateway that is left out.
    pub(crate) probe_requests: watch::Sender<()>,
    /// Rotates the choice among gateways of equal cost.
    round_robin: AtomicUsize,
    /// How often acknowledged but unsynced writes may have been lost.
    pub(crate) losses: Losses,
}

impl Gateways {
    pub(crate) fn new(gateways: Vec<Gateway>, mode: Mode) -> Gateways {
        let members = gateways.into_iter().enumerate();
        let members: Vec<_> =
            members.map(|(index, gateway)| Arc::new(Member::new(index, gateway))).collect();
        Gateways {
            usable: watch::Sender::new(members.len()),
            members,
            mode,
            probe_requests: watch::Sender::new(()),
            round_robin: AtomicUsize::new(0),
            losses: Losses::default(),
        }
    }

    pub(crate) fn usable(&self) -> usize {
        *self.usable.borrow()
    }

    /// Returns when no gateway is usable.
    pub(crate) async fn none_usable(&self) {
        // The sender is in `self`, so the channel does not end.
        let _ = self.usable.subscribe().wait_for(|usable| *usable == 0).await;
    }

    /// Whether another gateway is usable.
    pub(crate) fn has_others(&self, member: &Member) -> bool {
        self.members.iter().any(|other| other.index != member.index && other.is_usable())
    }

    /// Updates the number of usable gateways; receivers are notified also when it stays the same.
    fn update_usable(&self) {
        self.usable.send_modify(|usable| {
            // Counted under the channel's lock, so the last update has seen all changes.
            *usable = self.members.iter().filter(|member| member.is_usable()).count();
        });
    }

    /// Leaves `member` out.
    pub(crate) fn leave_out(&self, member: &Member, reason: Reason) {
        if !member.leave_out(reason) {
            return;
        }
        self.update_usable();
        tracing::warn!(gateway = ?member.name, usable = self.usable(), "left out: {reason}");
        if member.health() == Health::Lost {
            member.epoch.note_lost();
        }
    }

    pub(crate) fn readmit(&self, member: &Member) {
        if member.readmit() {
            self.update_usable();
            tracing::info!(gateway = ?member.name, usable = self.usable(), "readmitted");
        }
    }

    /// The next gateway for a request about `path`, never one in `tried`. When all are left out,
    /// waits for one up to a limit.
    pub(crate) async fn next(
        &self,
        path: &RemotePath,
        target: Target,
        tried: GatewaySet,
    ) -> Option<&Arc<Member>> {
        match target {
            Target::Only(index) => {
                return (!tried.contains(index)).then(|| &self.members[index]);
            }
            Target::PreferWaiting(index)
                if self.members[index].left_out_within(RECONNECT_GRACE) =>
            {
                let member = &self.members[index];
                self.wait_until(Instant::now() + RECONNECT_GRACE, |_| member.is_usable()).await;
            }
            Target::Any | Target::Prefer(_) | Target::PreferWaiting(_) => {}
        }
        if let Target::Prefer(index) | Target::PreferWaiting(index) = target
            && !tried.contains(index)
            && self.members[index].is_usable()
        {
            return Some(&self.members[index]);
        }
        if self.usable() == 0 && tried.is_empty() {
            self.wait_until(Instant::now() + WAIT_LIMIT, |usable| usable > 0).await;
        }
        self.choose(path, tried)
    }

    /// Waits until the deadline for gateways that are left out, and requests probes of them.
    pub(crate) async fn wait_until(&self, deadline: Instant, enough: impl Fn(usize) -> bool) {
        let mut usable = self.usable.subscribe();
        let waiting = timeout_at(deadline, usable.wait_for(|usable| enough(*usable)));
        let requesting = async {
            loop {
                self.probe_requests.send_replace(());
                sleep(PROBE_REQUEST_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            _ = waiting => {}
            () = requesting => {}
        }
    }

    /// Chooses by the mode, among the usable gateways not in `not`.
    pub(crate) fn choose(&self, path: &RemotePath, not: GatewaySet) -> Option<&Arc<Member>> {
        let free = || {
            self.members
                .iter()
                .filter(move |member| member.is_usable() && !not.contains(member.index))
        };
        match self.mode {
            Mode::Failover => free().find(|member| member.has_room()).or_else(|| free().next()),
            Mode::Hash => free().max_by_key(|member| rank(&member.name, path)),
            Mode::Balance => {
                let roomy = || free().filter(|member| member.has_room());
                self.lowest_latency(roomy).or_else(|| self.lowest_latency(free))
            }
        }
    }

    /// Which of these gateways would transfer `len` more bytes first.
    pub(crate) fn fastest_for(&self, len: u32, among: GatewaySet) -> Option<usize> {
        let now = Instant::now();
        let among = || {
            self.members.iter().filter(|member| among.contains(member.index) && member.is_usable())
        };
        // One that was not measured is assumed to be as fast as the best, so that it gets measured.
        let usual = among().filter_map(|member| member.byte_time_ps(now)).min().unwrap_or(1);
        let cost = |member: &Arc<Member>| u128::from(member.estimate_ns(len, now, usual));
        self.cheapest(among, cost).map(|member| member.index)
    }

    /// The cheapest for a small request; one that was not measured is assumed to be as fast as the
    /// best, so that it gets measured.
    fn lowest_latency<'a, I: Iterator<Item = &'a Arc<Member>>>(
        &self,
        among: impl Fn() -> I,
    ) -> Option<&'a Arc<Member>> {
        let now = Instant::now();
        let known = among().filter_map(|member| member.latency_ns(now)).min().unwrap_or(1);
        self.cheapest(among, |member| small_cost(member, member.latency_ns(now).unwrap_or(known)))
    }

    /// The cheapest; equally cheap ones take turns.
    fn cheapest<'a, I: Iterator<Item = &'a Arc<Member>>>(
        &self,
        among: impl Fn() -> I,
        cost: impl Fn(&Arc<Member>) -> u128,
    ) -> Option<&'a Arc<Member>> {
        let turn = self.round_robin.fetch_add(1, Ordering::Relaxed);
        let all = self.members.len();
        among().min_by_key(|member| (cost(member), (member.index + turn) % all))
    }

    /// Runs `call` to `member`, and records the result.
    pub(crate) async fn call<T>(
        &self,
        member: &Member,
        weight: Weight,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let request = member.begin(weight);
        let answer = call.await;
        match &answer {
            Err(errno) if errno.is_loss() => {
                self.leave_out(member, Reason::Failed(*errno));
            }
            _ => {
                request.answered();
                // No other gateway was usable, so this answer replaces the probes.
                if !member.is_usable() && self.usable() == 0 {
                    self.readmit(member);
                }
            }
        }
        answer
    }

    /// Runs `call` to `member`; given up when the gateway is left out meanwhile, or lost if it was
    /// left out before.
    pub(crate) async fn call_while_usable<T>(
        &self,
        member: &Member,
        weight: Weight,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !member.is_usable() {
            return self.call_unless_lost(member, weight, call).await;
        }
        tokio::select! {
            biased;
            answer = self.call(member, weight, call) => answer,
            () = member.left_out() => match member.health() {
                Health::Lost => Err(Errno::EHOSTDOWN),
                _ => Err(Errno::ETIMEDOUT),
            },
        }
    }

    /// Runs `call` to `member`; given up when the gateway is lost, since the call would wait for a
    /// new connection.
    pub(crate) async fn call_unless_lost<T>(
        &self,
        member: &Member,
        weight: Weight,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = self.call(member, weight, call) => answer,
            () = member.lost() => Err(Errno::EHOSTDOWN),
        }
    }

    /// Fails when `member` is lost. If all gateways are left out, waits for it up to a limit.
    pub(crate) async fn ensure_up(&self, member: &Member) -> Result<()> {
        if member.health() == Health::Lost && self.usable() == 0 {
            self.wait_until(Instant::now() + WAIT_LIMIT, |usable| usable > 0).await;
        }
        match member.health() {
            Health::Lost => Err(Errno::EHOSTDOWN),
            Health::Healthy | Health::Returning | Health::Silent => Ok(()),
        }
    }

    /// Runs a query, which changes nothing, on one gateway after the other until one answers.
    /// Returns the index of that one.
    pub(crate) async fn query<'a, T>(
        &'a self,
        path: &RemotePath,
        target: Target,
        call: impl Fn(&'a dyn Remote) -> RemoteFuture<'a, T>,
    ) -> Result<(usize, Result<T>)> {
        let (mut tried, mut failed) = (GatewaySet::default(), Errno::EHOSTDOWN);
        while let Some(member) = self.next(path, target, tried).await {
            tried = tried.with(member.index);
            let call = call(&*member.remote);
            let answer = match target {
                Target::Only(_) => self.call_unless_lost(member, Weight::Small, call).await,
                _ => self.call_while_usable(member, Weight::Small, call).await,
            };
            match answer {
                Err(errno) if errno.is_loss() => failed = errno,
                answer => return Ok((member.index, answer)),
            }
        }
        Err(failed)
    }

    /// The sum of the windows of the gateways that carry content.
    pub(crate) fn window(&self) -> Window {
        let usable = self.members.iter().filter(|member| member.is_usable());
        let used = if self.mode == Mode::Failover { 1 } else { MAX_GATEWAYS };
        let windows = usable.take(used).map(|member| member.remote.suggested_window());
        let all = windows.reduce(|one, other| Window {
            bytes: one.bytes.saturating_add(other.bytes),
            request_bytes: one.request_bytes.min(other.request_bytes),
        });
        let all = all.unwrap_or_else(|| self.members[0].remote.suggested_window());
        Window { bytes: all.bytes.min(MAX_WINDOW_BYTES), ..all }
    }

    /// Whether a request of `len` bytes may go through any gateway that has the file open.
    pub(crate) fn is_striped(&self, len: u32) -> bool {
        self.mode == Mode::Balance && len >= LARGE_BYTES && self.members.len() > 1
    }
}

/// The cost of one more small request, which takes `latency_ns` alone.
fn small_cost(member: &Member, latency_ns: u64) -> u128 {
    let load = member.in_flight() as u64 + member.queued_bytes() / u64::from(LARGE_BYTES);
    u128::from(latency_ns) * u128::from(load + 1)
}

/// Rendezvous hashing: each pair has a rank of its own, so a gateway that is left out gives up its
/// own paths and no others.
fn rank(gateway: &str, path: &RemotePath) -> u64 {
    let mut hasher = DefaultHasher::new();
    (gateway, path).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{MemRemote, path};

    fn gateways(mode: Mode, count: usize) -> Gateways {
        let remote = Arc::new(MemRemote::new());
        let gateway =
            |index| Gateway { name: format!("gw{index}"), remote: remote.clone() as Arc<_> };
        Gateways::new((0..count).map(gateway).collect(), mode)
    }

    fn chosen(gateways: &Gateways, at: &str) -> usize {
        gateways.choose(&path(at), GatewaySet::default()).unwrap().index
    }

    #[test]
    fn a_lost_gateway_moves_only_its_share() {
        let gateways = gateways(Mode::Hash, 3);
        let paths: Vec<String> = (0..3000).map(|number| format!("d/file{number}")).collect();
        let before: Vec<usize> = paths.iter().map(|path| chosen(&gateways, path)).collect();
        for index in 0..3 {
            let share = before.iter().filter(|it| **it == index).count();
            assert!((700..1300).contains(&share), "{share} of 3000 for {index}");
        }
        gateways.leave_out(&gateways.members[1], Reason::Away);
        for (path, before) in paths.iter().zip(&before) {
            let now = chosen(&gateways, path);
            assert!(now != 1 && (now == *before || *before == 1), "{path}: {before} to {now}");
        }
        gateways.readmit(&gateways.members[1]);
        let again: Vec<usize> = paths.iter().map(|path| chosen(&gateways, path)).collect();
        assert_eq!(before, again);
    }

    #[test]
    fn failover_is_the_first_that_is_there() {
        let gateways = gateways(Mode::Failover, 3);
        assert_eq!(chosen(&gateways, "a"), 0);
        gateways.leave_out(&gateways.members[0], Reason::Away);
        assert_eq!(chosen(&gateways, "a"), 1);
        gateways.leave_out(&gateways.members[1], Reason::Away);
        assert_eq!(chosen(&gateways, "a"), 2);
        gateways.readmit(&gateways.members[0]);
        assert_eq!(chosen(&gateways, "a"), 0);
    }

    #[test]
    fn requests_go_to_the_gateway_with_the_shortest_expected_time() {
        let gateways = gateways(Mode::Balance, 3);
        // Nothing was measured: by the requests in flight.
        let requests: Vec<_> = (0..30)
            .map(|_| gateways.members[chosen(&gateways, "a")].begin(Weight::Small))
            .collect();
        for member in &gateways.members {
            assert_eq!(member.in_flight(), 10, "{}", member.name);
        }
        drop(requests);
        // A stream of content keeps small requests away.
        let _stream = gateways.members[1].begin(Weight::Read(1 << 20));
        assert!((0..20).all(|_| chosen(&gateways, "a") != 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_quicker_one_takes_more() {
        let gateways = gateways(Mode::Balance, 2);
        for (member, ms) in gateways.members.iter().zip([10, 40]) {
            let request = member.begin(Weight::Small);
            tokio::time::advance(Duration::from_millis(ms)).await;
            request.answered();
        }
        let requests: Vec<_> = (0..50)
            .map(|_| gateways.members[chosen(&gateways, "a")].begin(Weight::Small))
            .collect();
        assert_eq!(gateways.members[0].in_flight(), 40);
        assert_eq!(gateways.members[1].in_flight(), 10);
        drop(requests);
        // A slow one is tried again after a while.
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((0..10).map(|_| chosen(&gateways, "a")).filter(|it| *it == 1).count(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_are_divided_by_the_measured_throughput_of_gateways() {
        let gateways = gateways(Mode::Balance, 2);
        // An RTT of 1 ms, and 10 and 30 ms more for 1 MiB.
        for (member, ms) in gateways.members.iter().zip([10, 30]) {
            for (weight, ms) in [(Weight::Small, 1), (Weight::Read(1 << 20), 1 + ms)] {
                let request = member.begin(weight);
                tokio::time::advance(Duration::from_millis(ms)).await;
                request.answered();
            }
        }
        let both = GatewaySet::default().with(0).with(1);
        let requests: Vec<_> = (0..40)
            .map(|_| gateways.fastest_for(1 << 17, both).unwrap())
            .map(|index| gateways.members[index].begin(Weight::Read(1 << 17)))
            .collect();
        assert_eq!(gateways.members[0].in_flight(), 30);
        assert_eq!(gateways.members[1].in_flight(), 10);
        drop(requests);
        assert_eq!(gateways.fastest_for(1, GatewaySet::default().with(1)), Some(1));
        // Where only the RTT takes time, each carries as much.
        let gateways = self::gateways(Mode::Balance, 2);
        for _ in 0..20 {
            let chosen = || gateways.fastest_for(1 << 17, both).unwrap();
            let requests: Vec<_> =
                (0..20).map(|_| gateways.members[chosen()].begin(Weight::Read(1 << 17))).collect();
            assert_eq!(gateways.members[0].in_flight(), 10);
            tokio::time::advance(Duration::from_millis(20)).await;
            requests.iter().for_each(|request| request.answered());
        }
        assert_eq!(gateways.fastest_for(1, GatewaySet::default()), None);
    }

    #[test]
    fn one_that_returns_gets_little_at_first() {
        let gateways = gateways(Mode::Balance, 2);
        gateways.leave_out(&gateways.members[0], Reason::Away);
        gateways.readmit(&gateways.members[0]);
        let requests: Vec<_> = (0..40)
            .map(|_| gateways.members[chosen(&gateways, "a")].begin(Weight::Small))
            .collect();
        assert_eq!(gateways.members[0].in_flight(), 2);
        drop(requests);
    }

    #[test]
    fn the_window_is_the_sum_of_all_available_gateways() {
        let gateways = gateways(Mode::Balance, 3);
        let one = Window::default();
        assert_eq!(gateways.window().bytes, 3 * one.bytes);
        assert_eq!(gateways.window().request_bytes, one.request_bytes);
        gateways.leave_out(&gateways.members[2], Reason::Away);
        assert_eq!(gateways.window().bytes, 2 * one.bytes);
        for member in &gateways.members {
            gateways.leave_out(member, Reason::Away);
        }
        assert_eq!(gateways.window(), one, "somebody may come back");
    }
}
