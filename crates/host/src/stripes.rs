//! Striped handles: further handles of an open file, on other sessions.
//!
//! If much of a file is read or written, it is also opened on each session that carries content
//! ([`crate::scaling`]), and large requests are striped over these handles. Metadata, small
//! requests and attribute changes stay on the first handle.
//!
//! The name may lead to another file by now, and SFTP has no file number. So a further handle is
//! used only after it was verified to be of the same file:
//! - Its attributes are between those of the first handle before and after.
//! - For reads: both handles return the same bytes at some offsets. Another file with this content,
//!   size, times and owner would be taken for unchanged anyway.
//! - For writes, and for reads once the first handle has written: size or mtime change together
//!   with those of the first handle. This shows within a round trip for a file that grows, within a
//!   second for one that is overwritten.
//!
//! A handle that fails this check is closed; the open is retried a few times.
//!
//! Append handles are never striped, since the order of writes determines the content.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Access, Attr, FileKind, Mutex, OpenFlags};
use sftp::FileAttrs;
use tokio::time::Instant;

use crate::attr;
use crate::chunk_request::Route;
use crate::flow_control::Slots;
use crate::handles::{OpenFile, OpenHandle};
use crate::pool::Pool;
use crate::session::Session;

/// Bytes through a handle before the file is opened on other sessions: smaller transfers end before
/// that pays off.
const MIN_STRIPED_BYTES: u64 = 1 << 20;

/// Failed attempts until no more are made for a file.
const MAX_FAILURES: u32 = 5;

/// Time from a failed attempt to the next.
const RETRY_DELAY: Duration = Duration::from_secs(3);

/// Maximum number of checks of a file that is written. With the intervals they take more than the
/// two seconds in which a time stamp of whole seconds has changed.
const CHECKS: usize = 24;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes compared at each offset.
const COMPARED_BYTES: u32 = 4096;

/// One further handle.
struct Stripe {
    open: Arc<OpenHandle>,
    /// Verified while the file was written.
    verified_for_writes: bool,
}

#[derive(Default)]
struct State {
    stripes: Vec<Stripe>,
    /// Sessions with an attempt in progress.
    attempting: Slots,
    failures: u32,
    retry_at: Option<Instant>,
}

/// The further handles of one open file.
#[derive(Default)]
pub(crate) struct Stripes {
    state: Mutex<State>,
    /// Bytes of large requests so far.
    transferred: AtomicU64,
    /// The file was written through this handle.
    written: AtomicBool,
}

impl Stripes {
    /// The handles for a large request among the `active` sessions; `first` if there is no other.
    fn route(&self, first: &Arc<OpenHandle>, active: Slots) -> Route {
        let verified_for_writes = self.written.load(Ordering::SeqCst);
        let mut state = self.state.lock();
        if state.stripes.is_empty() {
            return Route::One(first.clone());
        }
        state.stripes.retain(|stripe| stripe.open.session.is_alive());
        let usable = state.stripes.iter().filter(|stripe| {
            active.contains(stripe.open.session.slot)
                && (stripe.verified_for_writes || !verified_for_writes)
        });
        let mut usable: Vec<_> = usable.map(|stripe| stripe.open.clone()).collect();
        drop(state);
        match usable.len() {
            0 => Route::One(first.clone()),
            1 => Route::One(usable.remove(0)),
            _ => Route::Many(usable.into()),
        }
    }

    /// The `active` sessions on which to attempt an open now; records the attempts as begun.
    fn begin_attempts(&self, active: Slots) -> Slots {
        let verified_for_writes = self.written.load(Ordering::SeqCst);
        let mut state = self.state.lock();
        if state.retry_at.is_some_and(|at| Instant::now() < at) || state.failures >= MAX_FAILURES {
            return Slots::default();
        }
        let good = state
            .stripes
            .iter()
            .filter(|stripe| stripe.verified_for_writes || !verified_for_writes);
        let good = good.map(|stripe| stripe.open.session.slot).collect();
        let begun = active.difference(state.attempting).difference(good);
        state.attempting = state.attempting.union(begun);
        begun
    }

