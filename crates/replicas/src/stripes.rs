//! Further gateways through which an open file is read.
//!
//! A file of which much is read is opened once more through each other gateway, and its large reads
//! go through all of them from then on, each whole through one. Attributes and small reads stay
//! with the home.
//!
//! Before that, home and further handle have to show the same size and time of change, before and
//! after both have shown the same bytes in some places. And that time has to be over: it comes in
//! whole seconds, so that of a file which is just being written two versions may have the same. It is
//! over when it was first seen some seconds ago, or is more than five minutes old by this machine's
//! clock. While the lanes are used all this is looked at again from time to time. They end at
//! once when the file is opened for writing here, changed by its name, or when attributes are about
//! to be shown that differ from those which were agreed on ([`crate::names::Named::shown`]).
//!
//! A lane that fails, or gives less than was asked for, is not believed: the home is asked, whose
//! word alone is the end of the file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::{Access, Attr, FileKind, OpenFlags, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::files::{File, Handle};
use crate::gateways::{Gateways, Set};
use crate::member::{Member, Weight};
use crate::names::Version;
use crate::recent::Recent;

/// Bytes that were read before the file is opened elsewhere: less is over before that pays.
const WORTHWHILE_BYTES: u64 = 1 << 20;

/// Failed attempts for one file.
const ATTEMPTS: u32 = 5;

/// Time from a failed attempt to the next; doubles with each.
const RETRY: Duration = Duration::from_secs(3);

/// How long ago the time of change was first seen when it is over: a second, and some for gateways
/// that lag.
const SETTLED: Duration = Duration::from_secs(3);

/// By how many seconds the clocks of servers may differ from this machine's.
const CLOCK_SKEW_SECS: i64 = 300;

/// Time between two looks at lanes that are used. What another machine changes is seen by each
/// gateway within its own time; so long two of them may be used that show different versions.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes that are compared in one place.
const COMPARED_BYTES: u32 = 4096;

struct Lane {
    handle: Arc<Handle>,
    /// The count of changes at which it was agreed on.
    changes: u64,
}

struct State {
    lanes: Vec<Lane>,
    /// Gateways at which an attempt is under way.
    trying: Set,
    failures: u32,
    retry_at: Option<Instant>,
    looked: Option<Instant>,
    /// The version that was seen last, and when first.
    seen: Option<(Version, Instant)>,
}

/// The further handles of one open file.
pub(crate) struct Lanes {
    state: Mutex<State>,
    /// Large reads so far, in bytes.
    carried: AtomicU64,
}

impl Default for Lanes {
    fn default() -> Lanes {
        let state = State {
            lanes: Vec::new(),
            trying: Set::default(),
            failures: 0,
            retry_at: None,
            looked: None,
            seen: None,
        };
        Lanes { state: Mutex::new(state), carried: AtomicU64::new(0) }
    }
}

/// Why there is no lane.
enum Refused {
    /// It cannot be told yet.
    TooYoung,
    /// It is not the same, or could not be opened.
    Failed,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that may be used: agreed on since the last change, at gateways that are there.
    fn usable(&self, changes: u64) -> Vec<Arc<Handle>> {
        let mut state = self.lock();
        let is_good = |lane: &mut Lane| lane.changes == changes && lane.handle.member.is_usable();
        let left: Vec<Lane> = state.lanes.extract_if(.., |lane| !is_good(lane)).collect();
        let good = state.lanes.iter().map(|lane| lane.handle.clone()).collect();
        drop(state);
        // Closed without the lock.
        drop(left);
        good
    }

    /// Whether nothing speaks against an attempt at this gateway now; noted as begun then.
    fn begin(&self, gateway: usize) -> bool {
        let mut state = self.lock();
        let pauses = state.retry_at.is_some_and(|at| Instant::now() < at);
        let is_there = state.lanes.iter().any(|lane| lane.handle.member.index == gateway);
        if pauses || is_there || state.failures >= ATTEMPTS || state.trying.has(gateway) {
            return false;
        }
        state.trying = state.trying.with(gateway);
        true
    }

