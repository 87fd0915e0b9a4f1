//! Which gateway is asked, and what is learnt from how it answers.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Errno, Remote, RemotePath, Result, Window};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::{Gateway, MAX_GATEWAYS, Mode};
use crate::member::{Health, LARGE_BYTES, Member, Weight};
use crate::runs::Losses;
use crate::status::Why;

/// How long a request waits for a gateway when all are left out, before it fails. As long as a host
/// waits for its next attempt to connect.
const PATIENCE: Duration = Duration::from_secs(2);

/// While somebody waits, those that are left out are probed so often: what a connection that stands
/// again is noticed late.
const WANTED_AGAIN: Duration = Duration::from_millis(250);

/// How long one is waited for that was lost a moment ago and changed what is asked about.
const GRACE: Duration = Duration::from_secs(1);

/// What all gateways together may suggest to have on the way, in bytes: whoever reads ahead keeps
/// that much.
const MAX_WINDOW_BYTES: u64 = 64 << 20;

/// What a call of a [`Remote`] is while it is not answered.
pub(crate) type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A set of gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set(u64);

const _: () = assert!(MAX_GATEWAYS == u64::BITS as usize);

impl Set {
    pub(crate) fn of(index: usize) -> Set {
        Set(1 << index)
    }

    pub(crate) fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    pub(crate) fn with(self, index: usize) -> Set {
        Set(self.0 | 1 << index)
    }

