//! Stripes: further gateways through which an open file is read.
//!
//! A file of which much is read is opened once more through each other gateway, and from then on
//! its large reads are spread over all of them, each read whole through one. Attributes and small
//! reads stay with the primary.
//!
//! Before that, the primary and the further handle have to show the same size and mtime, before and
//! after both have returned the same bytes at some offsets. And the mtime must be past the racy
//! window: it has whole seconds, so two versions of a file that is being written may have the same
//! one. It is past the window when it was first seen some seconds ago, or is more than five minutes
//! old by this machine's clock. While stripes are used, all this is checked again from time to
//! time. They end at once when the file is opened for writing here, changed by its name, or when
//! attributes are about to be shown that differ from the agreed ones
//! ([`crate::open_paths::OpenPath::note_shown`]).
//!
//! A stripe's error or short read is not used: the primary is queried, which alone decides where
//! the file ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Access, Attr, FileKind, Lifetime, Mutex, OpenFlags, Timestamp};
use tokio::time::Instant;

use crate::files::{File, Handle};
use crate::gateways::{GatewaySet, Gateways};
use crate::member::{Member, Weight};
use crate::open_paths::Version;
use crate::recent_changes::RecentChanges;

/// Bytes that are read before the file is opened elsewhere: for a smaller file the opens cost more
/// than they gain.
const STRIPE_AFTER_BYTES: u64 = 1 << 20;

/// Failed attempts per file.
const ATTEMPTS: u32 = 5;

/// Time from a failed attempt to the next; doubles with each.
const RETRY: Duration = Duration::from_secs(3);

/// Time since the mtime was first seen after which it is past the racy window: a second, and some
/// for the lag of gateways.
const SETTLED: Duration = Duration::from_secs(3);

/// Largest assumed difference between the clocks of servers and of this machine, in seconds.
const CLOCK_SKEW_SECS: i64 = 300;

/// Time between two checks of stripes in use. Another machine's change reaches each gateway at its
/// own time; for up to this long two gateways with different versions may be used.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes that are compared at one offset.
const COMPARED_BYTES: u32 = 4096;

struct Stripe {
    handle: Arc<Handle>,
    /// The change count at which its version was agreed on.
    changes: u64,
}

#[derive(Default)]
struct StripeState {
    stripes: Vec<Stripe>,
    /// Gateways at which an attempt is in flight.
    attempting: GatewaySet,
    failures: u32,
    retry_at: Option<Instant>,
    checked_at: Option<Instant>,
    /// The version that was seen last, and when first.
    seen: Option<(Version, Instant)>,
}

/// The further handles of one open file.
#[derive(Default)]
pub(crate) struct Stripes {
    state: Mutex<StripeState>,
    /// Bytes of large reads so far.
    bytes_read: AtomicU64,
}

/// Why a stripe was not opened.
enum Refusal {
    /// The mtime is in the racy window.
    TooYoung,
    /// It shows another version, or could not be opened.
    Failed,
}

impl Stripes {
    /// The usable handles: agreed on since the last change, at usable gateways.
    fn usable(&self, changes: u64) -> Vec<Arc<Handle>> {
        let mut state = self.state.lock();
        let is_good =
            |stripe: &mut Stripe| stripe.changes == changes && stripe.handle.member.is_usable();
        let left: Vec<Stripe> = state.stripes.extract_if(.., |stripe| !is_good(stripe)).collect();
        let good = state.stripes.iter().map(|stripe| stripe.handle.clone()).collect();
        drop(state);
        // Closed without the lock.
        drop(left);
        good
    }

    /// Whether an attempt at this gateway may begin now; if so, records that it did.
    fn begin_attempt(&self, gateway: usize) -> bool {
        let mut state = self.state.lock();
        let pauses = state.retry_at.is_some_and(|at| Instant::now() < at);
        let is_there = state.stripes.iter().any(|stripe| stripe.handle.member.index == gateway);
        if pauses || is_there || state.failures >= ATTEMPTS || state.attempting.contains(gateway) {
            return false;
        }
        state.attempting = state.attempting.with(gateway);
        true
    }