    fn end(&self, gateway: usize, lane: Result<Lane, Refused>) {
        let mut state = self.lock();
        state.trying = state.trying.without(gateway);
        match lane {
            Ok(lane) => state.lanes.push(lane),
            Err(Refused::TooYoung) => state.retry_at = Some(Instant::now() + RETRY),
            Err(Refused::Failed) => state.fail(),
        }
    }

    /// Whether the time of change of this version is over; noted as seen then.
    fn is_settled(&self, version: Version) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        let (_, since) = *match &mut state.seen {
            Some(seen) if seen.0 == version => seen,
            seen => seen.insert((version, now)),
        };
        now - since >= SETTLED || version.mtime.secs < Timestamp::now().secs - CLOCK_SKEW_SECS
    }

    /// Whether it is time to look at them again; noted as done then.
    fn is_look_due(&self) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        let due = state.looked.is_none_or(|at| now - at >= LOOK);
        if due {
            state.looked = Some(now);
        }
        due
    }

    /// Gives up a lane. One that was found `wrong` counts as a failed attempt; one that was lost may
    /// come again with its gateway.
    pub(crate) fn leave(&self, handle: &Arc<Handle>, wrong: bool) {
        let mut state = self.lock();
        let left: Vec<Lane> =
            state.lanes.extract_if(.., |lane| Arc::ptr_eq(&lane.handle, handle)).collect();
        if wrong && !left.is_empty() {
            state.fail();
        }
        drop(state);
        drop(left);
    }
}

impl State {
    fn fail(&mut self) {
        self.retry_at = Some(Instant::now() + RETRY * (1 << self.failures.min(ATTEMPTS)));
        self.failures += 1;
    }
}

/// What attempts need.
pub(crate) struct Ground {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) recent: Arc<Recent>,
    /// Its end is the end of all attempts.
    pub(crate) wanted: watch::Receiver<()>,
}

impl File {
    /// The handle for a large read, other than the home's. Sees to it that the file is opened
    /// through further gateways where that is worth it.
    pub(crate) fn lane(self: &Arc<File>, ground: &Arc<Ground>, len: u32) -> Option<Arc<Handle>> {
        if self.flags.access != Access::Read || self.named.is_written() {
            return None;
        }
        let gateways = &ground.gateways;
        let home = self.home().member.index;
        let carried = self.lanes.carried.fetch_add(len.into(), Ordering::Relaxed) + u64::from(len);
        if carried >= WORTHWHILE_BYTES {
            for member in &gateways.members {
                let fit = member.index != home && member.is_usable() && member.has_room();
                if fit && self.lanes.begin(member.index) {
                    let attempt = attempt(ground.clone(), Arc::downgrade(self), member.clone());
                    tokio::spawn(attempt);
                }
            }
        }
        let lanes = self.lanes.usable(self.named.changes());
        if lanes.is_empty() {
            return None;
        }
        if self.lanes.is_look_due() {
            tokio::spawn(look_again(ground.clone(), Arc::downgrade(self)));
        }
        let among = lanes.iter().fold(Set::of(home), |set, lane| set.with(lane.member.index));
        let chosen = gateways.carries_soonest(len, among)?;
        lanes.into_iter().find(|lane| lane.member.index == chosen)
    }

    /// A handle elsewhere that is as good as the home's.
    pub(crate) fn any_lane(&self) -> Option<Arc<Handle>> {
        self.lanes.usable(self.named.changes()).into_iter().next()
    }
}

/// Opens the file at `member`, and lets it prove that it shows the same.
async fn attempt(ground: Arc<Ground>, file: Weak<File>, member: Arc<Member>) {
    let mut wanted = ground.wanted.clone();
    let lane = tokio::select! {
        lane = open_and_compare(&ground, &file, &member) => lane,
        _ = wanted.changed() => return,
    };
    if matches!(lane, Err(Refused::Failed)) {
        tracing::debug!(gateway = ?member.name, "a file is not read through this gateway as well");
    }
    if let Some(file) = file.upgrade() {
        file.lanes.end(member.index, lane);
    }
}