    pub(crate) fn without(self, index: usize) -> Set {
        Set(self.0 & !(1 << index))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Whom a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Anybody.
    Any,
    /// This one, and others when it is left out.
    Rather(usize),
    /// The same, but one that was lost a moment ago is waited for: often only a connection has
    /// ended, and what was written through it is still on its way to the others.
    Patiently(usize),
    /// This one alone, however long it takes.
    Only(usize),
}

/// Whether an error says that the gateway cannot be reached, rather than something about what was
/// asked.
pub(crate) fn is_loss(errno: Errno) -> bool {
    matches!(errno, Errno::EHOSTDOWN | Errno::ETIMEDOUT)
}

/// All gateways of a pool.
pub(crate) struct Gateways {
    pub(crate) members: Vec<Arc<Member>>,
    mode: Mode,
    /// How many are usable.
    usable: watch::Sender<usize>,
    /// Changed when somebody waits for one that is left out.
    pub(crate) wanted: watch::Sender<()>,
    /// Whose turn it is among equals.
    turn: AtomicUsize,
    /// How often writes that were acknowledged and not synced may have been lost.
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
            wanted: watch::Sender::new(()),
            turn: AtomicUsize::new(0),
            losses: Losses::default(),
        }
    }

    pub(crate) fn usable(&self) -> usize {
        *self.usable.borrow()
    }

    /// Returns when none is usable.
    pub(crate) async fn none_usable(&self) {
        // The sender is ours, so there is no end of the channel.
        let _ = self.usable.subscribe().wait_for(|usable| *usable == 0).await;
    }

    /// Whether there is a usable one beside this.
    pub(crate) fn has_others(&self, member: &Member) -> bool {
        self.members.iter().any(|other| other.index != member.index && other.is_usable())
    }

    /// Whoever waits is told of each change, also when the number stays.
    fn count(&self) {
        self.usable.send_modify(|usable| {
            // Counted under the channel's lock, so the last one to count has seen all changes.
            *usable = self.members.iter().filter(|member| member.is_usable()).count();
        });
    }

    /// Leaves `member` out.
    pub(crate) fn leave_out(&self, member: &Member, why: Why) {
        if !member.leave_out(why) {
            return;
        }
        self.count();
        tracing::warn!(gateway = ?member.name, usable = self.usable(), "left out: {why}");
        if member.health() == Health::Lost {
            match member.unsynced.load(Ordering::SeqCst) {
                0 => member.run.forget(),
                _ => member.run.doubt(),
            }
        }
    }

    pub(crate) fn take_back(&self, member: &Member) {
        if member.take_back() {
            self.count();
            tracing::info!(gateway = ?member.name, usable = self.usable(), "taken back");
        }
    }

    /// The next one to be asked about `path`, and never one that was `tried`. When all are left out
    /// one is waited for, but not for long.
    pub(crate) async fn next(
        &self,
        path: &RemotePath,
        target: Target,
        tried: Set,
    ) -> Option<&Arc<Member>> {
        match target {
            Target::Only(index) => {
                return (!tried.has(index)).then(|| &self.members[index]);
            }
            Target::Patiently(index) if self.members[index].left_within(GRACE) => {
                let member = &self.members[index];
                self.wait(GRACE, |_| member.is_usable()).await;
            }
            Target::Any | Target::Rather(_) | Target::Patiently(_) => {}
        }
        if let Target::Rather(index) | Target::Patiently(index) = target
            && !tried.has(index)
            && self.members[index].is_usable()
        {
            return Some(&self.members[index]);
        }
        if self.usable() == 0 && tried.is_empty() {
            self.wait(PATIENCE, |usable| usable > 0).await;
        }
        self.choose(path, tried)
    }

    /// Waits for those that are left out, and has them probed.
    async fn wait(&self, time: Duration, enough: impl Fn(usize) -> bool) {
        self.wait_until(Instant::now() + time, enough).await;
    }

    /// The same, with a deadline.
    pub(crate) async fn wait_until(&self, deadline: Instant, enough: impl Fn(usize) -> bool) {
        let mut usable = self.usable.subscribe();
        let waiting = timeout_at(deadline, usable.wait_for(|usable| enough(*usable)));
        let wanting = async {
            loop {
                self.wanted.send_replace(());
                sleep(WANTED_AGAIN).await;
            }
        };
        tokio::select! {
            biased;
            _ = waiting => {}
            () = wanting => {}
        }
    }

    /// By the mode, among those that are usable and not in `not`.
    pub(crate) fn choose(&self, path: &RemotePath, not: Set) -> Option<&Arc<Member>> {
        let free = || {
            self.members.iter().filter(move |member| member.is_usable() && !not.has(member.index))
        };
        match self.mode {
            Mode::Failover => free().find(|member| member.has_room()).or_else(|| free().next()),
            Mode::Hash => free().max_by_key(|member| rank(&member.name, path)),
            Mode::Balance => {
                let roomy = || free().filter(|member| member.has_room());
                self.soonest(roomy, small_cost).or_else(|| self.soonest(free, small_cost))
            }
        }
    }

    /// Who of these would have carried `len` more bytes first.
    pub(crate) fn carries_soonest(&self, len: u32, among: Set) -> Option<usize> {
        let now = Instant::now();
        let among =
            || self.members.iter().filter(|member| among.has(member.index) && member.is_usable());
        // Who is not known yet is taken for as good as the best, so that he becomes known.
        let usual = among().filter_map(|member| member.byte_time_ps(now)).min().unwrap_or(1);
        let cost = |member: &Arc<Member>| u128::from(member.would_take_ns(len, now, usual));
        self.in_turn(among, cost).map(|member| member.index)
    }

    /// The cheapest by the latency that is known; what is not known is taken for as good as the
    /// best, so that it becomes known.
    fn soonest<'a, I: Iterator<Item = &'a Arc<Member>>>(
        &self,
        among: impl Fn() -> I,
        cost: impl Fn(&Member, u64) -> u128,
    ) -> Option<&'a Arc<Member>> {
        let now = Instant::now();
        let known = among().filter_map(|member| member.latency_ns(now)).min().unwrap_or(1);
        self.in_turn(among, |member| cost(member, member.latency_ns(now).unwrap_or(known)))
    }

    /// The cheapest; equally cheap ones take turns.
    fn in_turn<'a, I: Iterator<Item = &'a Arc<Member>>>(
        &self,
        among: impl Fn() -> I,
        cost: impl Fn(&Arc<Member>) -> u128,
    ) -> Option<&'a Arc<Member>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let all = self.members.len();
        among().min_by_key(|member| (cost(member), (member.index + turn) % all))
    }

    /// Asks `member`, and learns from the answer.
    pub(crate) async fn ask<T>(
        &self,
        member: &Member,
        weight: Weight,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let pass = member.begin(weight);
        let answer = call.await;
        match &answer {
            Err(errno) if is_loss(*errno) => {
                self.leave_out(member, Why::Failed(*errno));
            }
            _ => {
                pass.answered();
                // Nobody else could be asked, so this is as good as a probe.
                if !member.is_usable() && self.usable() == 0 {
                    self.take_back(member);
                }
            }
        }
        answer
    }

    /// As [`Gateways::ask`], given up when the gateway is left out meanwhile, or lost if it was left
    /// out before.
    pub(crate) async fn ask_while_usable<T>(
        &self,
        member: &Member,
        weight: Weight,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !member.is_usable() {
            return self.ask_unless_lost(member, weight, call).await;
        }
        tokio::select! {
            biased;
            answer = self.ask(member, weight, call) => answer,
            () = member.left_out() => match member.health() {
                Health::Lost => Err(Errno::EHOSTDOWN),
                _ => Err(Errno::ETIMEDOUT),
            },
        }
    }

    /// As [`Gateways::ask`], given up when the gateway is lost: what waits then waits for a new
    /// connection, and need not.
    pub(crate) async fn ask_unless_lost<T>(
        &self,
        member: &Member,
        weight: Weight,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = self.ask(member, weight, call) => answer,
            () = member.lost() => Err(Errno::EHOSTDOWN),
        }
    }

    /// Fails when `member` is lost. When all are left out it is waited for, but not for long.
    pub(crate) async fn reach(&self, member: &Member) -> Result<()> {
        if member.health() == Health::Lost && self.usable() == 0 {
            self.wait(PATIENCE, |usable| usable > 0).await;
        }
        match member.health() {
            Health::Lost => Err(Errno::EHOSTDOWN),
            Health::Well | Health::Returning | Health::Silent => Ok(()),
        }
    }

    /// Asks what changes nothing, of one gateway after the other until one answers. Tells who did.
    pub(crate) async fn look<'a, T>(
        &'a self,
        path: &RemotePath,
        target: Target,
        call: impl Fn(&'a dyn Remote) -> Answering<'a, T>,
    ) -> Result<(usize, Result<T>)> {
        let (mut tried, mut failed) = (Set::default(), Errno::EHOSTDOWN);
        while let Some(member) = self.next(path, target, tried).await {
            tried = tried.with(member.index);
            let call = call(&*member.remote);
            let answer = match target {
                Target::Only(_) => self.ask_unless_lost(member, Weight::Small, call).await,
                _ => self.ask_while_usable(member, Weight::Small, call).await,
            };
            match answer {
                Err(errno) if is_loss(errno) => failed = errno,
                answer => return Ok((member.index, answer)),
            }
        }
        Err(failed)
    }

    /// What is worth having on the way to all who carry content.
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

    /// Whether a request of `len` bytes may go through any gateway that has the file.
    pub(crate) fn spreads(&self, len: u32) -> bool {
        self.mode == Mode::Balance && len >= LARGE_BYTES && self.members.len() > 1
    }
}

