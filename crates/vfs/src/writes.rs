//! Writes that were acknowledged to the application and are not at the server yet.
//!
//! A write is *gathered* with those that follow it without a gap, as long as another one through
//! the same handle is on its way, as Nagle's algorithm does it. It is *sent* when the remote has
//! it. What is gathered is sent when the request is full, when the last write of its handle on its
//! way is answered, and as soon as anybody asks for something that it could change. So nothing
//! waits for a timer, and a single write goes out at once.
//!
//! What is appended is not gathered, with one exception. The kernel cuts a write through its page
//! cache where a page ends, and between the two parts another machine could append something. So
//! an append that ends with a page waits for the rest: until it comes, until something else comes
//! through the same handle, or for a second; no more than [`REST`] once somebody asks for what it
//! changes.
//!
//! Invariants:
//! 1. Whoever asks the server for content or attributes of a file first waits for the writes that
//!    could change the answer, so a mount always reads what it has written.
//! 2. A write's error is kept until the handle it came through reports it, once.
//! 3. Writes of a handle are given to the remote in the order in which they began. One thread at a
//!    time gives them; others leave theirs in the queue for it.
//! 4. Something is gathered for a handle only while another write of it is on its way, whose end
//!    sends it, or, if it may be the first part of an append, for a bounded time.
//!
//! The lock is held for a few instructions, and never while a write is given to the remote.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::write_behind::{Batch, Load};

/// Writes of one file that may be under way: enough to fill any window with requests of 4 KiB,
/// and few enough that going through all of them costs less than one of them.
const MAX_WRITES: usize = 1024;

/// How long whoever asks waits for the rest of what is being appended. The kernel sends it as soon
/// as the first part is acknowledged.
const REST: Duration = Duration::from_millis(20);

/// The writes of one inode. Most are never written to, and have none of it.
#[derive(Default)]
pub(crate) struct Writes {
    begun: OnceLock<Box<Begun>>,
}

#[derive(Default)]
struct Begun {
    state: Mutex<State>,
    /// One was sent, or is over.
    moved: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    by_number: BTreeMap<u64, Write>,
    lanes: Vec<Lane>,
    /// Bytes of all of them.
    bytes: u64,
    /// How many are over.
    answered: u64,
}

struct Write {
    /// The number of the handle it goes through.
    handle: u64,
    range: Range<u64>,
    /// Bytes of content.
    bytes: u64,
    /// It has been given to the remote, so that what is asked through its handle comes after it.
    sent: bool,
}

/// The writes through one handle.
struct Lane {
    handle: u64,
    /// Those in the queue, and those that were sent and not answered.
    on_their_way: usize,
    /// Where the last one that began ends.
    end: u64,
    gathered: Option<Batch>,
    queue: VecDeque<Batch>,
    /// A thread gives the queue to the remote.
    sending: bool,
}

impl Lane {
    /// What is gathered is to be sent.
    fn close(&mut self) {
        if let Some(batch) = self.gathered.take() {
            self.queue(batch);
        }
    }

    fn queue(&mut self, batch: Batch) {
        self.on_their_way += 1;
        self.queue.push_back(batch);
    }

    /// All that has begun was sent.
    fn is_sent(&self) -> bool {
        self.gathered.is_none() && self.queue.is_empty() && !self.sending
    }

    fn is_empty(&self) -> bool {
        self.on_their_way == 0 && self.gathered.is_none() && !self.sending
    }
}