async fn open_and_compare(
    ground: &Ground,
    file: &Weak<File>,
    member: &Arc<Member>,
) -> Result<Lane, Refused> {
    let strong = || file.upgrade().ok_or(Refused::Failed);
    // The file itself is not held, so that it can be closed meanwhile.
    let (home, name, changes) = {
        let file = strong()?;
        (file.home(), file.named.name().ok_or(Refused::Failed)?, file.named.changes())
    };
    if ground.recent.of(&name).is_some() || strong()?.named.is_written() {
        return Err(Refused::TooYoung);
    }
    let open = async {
        let call = member.remote.open(&name, OpenFlags::existing(Access::Read));
        let opened = ground.gateways.ask(member, Weight::Small, call).await?;
        let handle = Arc::new(Handle::new(member, opened.fh));
        base::Result::Ok((handle, opened.attr))
    };
    let (opened, before) = tokio::join!(open, look(ground, &home));
    let ((handle, here), before) = match (opened, before) {
        (Ok(opened), Ok(before)) => (opened, before),
        (Err(errno), _) | (_, Err(errno)) => {
            tracing::debug!(gateway = ?member.name, "a second look at a file failed: {errno}");
            return Err(Refused::Failed);
        }
    };
    let version = Version::of(&before);
    if here.kind != FileKind::Regular || Version::of(&here) != version {
        return Err(Refused::Failed);
    }
    if !strong()?.lanes.is_settled(version) {
        return Err(Refused::TooYoung);
    }
    if !reads_alike(ground, &home, &handle, version.size).await {
        return Err(Refused::Failed);
    }
    let (after, still_here) = tokio::join!(look(ground, &home), look(ground, &handle));
    let is_same = |attr: base::Result<Attr>| attr.is_ok_and(|attr| Version::of(&attr) == version);
    if !is_same(after) || !is_same(still_here) || !strong()?.named.agree(version, changes) {
        return Err(Refused::Failed);
    }
    Ok(Lane { handle, changes })
}

/// The attributes of an open file.
async fn look(ground: &Ground, handle: &Handle) -> base::Result<Attr> {
    let call = handle.member.remote.fstat(handle.fh());
    ground.gateways.ask(&handle.member, Weight::Small, call).await
}

/// Whether both handles show the same bytes in some places.
async fn reads_alike(ground: &Ground, one: &Handle, other: &Handle, size: u64) -> bool {
    let end = size.saturating_sub(u64::from(COMPARED_BYTES));
    for offset in [0, end / 2, end] {
        let read = async |handle: &Handle| {
            let call = handle.member.remote.read(handle.fh(), offset, COMPARED_BYTES);
            ground.gateways.ask(&handle.member, Weight::Read(COMPARED_BYTES), call).await
        };
        match tokio::join!(read(one), read(other)) {
            (Ok(one), Ok(other)) if one.to_vec() == other.to_vec() => {}
            _ => return false,
        }
    }
    true
}

/// Looks whether all handles still show the same.
async fn look_again(ground: Arc<Ground>, file: Weak<File>) {
    let mut wanted = ground.wanted.clone();
    let looked = async {
        let (home, changes, begun) =
            file.upgrade().map(|file| (file.home(), file.named.changes(), file.changes_begun()))?;
        let attr = look(&ground, &home).await.ok()?;
        let lanes = {
            let file = file.upgrade()?;
            file.showed(&home, &attr, begun);
            file.lanes.usable(changes)
        };
        for lane in lanes {
            let here = look(&ground, &lane).await;
            if !here.is_ok_and(|here| Version::of(&here) == Version::of(&attr)) {
                tracing::debug!(gateway = ?lane.member.name, "it shows another version of a file");
                file.upgrade()?.lanes.leave(&lane, true);
            }
        }
        Some(())
    };
    tokio::select! {
        _ = looked => {}
        _ = wanted.changed() => {}
    }
}
