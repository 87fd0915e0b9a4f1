//! Further handles of an open file, on other sessions.
//!
//! A file of which much is read or written is opened once more on each session that carries
//! content ([`crate::growth`]), and its large requests go over those from then on. Metadata, small
//! requests and what changes attributes stay with the first handle.
//!
//! The name may lead to another file by now, and SFTP has no number that tells one file from
//! another. So before a further handle is used it has to prove that it is of the same file:
//! - Its attributes are between those that the first handle shows before and after.
//! - To be read through: both handles show the same bytes in some places. With the same size,
//!   times and owner, another file would be one that all of us take for unchanged.
//! - To be written through, and to be read through once the first handle has written: size or
//!   time are seen to change in step with those of the first handle. A file that grows does so
//!   within a round trip, one that is overwritten within a second.
//!
//! A handle that cannot prove it is closed. It may be tried again a few times.
//!
//! What appends is never spread: the order of its writes is the content.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::{Access, Attr, FileKind, OpenFlags};
use sftp::FileAttrs;
use tokio::time::Instant;

use crate::gate::Slots;
use crate::handles::{OpenFile, OpenHandle};
use crate::piece::Route;
use crate::pool::Pool;
use crate::session::Session;
use crate::{attr, gather, machine};

/// Bytes that have gone through a handle before it is opened elsewhere: less is over before that
/// pays.
const WORTHWHILE_BYTES: u64 = 1 << 20;

/// Attempts for one file.
const ATTEMPTS: u32 = 5;

/// Time from a failed attempt to the next.
const RETRY: Duration = Duration::from_secs(3);

/// Looks at a file that is written, at most: with the pauses more than the two seconds in which a
/// time stamp of whole seconds has changed.
const LOOKS: usize = 24;

/// Pause between those looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes that are compared in one place.
const COMPARED_BYTES: u32 = 4096;

/// One further handle.
struct Lane {
    open: Arc<OpenHandle>,
    /// Proven for a file that is written.
    in_step: bool,
}

#[derive(Default)]
struct State {
    lanes: Vec<Lane>,
    /// Sessions on which an attempt is under way.
    trying: Slots,
    failures: u32,
    retry_at: Option<Instant>,
}

/// The further handles of one open file.
#[derive(Default)]
pub(crate) struct Lanes {
    state: Mutex<State>,
    /// Large requests so far, in bytes.
    carried: AtomicU64,
    /// The file was written through this handle.
    written: AtomicBool,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a large request may go among the `active` sessions; `first` where nothing better is
    /// there.
    fn route(&self, first: &Arc<OpenHandle>, active: Slots) -> Route {
        let in_step = self.written.load(Ordering::SeqCst);
        let mut state = self.lock();
        if state.lanes.is_empty() {
            return Route::One(first.clone());
        }
        state.lanes.retain(|lane| lane.open.session.is_alive());
        let usable = state
            .lanes
            .iter()
            .filter(|lane| active.has(lane.open.session.slot) && (lane.in_step || !in_step));
        let mut usable: Vec<_> = usable.map(|lane| lane.open.clone()).collect();
        drop(state);
        match usable.len() {
            0 => Route::One(first.clone()),
            1 => Route::One(usable.remove(0)),
            _ => Route::Many(usable.into()),
        }
    }

    /// The `active` sessions on which an attempt is to be made now; noted as begun.
    fn begin(&self, active: Slots) -> Slots {
        let in_step = self.written.load(Ordering::SeqCst);
        let mut state = self.lock();
        if state.retry_at.is_some_and(|at| Instant::now() < at) || state.failures >= ATTEMPTS {
            return Slots::default();
        }
        let good = state.lanes.iter().filter(|lane| lane.in_step || !in_step);
        let good = good.fold(state.trying, |slots, lane| slots.with(lane.open.session.slot));
        let begun = active.without(good);
        state.trying = Slots::from_bits(state.trying.bits() | begun.bits());
        begun
    }