    fn end_attempt(&self, gateway: usize, stripe: Result<Stripe, Refusal>) {
        let mut state = self.state.lock();
        state.attempting = state.attempting.without(gateway);
        match stripe {
            Ok(stripe) => state.stripes.push(stripe),
            Err(Refusal::TooYoung) => state.retry_at = Some(Instant::now() + RETRY),
            Err(Refusal::Failed) => state.fail(),
        }
    }

    /// Whether the mtime of this version is past the racy window; records when the version was
    /// first seen.
    fn is_settled(&self, version: Version) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        let (_, since) = *match &mut state.seen {
            Some(seen) if seen.0 == version => seen,
            seen => seen.insert((version, now)),
        };
        now - since >= SETTLED || version.mtime.secs < Timestamp::now().secs - CLOCK_SKEW_SECS
    }

    /// Whether the next check is due; if so, records it as done.
    fn is_check_due(&self) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        let due = state.checked_at.is_none_or(|at| now - at >= CHECK_INTERVAL);
        if due {
            state.checked_at = Some(now);
        }
        due
    }

    /// Removes a stripe. One that showed something `wrong` counts as a failed attempt; one that was
    /// lost may be opened again when its gateway is back.
    pub(crate) fn remove(&self, handle: &Arc<Handle>, wrong: bool) {
        let mut state = self.state.lock();
        let left: Vec<Stripe> =
            state.stripes.extract_if(.., |stripe| Arc::ptr_eq(&stripe.handle, handle)).collect();
        if wrong && !left.is_empty() {
            state.fail();
        }
        drop(state);
        drop(left);
    }
}

impl StripeState {
    fn fail(&mut self) {
        self.retry_at = Some(Instant::now() + RETRY * (1 << self.failures.min(ATTEMPTS)));
        self.failures += 1;
    }
}

/// The parts of the pool that attempts use.
pub(crate) struct PoolContext {
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) recent: Arc<RecentChanges>,
    /// How long attempts are of use.
    pub(crate) lifetime: Lifetime,
}

impl File {
    /// The handle for a large read if it is not the primary's. Starts opening the file through
    /// further gateways where that pays.
    pub(crate) fn stripe(
        self: &Arc<File>,
        context: &Arc<PoolContext>,
        len: u32,
    ) -> Option<Arc<Handle>> {
        if self.flags.access != Access::Read || self.open_path.has_writers() {
            return None;
        }
        let gateways = &context.gateways;
        let primary = self.primary().member.index;
        let bytes_read =
            self.stripes.bytes_read.fetch_add(len.into(), Ordering::Relaxed) + u64::from(len);
        if bytes_read >= STRIPE_AFTER_BYTES {
            for member in &gateways.members {
                let fit = member.index != primary && member.is_usable() && member.has_room();
                if fit && self.stripes.begin_attempt(member.index) {
                    let attempt = attempt(context.clone(), Arc::downgrade(self), member.clone());
                    tokio::spawn(attempt);
                }
            }
        }
        let stripes = self.stripes.usable(self.open_path.changes());
        if stripes.is_empty() {
            return None;
        }
        if self.stripes.is_check_due() {
            tokio::spawn(recheck(context.clone(), Arc::downgrade(self)));
        }
        let among: GatewaySet = stripes.iter().map(|stripe| stripe.member.index).collect();
        let chosen = gateways.fastest_for(len, among.with(primary))?;
        stripes.into_iter().find(|stripe| stripe.member.index == chosen)
    }

    /// A handle elsewhere that is as good as the primary's.
    pub(crate) fn any_stripe(&self) -> Option<Arc<Handle>> {
        self.stripes.usable(self.open_path.changes()).into_iter().next()
    }
}

/// Opens the file at `member`, and checks that it shows the same version.
async fn attempt(context: Arc<PoolContext>, file: Weak<File>, member: Arc<Member>) {
    let opening = open_and_compare(&context, &file, &member);
    let Some(stripe) = context.lifetime.run(opening).await else { return };
    if matches!(stripe, Err(Refusal::Failed)) {
        tracing::debug!(gateway = ?member.name, "a file is not striped over this gateway");
    }
    if let Some(file) = file.upgrade() {
        file.stripes.end_attempt(member.index, stripe);
    }
}