impl State {
    fn lane(&mut self, handle: u64) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.handle == handle)
    }

    fn lane_or_new(&mut self, handle: u64) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.handle == handle);
        let at = at.unwrap_or_else(|| {
            self.lanes.push(Lane {
                handle,
                on_their_way: 0,
                end: 0,
                gathered: None,
                queue: VecDeque::new(),
                sending: false,
            });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    fn drop_empty(&mut self, handle: u64) {
        self.lanes.retain(|lane| lane.handle != handle || !lane.is_empty());
    }
}

impl Writes {
    /// Adds `load` to what is gathered for `handle`, if it goes on where that ends and there is
    /// room in a request of `most` bytes; to be followed by [`Writes::send`]. Otherwise it is given
    /// back, to [`begin`](Writes::begin).
    pub(crate) fn join(&self, handle: u64, load: Load, most: u32) -> Result<(), Load> {
        let Some(mut state) = self.lock() else { return Err(load) };
        let state = &mut *state;
        let Some(lane) = state.lane(handle) else { return Err(load) };
        let Some(batch) = &mut lane.gathered else { return Err(load) };
        if !batch.load.fits(&load, most) {
            return Err(load);
        }
        let (number, bytes) = (batch.number, load.len());
        batch.load.join(load);
        let range = batch.load.range();
        lane.end = range.end;
        let whole = batch.load.appends() && !batch.load.is_cut();
        if whole || batch.load.len() >= u64::from(most) {
            lane.close();
        }
        state.bytes += bytes;
        if let Some(write) = state.by_number.get_mut(&number) {
            write.range = range;
            write.bytes += bytes;
        }
        Ok(())
    }

    /// A write begins; tells its number, and whether it waits for others. To be followed by [`Writes::send`], and, when it is over, by
    /// [`Writes::end`]. One to be `gather`ed waits, if it goes on where another one on its way
    /// ends.
    pub(crate) fn begin(
        &self,
        handle: u64,
        gather: bool,
        load: Load,
        batch: impl FnOnce(u64, Load) -> Batch,
    ) -> (u64, bool) {
        let mut state = self.begun.get_or_init(Box::default).lock();
        let state = &mut *state;
        let number = state.next;
        state.next += 1;
        let (range, bytes) = (load.range(), load.len());
        let write = Write { handle, range: range.clone(), bytes, sent: false };
        state.bytes += bytes;
        state.by_number.insert(number, write);
        let lane = state.lane_or_new(handle);
        lane.close();
        let goes_on = range.start == lane.end;
        lane.end = range.end;
        let has_company = gather && goes_on && lane.on_their_way > 0;
        let waits = load.is_cut() || has_company;
        let batch = batch(number, load);
        if waits {
            lane.gathered = Some(batch);
        } else {
            lane.queue(batch);
        }
        (number, waits)
    }

    /// Something else than a write goes out through `handle`, behind all that was sent. It changes
    /// no content. To be followed by [`Writes::sent`], and by [`Writes::end`].
    pub(crate) fn begin_other(&self, handle: u64) -> u64 {
        let mut state = self.begun.get_or_init(Box::default).lock();
        let number = state.next;
        state.next += 1;
        state.by_number.insert(number, Write { handle, range: 0..0, bytes: 0, sent: false });
        state.lane_or_new(handle).on_their_way += 1;
        number
    }

    /// It has been given to the remote.
    pub(crate) fn sent(&self, number: u64) {
        let Some(begun) = self.begun.get() else { return };
        if let Some(write) = begun.lock().by_number.get_mut(&number) {
            write.sent = true;
        }
        begun.moved.notify_waiters();
    }

    /// Gives what is in the queue of `handle` to the remote. Must be called within a tokio
    /// runtime.
    pub(crate) fn send(&self, handle: u64) {
        loop {
            let batch = {
                let Some(mut state) = self.lock() else { return };
                let Some(lane) = state.lane(handle) else { return };
                if lane.sending {
                    return;
                }
                let Some(batch) = lane.queue.pop_front() else { return };
                lane.sending = true;
                batch
            };
            let sending = Sending { writes: self, handle, number: batch.number };
            batch.send();
            drop(sending);
        }
    }

    /// Sends what has waited for one that is [over](Writes::end), however it ended: also when it was
    /// dropped, unless the runtime is gone with it.
    pub(crate) fn send_after(&self, handle: u64) {
        if Handle::try_current().is_ok() {
            self.send(handle);
        }
    }

    /// Bytes of all writes that are not over.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.lock().map_or(0, |state| state.bytes)
    }

    /// How many writes are over, of all that there ever were.
    pub(crate) fn answered(&self) -> u64 {
        self.lock().map_or(0, |state| state.answered)
    }

    /// How many writes are on their way through `handle` that have been given to the remote.
    pub(crate) fn sent_through(&self, handle: u64) -> usize {
        let Some(state) = self.lock() else { return 0 };
        state.by_number.values().filter(|write| write.handle == handle && write.sent).count()
    }

    /// A write is over, however it ended. What has waited for it is to be [sent](Writes::send).
    pub(crate) fn end(&self, number: u64) {
        let Some(begun) = self.begun.get() else { return };
        let mut state = begun.lock();
        let Some(write) = state.by_number.remove(&number) else { return };
        state.bytes -= write.bytes;
        state.answered += 1;
        if let Some(lane) = state.lane(write.handle) {
            lane.on_their_way -= 1;
            let waits_for_rest = lane.gathered.as_ref().is_some_and(|batch| batch.load.is_cut());
            if lane.on_their_way == 0 && !waits_for_rest {
                lane.close();
            }
        }
        state.drop_empty(write.handle);
        drop(state);
        begun.moved.notify_waiters();
    }

    /// Sends what is gathered of all handles whose requests `are_meant`.
    fn send_gathered(&self, are_meant: impl Fn(u64, &Batch) -> bool) {
        let handles: Vec<u64> = {
            let Some(mut state) = self.lock() else { return };
            let meant = |lane: &&mut Lane| {
                let gathered = lane.gathered.as_ref();
                gathered.is_some_and(|batch| are_meant(lane.handle, batch))
            };
            let lanes = state.lanes.iter_mut().filter(meant);
            lanes
                .map(|lane| {
                    lane.close();
                    lane.handle
                })
                .collect()
        };
        handles.into_iter().for_each(|handle| self.send(handle));
    }

    /// Sends all that is gathered. Must be called within a tokio runtime, as must be what follows.
    pub(crate) fn send_all(&self) {
        self.send_gathered(|_, _| true);
    }

    /// Sends all of which nothing is likely to be still to come. Whether that was all.
    pub(crate) fn send_whole(&self, now: Instant) -> bool {
        let waits = |batch: &Batch| batch.load.is_cut() && now < batch.gathered_at + REST;
        self.send_gathered(|_, batch| !waits(batch));
        self.lock().is_none_or(|state| state.lanes.iter().all(|lane| lane.gathered.is_none()))
    }

    /// Sends what is gathered of `handle`.
    pub(crate) fn send_of(&self, handle: u64) {
        self.send_gathered(|other, _| other == handle);
    }

    /// Sends the request with this number, if it is still gathered.
    pub(crate) fn send_one(&self, number: u64) {
        self.send_gathered(|_, batch| batch.number == number);
    }

    /// Sends what is gathered of all handles whose requests `are_meant`, for somebody who asks for
    /// it; of what may be the first part of an append, a [moment](REST) later than the rest.
    async fn hurry(&self, are_meant: impl Fn(u64, &Batch) -> bool) {
        self.send_gathered(|handle, batch| !batch.load.is_cut() && are_meant(handle, batch));
        let is_meant = |lane: &Lane| {
            let gathered = lane.gathered.as_ref();
            gathered.is_some_and(|batch| are_meant(lane.handle, batch))
        };
        let all_sent = self.until(|state| !state.lanes.iter().any(is_meant));
        if timeout(REST, all_sent).await.is_err() {
            self.send_gathered(are_meant);
        }
    }

    /// Waits until there is room for another one of `bytes` within `bound`.
    pub(crate) async fn room(&self, bytes: u64, bound: u64) {
        self.until(|state| {
            let fits = state.bytes + bytes <= bound && state.by_number.len() < MAX_WRITES;
            fits || state.bytes == 0
        })
        .await;
    }

    /// Waits until all writes that have begun by now are over.
    pub(crate) async fn drained(&self) {
        let Some(before) = self.next() else { return };
        self.hurry(|_, batch| batch.number < before).await;
        self.until(|state| state.by_number.range(..before).next().is_none()).await;
    }

    /// The same, of those that go through another handle than `handle`; those through `handle`
    /// have been sent when it returns.
    pub(crate) async fn drained_but(&self, handle: u64) {
        let Some(before) = self.next() else { return };
        self.hurry(|_, batch| batch.number < before).await;
        self.until(|state| {
            let mut writes = state.by_number.range(..before);
            writes.all(|(_, write)| write.handle == handle && write.sent)
        })
        .await;
    }

    /// The same, of those that go through `handle`.
    pub(crate) async fn drained_of(&self, handle: u64) {
        let Some(before) = self.next() else { return };
        self.hurry(|_, batch| batch.number < before).await;
        self.until(|state| {
            state.by_number.range(..before).all(|(_, write)| write.handle != handle)
        })
        .await;
    }

    /// Waits until a write to `range` through `handle` overtakes nothing: until no write that has
    /// begun by now is on its way to any of it through another handle.
    pub(crate) async fn clear_to_write(&self, handle: u64, range: Range<u64>) {
        self.clear_of(&range, |other, _| other == handle).await;
    }

    /// Waits until a read of `range` through `handle` is answered with all that was written to it
    /// by now: what goes through other handles is over, and what goes through `handle` was sent.
    pub(crate) async fn clear_to_read(&self, handle: u64, range: Range<u64>) {
        self.clear_of(&range, |other, sent| other == handle && sent).await;
    }

    /// Waits until every write to a part of `range` that has begun by now is over, or one that
    /// `counts` as that, by its handle and whether it was sent.
    async fn clear_of(&self, range: &Range<u64>, counts: impl Fn(u64, bool) -> bool) {
        let apart = |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
        let before = {
            let Some(state) = self.lock() else { return };
            // Nearly always there is at most one who writes, and all that he has written is sent.
            let all_count = |lane: &Lane| counts(lane.handle, lane.is_sent());
            if state.lanes.iter().all(all_count) {
                return;
            }
            state.next
        };
        let meant = |handle: u64, batch: &Batch| {
            batch.number < before && !counts(handle, false) && !apart(&batch.load.range())
        };
        self.hurry(meant).await;
        self.until(|state| {
            let mut writes = state.by_number.range(..before);
            writes.all(|(_, write)| counts(write.handle, write.sent) || apart(&write.range))
        })
        .await;
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        let Some(begun) = self.begun.get() else { return };
        loop {
            if reached(&begun.lock()) {
                return;
            }
            let moved = begun.moved.notified();
            tokio::pin!(moved);
            // Registered before the second look, so that nothing in between is missed.
            moved.as_mut().enable();
            if reached(&begun.lock()) {
                return;
            }
            moved.await;
        }
    }

    /// The number of the next write; `None` if there was never one.
    fn next(&self) -> Option<u64> {
        Some(self.lock()?.next)
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.begun.get()?.lock())
    }
}

impl Begun {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One write is being given to the remote; it has been when this is dropped.
struct Sending<'a> {
    writes: &'a Writes,
    handle: u64,
    number: u64,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let Some(begun) = self.writes.begun.get() else { return };
        let mut state = begun.lock();
        if let Some(lane) = state.lane(self.handle) {
            lane.sending = false;
        }
        if let Some(write) = state.by_number.get_mut(&self.number) {
            write.sent = true;
        }
        state.drop_empty(self.handle);
        drop(state);
        begun.moved.notify_waiters();
    }
}