    fn end(&self, slot: usize, lane: Option<Lane>) {
        let mut state = self.lock();
        state.trying = state.trying.without(Slots::of(slot));
        match lane {
            Some(lane) => {
                state.lanes.retain(|old| old.open.session.slot != slot);
                state.lanes.push(lane);
                state.retry_at = None;
            }
            None => {
                state.failures += 1;
                state.retry_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// The handle on this session, if there is one that is not in step.
    fn to_be_proven(&self, session: &Arc<Session>) -> Option<Arc<OpenHandle>> {
        let state = self.lock();
        let here = state.lanes.iter().find(|lane| Arc::ptr_eq(&lane.open.session, session));
        here.map(|lane| lane.open.clone())
    }

    /// Takes all of them out.
    fn take(&self) -> Vec<Arc<OpenHandle>> {
        let lanes = std::mem::take(&mut self.lock().lanes);
        lanes.into_iter().map(|lane| lane.open).collect()
    }

    /// Gives up the handles on these sessions.
    pub(crate) fn leave(&self, slots: Slots) {
        let mut state = self.lock();
        let left: Vec<_> =
            state.lanes.extract_if(.., |lane| slots.has(lane.open.session.slot)).collect();
        drop(state);
        // Closed without the lock.
        drop(left);
    }
}

impl OpenFile {
    /// The way for a request of this size, and whether it changes the file. Sees to it that the
    /// file is opened on further sessions where that is worth it.
    pub(crate) fn route(
        self: &Arc<OpenFile>,
        pool: &Arc<Pool>,
        bytes: u64,
        is_large: bool,
        changes: bool,
    ) -> Route {
        if changes {
            self.lanes.written.store(true, Ordering::SeqCst);
        }
        let active = pool.active();
        if !is_large || self.flags.append {
            return Route::One(self.open.clone());
        }
        let carried = self.lanes.carried.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if active.is_empty() {
            return Route::One(self.open.clone());
        }
        if carried >= WORTHWHILE_BYTES {
            for slot in self.lanes.begin(active).iter() {
                tokio::spawn(attempt(pool.clone(), Arc::downgrade(self), slot));
            }
        }
        self.lanes.route(&self.open, active)
    }

    /// All its handles, the first one first; to be closed.
    pub(crate) fn all_handles(&self) -> Vec<Arc<OpenHandle>> {
        let mut all = vec![self.open.clone()];
        all.extend(self.lanes.take());
        all
    }

    /// The handle for what concerns all of the content.
    pub(crate) fn any_lane(&self, active: Slots) -> Arc<OpenHandle> {
        match self.lanes.route(&self.open, active) {
            Route::One(open) => open,
            Route::Many(all) => all[0].clone(),
        }
    }
}

/// Opens the file on the session at `slot` and lets it prove itself.
async fn attempt(pool: Arc<Pool>, file: Weak<OpenFile>, slot: usize) {
    let mut wanted = pool.wanted.clone();
    let lane = tokio::select! {
        lane = open_and_prove(&pool, &file, slot) => lane,
        _ = wanted.changed() => return,
    };
    if lane.is_none() {
        tracing::debug!(session = slot, "a file is not used over this session");
    }
    if let Some(file) = file.upgrade() {
        file.lanes.end(slot, lane);
    }
}

async fn open_and_prove(pool: &Pool, file: &Weak<OpenFile>, slot: usize) -> Option<Lane> {
    let session = pool.living(slot)?;
    let (first, flags, is_there) = {
        let file = file.upgrade()?;
        (file.open.session.clone(), file.flags, file.lanes.to_be_proven(&session))
    };
    if !machine::same(&first, &session).await {
        return None;
    }
    let opening = async {
        match is_there {
            Some(open) => Some(open),
            None => open_again(file, session, flags, pool.config.follow_symlinks).await,
        }
    };
    // The first handle's answers come behind what is on its way there.
    let (open, before) = tokio::join!(opening, look_at_first(file));
    let (open, before) = (open?, before?);
    let in_step = file.upgrade()?.lanes.written.load(Ordering::SeqCst);
    let proven = match in_step {
        true => changes_in_step(file, &open, before).await?,
        false => looks_the_same(file, &open, before).await?,
    };
    proven.then_some(Lane { open, in_step })
}

/// Opens the name of `file`, if it still has one.
async fn open_again(
    file: &Weak<OpenFile>,
    session: Arc<Session>,
    flags: OpenFlags,
    follow: bool,
) -> Option<Arc<OpenHandle>> {
    let full = session.path(&file.upgrade()?.named.name()?).ok()?;
    let client = &session.client;
    // First, and alone: OpenSSH's server waits for the other end of a named pipe that it opens.
    let look = if follow { client.stat(&full) } else { client.lstat(&full) };
    if attr::kind(&look.await.ok()?) != Some(FileKind::Regular) {
        return None;
    }
    let access = match flags.access {
        Access::Read => sftp::OpenFlags::READ,
        Access::Write => sftp::OpenFlags::WRITE,
        Access::ReadWrite => sftp::OpenFlags::READ | sftp::OpenFlags::WRITE,
    };
    let handle = client.open(&full, access, FileAttrs::default()).await.ok()?;
    Some(Arc::new(OpenHandle::new(session, handle)))
}

/// The attributes of an open file.
async fn look(open: &OpenHandle) -> Option<Attr> {
    attr::from_wire(&open.session.client.fstat(&open.handle).await.ok()?).ok()
}

/// The same by the first handle, which is not held open for it.
async fn look_at_first(file: &Weak<OpenFile>) -> Option<Attr> {
    let first = file.upgrade()?.open.clone();
    look(&first).await
}

/// For a file that is only read here.
async fn looks_the_same(file: &Weak<OpenFile>, open: &OpenHandle, before: Attr) -> Option<bool> {
    if file.upgrade()?.flags.access == Access::Write {
        return Some(false);
    }
    let here = look(open).await?;
    let (after, alike) = tokio::join!(look_at_first(file), reads_alike(file, open, here.size));
    Some(alike? && here.is_between(&before, &after?))
}

/// Whether both handles show the same bytes in some places.
async fn reads_alike(file: &Weak<OpenFile>, open: &OpenHandle, size: u64) -> Option<bool> {
    let first = file.upgrade()?.open.clone();
    let end = size.saturating_sub(u64::from(COMPARED_BYTES));
    let places = [0, end / 3, end / 2, end];
    let read = |open: &OpenHandle| {
        let read = |offset| open.session.client.read(&open.handle, offset, COMPARED_BYTES);
        gather::all(places.map(read))
    };
    let (one, other) = tokio::join!(read(&first), read(open));
    for (one, other) in one.into_iter().zip(other) {
        if one.ok()? != other.ok()? {
            return Some(false);
        }
    }
    Some(true)
}

/// For a file that is written here.
async fn changes_in_step(
    file: &Weak<OpenFile>,
    open: &OpenHandle,
    mut before: Attr,
) -> Option<bool> {
    let mut seen: Option<Attr> = None;
    for _ in 0..LOOKS {
        let here = look(open).await?;
        let after = look_at_first(file).await?;
        if !here.is_between(&before, &after) {
            return Some(false);
        }
        let now = (here.size, here.mtime);
        match &seen {
            Some(seen) if (seen.size, seen.mtime) != now => return Some(true),
            Some(_) => tokio::time::sleep(PAUSE).await,
            None => seen = Some(here),
        }
        before = after;
    }
    Some(false)
}