async fn open_and_compare(
    context: &PoolContext,
    file: &Weak<File>,
    member: &Arc<Member>,
) -> Result<Stripe, Refusal> {
    let strong = || file.upgrade().ok_or(Refusal::Failed);
    // A weak reference, so that the file can be closed meanwhile.
    let (primary, name, changes) = {
        let file = strong()?;
        (file.primary(), file.open_path.name().ok_or(Refusal::Failed)?, file.open_path.changes())
    };
    if context.recent.get(&name).is_some() || strong()?.open_path.has_writers() {
        return Err(Refusal::TooYoung);
    }
    let open = async {
        let call = member.remote.open(&name, OpenFlags::existing(Access::Read));
        let opened = context.gateways.call(member, Weight::Small, call).await?;
        let handle = Arc::new(Handle::new(member, opened.fh));
        base::Result::Ok((handle, opened.attr))
    };
    let (opened, before) = tokio::join!(open, fstat(context, &primary));
    let ((handle, attr_here), before) = match (opened, before) {
        (Ok(opened), Ok(before)) => (opened, before),
        (Err(errno), _) | (_, Err(errno)) => {
            tracing::debug!(gateway = ?member.name, "opening a stripe failed: {errno}");
            return Err(Refusal::Failed);
        }
    };
    let version = Version::of(&before);
    if attr_here.kind != FileKind::Regular || Version::of(&attr_here) != version {
        return Err(Refusal::Failed);
    }
    if !strong()?.stripes.is_settled(version) {
        return Err(Refusal::TooYoung);
    }
    if !reads_alike(context, &primary, &handle, version.size).await {
        return Err(Refusal::Failed);
    }
    let (after, still_here) = tokio::join!(fstat(context, &primary), fstat(context, &handle));
    let is_same = |attr: base::Result<Attr>| attr.is_ok_and(|attr| Version::of(&attr) == version);
    if !is_same(after) || !is_same(still_here) || !strong()?.open_path.agree(version, changes) {
        return Err(Refusal::Failed);
    }
    Ok(Stripe { handle, changes })
}

/// The attributes of an open file.
async fn fstat(context: &PoolContext, handle: &Handle) -> base::Result<Attr> {
    let call = handle.member.remote.fstat(handle.fh());
    context.gateways.call(&handle.member, Weight::Small, call).await
}

/// Whether both handles return the same bytes at some offsets.
async fn reads_alike(context: &PoolContext, one: &Handle, other: &Handle, size: u64) -> bool {
    let end = size.saturating_sub(u64::from(COMPARED_BYTES));
    for offset in [0, end / 2, end] {
        let read = async |handle: &Handle| {
            let call = handle.member.remote.read(handle.fh(), offset, COMPARED_BYTES);
            context.gateways.call(&handle.member, Weight::Read(COMPARED_BYTES), call).await
        };
        match tokio::join!(read(one), read(other)) {
            (Ok(one), Ok(other)) if one.to_vec() == other.to_vec() => {}
            _ => return false,
        }
    }
    true
}

/// Checks that all handles still show the same version.
async fn recheck(context: Arc<PoolContext>, file: Weak<File>) {
    let check = async {
        let (primary, changes, settled) = file
            .upgrade()
            .map(|file| (file.primary(), file.open_path.changes(), file.open_path.settled()))?;
        let attr = fstat(&context, &primary).await.ok()?;
        let stripes = {
            let file = file.upgrade()?;
            file.note_attr(&primary, &attr, settled);
            file.stripes.usable(changes)
        };
        for stripe in stripes {
            let attr_here = fstat(&context, &stripe).await;
            if !attr_here.is_ok_and(|attr_here| Version::of(&attr_here) == Version::of(&attr)) {
                tracing::debug!(gateway = ?stripe.member.name, "this gateway shows another version of a file");
                file.upgrade()?.stripes.remove(&stripe, true);
            }
        }
        Some(())
    };
    context.lifetime.run(check).await;
}