    fn end_attempt(&self, slot: usize, stripe: Option<Stripe>) {
        let mut state = self.state.lock();
        state.attempting = state.attempting.without(slot);
        match stripe {
            Some(stripe) => {
                state.stripes.retain(|old| old.open.session.slot != slot);
                state.stripes.push(stripe);
                state.retry_at = None;
            }
            None => {
                state.failures += 1;
                state.retry_at = Some(Instant::now() + RETRY_DELAY);
            }
        }
    }

    /// The handle on this session that is not verified for writes, if there is one.
    fn unverified(&self, session: &Arc<Session>) -> Option<Arc<OpenHandle>> {
        let state = self.state.lock();
        let here = state.stripes.iter().find(|stripe| Arc::ptr_eq(&stripe.open.session, session));
        here.map(|stripe| stripe.open.clone())
    }

    /// Takes all further handles.
    fn take(&self) -> Vec<Arc<OpenHandle>> {
        let stripes = std::mem::take(&mut self.state.lock().stripes);
        stripes.into_iter().map(|stripe| stripe.open).collect()
    }

    /// Those of these sessions that have handles through which the file may have been written.
    pub(crate) fn written_on(&self, slots: Slots) -> Slots {
        let state = self.state.lock();
        let written = state.stripes.iter().filter(|stripe| stripe.verified_for_writes);
        let on = written.map(|stripe| stripe.open.session.slot);
        on.filter(|slot| slots.contains(*slot)).collect()
    }

    /// Closes the handles on these sessions.
    pub(crate) fn close_on(&self, slots: Slots) {
        let mut state = self.state.lock();
        let left: Vec<_> = state
            .stripes
            .extract_if(.., |stripe| slots.contains(stripe.open.session.slot))
            .collect();
        drop(state);
        // Closed without holding the lock.
        drop(left);
    }
}

impl OpenFile {
    /// The handles for a request of this size; `changes` if it changes the file. Starts opening the
    /// file on further sessions if that is worth it.
    pub(crate) fn route(
        self: &Arc<OpenFile>,
        pool: &Arc<Pool>,
        bytes: u64,
        is_large: bool,
        changes: bool,
    ) -> Route {
        if changes {
            self.stripes.written.store(true, Ordering::SeqCst);
        }
        let active = pool.active();
        if !is_large || self.flags.append {
            return Route::One(self.open.clone());
        }
        let transferred = self.stripes.transferred.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if active.is_empty() {
            return Route::One(self.open.clone());
        }
        if transferred >= MIN_STRIPED_BYTES {
            for slot in self.stripes.begin_attempts(active).iter() {
                tokio::spawn(attempt(pool.clone(), Arc::downgrade(self), slot));
            }
        }
        self.stripes.route(&self.open, active)
    }

    /// All handles, the first one first; to be closed.
    pub(crate) fn all_handles(&self) -> Vec<Arc<OpenHandle>> {
        let mut all = vec![self.open.clone()];
        all.extend(self.stripes.take());
        all
    }

    /// A handle for requests on the whole content.
    pub(crate) fn any_handle(&self, active: Slots) -> Arc<OpenHandle> {
        match self.stripes.route(&self.open, active) {
            Route::One(open) => open,
            Route::Many(all) => all[0].clone(),
        }
    }
}

/// Opens the file on the session at `slot` and verifies the handle.
async fn attempt(pool: Arc<Pool>, file: Weak<OpenFile>, slot: usize) {
    let opening = open_and_verify(&pool, &file, slot);
    let Some(stripe) = pool.lifetime.run(opening).await else { return };
    if stripe.is_none() {
        tracing::debug!(session = slot, "the file is not striped over this session");
    }
    if let Some(file) = file.upgrade() {
        file.stripes.end_attempt(slot, stripe);
    }
}