/// What one more small request costs that takes `latency_ns` alone.
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
        gateways.choose(&path(at), Set::default()).unwrap().index
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
        gateways.leave_out(&gateways.members[1], Why::Away);
        for (path, before) in paths.iter().zip(&before) {
            let now = chosen(&gateways, path);
            assert!(now != 1 && (now == *before || *before == 1), "{path}: {before} to {now}");
        }
        gateways.take_back(&gateways.members[1]);
        let again: Vec<usize> = paths.iter().map(|path| chosen(&gateways, path)).collect();
        assert_eq!(before, again);
    }

    #[test]
    fn failover_is_the_first_that_is_there() {
        let gateways = gateways(Mode::Failover, 3);
        assert_eq!(chosen(&gateways, "a"), 0);
        gateways.leave_out(&gateways.members[0], Why::Away);
        assert_eq!(chosen(&gateways, "a"), 1);
        gateways.leave_out(&gateways.members[1], Why::Away);
        assert_eq!(chosen(&gateways, "a"), 2);
        gateways.take_back(&gateways.members[0]);
        assert_eq!(chosen(&gateways, "a"), 0);
    }

    #[test]
    fn the_load_goes_where_it_is_answered_soonest() {
        let gateways = gateways(Mode::Balance, 3);
        // Nothing is known: by what is on the way.
        let passes: Vec<_> = (0..30)
            .map(|_| gateways.members[chosen(&gateways, "a")].begin(Weight::Small))
            .collect();
        for member in &gateways.members {
            assert_eq!(member.in_flight(), 10, "{}", member.name);
        }
        drop(passes);
        // A stream of content keeps small requests away.
        let _stream = gateways.members[1].begin(Weight::Read(1 << 20));
        assert!((0..20).all(|_| chosen(&gateways, "a") != 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_quicker_one_takes_more() {
        let gateways = gateways(Mode::Balance, 2);
        for (member, ms) in gateways.members.iter().zip([10, 40]) {
            let pass = member.begin(Weight::Small);
            tokio::time::advance(Duration::from_millis(ms)).await;
            pass.answered();
        }
        let passes: Vec<_> = (0..50)
            .map(|_| gateways.members[chosen(&gateways, "a")].begin(Weight::Small))
            .collect();
        assert_eq!(gateways.members[0].in_flight(), 40);
        assert_eq!(gateways.members[1].in_flight(), 10);
        drop(passes);
        // What was slow once is tried again after a while.
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((0..10).map(|_| chosen(&gateways, "a")).filter(|it| *it == 1).count(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn content_goes_by_what_each_way_carries() {
        let gateways = gateways(Mode::Balance, 2);
        // A way of 1 ms, and 1 MiB in 10 ms more, and in 30 ms.
        for (member, ms) in gateways.members.iter().zip([10, 30]) {
            for (weight, ms) in [(Weight::Small, 1), (Weight::Read(1 << 20), 1 + ms)] {
                let pass = member.begin(weight);
                tokio::time::advance(Duration::from_millis(ms)).await;
                pass.answered();
            }
        }
        let both = Set::of(0).with(1);
        let passes: Vec<_> = (0..40)
            .map(|_| gateways.carries_soonest(1 << 17, both).unwrap())
            .map(|index| gateways.members[index].begin(Weight::Read(1 << 17)))
            .collect();
        assert_eq!(gateways.members[0].in_flight(), 30);
        assert_eq!(gateways.members[1].in_flight(), 10);
        drop(passes);
        assert_eq!(gateways.carries_soonest(1, Set::of(1)), Some(1));
        // Where only the way takes time, as much goes through each.
        let gateways = self::gateways(Mode::Balance, 2);
        for _ in 0..20 {
            let chosen = || gateways.carries_soonest(1 << 17, both).unwrap();
            let passes: Vec<_> =
                (0..20).map(|_| gateways.members[chosen()].begin(Weight::Read(1 << 17))).collect();
            assert_eq!(gateways.members[0].in_flight(), 10);
            tokio::time::advance(Duration::from_millis(20)).await;
            passes.iter().for_each(|pass| pass.answered());
        }
        assert_eq!(gateways.carries_soonest(1, Set::default()), None);
    }

    #[test]
    fn one_that_returns_gets_little_at_first() {
        let gateways = gateways(Mode::Balance, 2);
        gateways.leave_out(&gateways.members[0], Why::Away);
        gateways.take_back(&gateways.members[0]);
        let passes: Vec<_> = (0..40)
            .map(|_| gateways.members[chosen(&gateways, "a")].begin(Weight::Small))
            .collect();
        assert_eq!(gateways.members[0].in_flight(), 2);
        drop(passes);
    }

    #[test]
    fn the_window_is_that_of_all_who_are_there() {
        let gateways = gateways(Mode::Balance, 3);
        let one = Window::default();
        assert_eq!(gateways.window().bytes, 3 * one.bytes);
        assert_eq!(gateways.window().request_bytes, one.request_bytes);
        gateways.leave_out(&gateways.members[2], Why::Away);
        assert_eq!(gateways.window().bytes, 2 * one.bytes);
        for member in &gateways.members {
            gateways.leave_out(member, Why::Away);
        }
        assert_eq!(gateways.window(), one, "somebody may come back");
    }
}