async fn open_and_verify(pool: &Pool, file: &Weak<OpenFile>, slot: usize) -> Option<Stripe> {
    let session = pool.live(slot)?;
    let (first, flags, existing) = {
        let file = file.upgrade()?;
        (file.open.session.clone(), file.flags, file.stripes.unverified(&session))
    };
    if !first.is_same_machine(&session).await.ok()? {
        return None;
    }
    let opening = async {
        match existing {
            Some(open) => Some(open),
            None => open_again(file, session, flags, pool.config.follow_symlinks).await,
        }
    };
    // The replies of the first handle wait behind the requests in flight there.
    let (open, before) = tokio::join!(opening, fstat_first(file));
    let (open, before) = (open?, before?);
    let verified_for_writes = file.upgrade()?.stripes.written.load(Ordering::SeqCst);
    let verified = match verified_for_writes {
        true => changes_together(file, &open, before).await?,
        false => matches_reads(file, &open, before).await?,
    };
    verified.then_some(Stripe { open, verified_for_writes })
}

/// Opens the path of `file` again, if it was not removed.
async fn open_again(
    file: &Weak<OpenFile>,
    session: Arc<Session>,
    flags: OpenFlags,
    follow: bool,
) -> Option<Arc<OpenHandle>> {
    let full = session.path(&file.upgrade()?.open_path.name()?).ok()?;
    let client = &session.client;
    // Before the open, and alone: OpenSSH's server blocks while it opens a named pipe, until the
    // other end is opened.
    let attrs = if follow { client.stat(&full) } else { client.lstat(&full) };
    if attr::kind(&attrs.await.ok()?) != Some(FileKind::Regular) {
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
async fn fstat(open: &OpenHandle) -> Option<Attr> {
    attr::from_wire(&open.session.client.fstat(&open.handle).await.ok()?).ok()
}

/// The attributes by the first handle, without keeping that handle open.
async fn fstat_first(file: &Weak<OpenFile>) -> Option<Attr> {
    let first = file.upgrade()?.open.clone();
    fstat(&first).await
}

/// Verifies a handle of a file that is only read through this mount.
async fn matches_reads(file: &Weak<OpenFile>, open: &OpenHandle, before: Attr) -> Option<bool> {
    if file.upgrade()?.flags.access == Access::Write {
        return Some(false);
    }
    let here = fstat(open).await?;
    let (after, same_bytes) =
        tokio::join!(fstat_first(file), reads_same_bytes(file, open, here.size));
    Some(same_bytes? && here.is_between(&before, &after?))
}

/// Whether both handles return the same bytes at some offsets.
async fn reads_same_bytes(file: &Weak<OpenFile>, open: &OpenHandle, size: u64) -> Option<bool> {
    let first = file.upgrade()?.open.clone();
    let end = size.saturating_sub(u64::from(COMPARED_BYTES));
    let places = [0, end / 3, end / 2, end];
    let read = |open: &OpenHandle| {
        let read = |offset| open.session.client.read(&open.handle, offset, COMPARED_BYTES);
        base::join_in_order(places.map(read))
    };
    let (one, other) = tokio::join!(read(&first), read(open));
    for (one, other) in one.into_iter().zip(other) {
        if one.ok()? != other.ok()? {
            return Some(false);
        }
    }
    Some(true)
}

/// Verifies a handle of a file that is written through this mount.
async fn changes_together(
    file: &Weak<OpenFile>,
    open: &OpenHandle,
    mut before: Attr,
) -> Option<bool> {
    let mut seen: Option<Attr> = None;
    for _ in 0..CHECKS {
        let here = fstat(open).await?;
        let after = fstat_first(file).await?;
        if !here.is_between(&before, &after) {
            return Some(false);
        }
        let now = (here.size, here.mtime);
        match &seen {
            Some(seen) if (seen.size, seen.mtime) != now => return Some(true),
            Some(_) => tokio::time::sleep(CHECK_INTERVAL).await,
            None => seen = Some(here),
        }
        before = after;
    }
    Some(false)
}
