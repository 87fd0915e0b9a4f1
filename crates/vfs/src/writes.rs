//! The writes of an inode that the server has not acknowledged yet: their order, coalescing, and
//! the calls that wait for them.
//!
//! A write is *coalesced* with the contiguous writes that follow it while another write through the
//! same handle is in flight, as in Nagle's algorithm. It is *sent* when the remote has it.
//! Coalesced writes are sent when the request is full, when the last write in flight of its handle
//! is answered, and as soon as a call requests something that they could change. So no write waits
//! for a timer, and a single write is sent at once.
//!
//! Appends are not coalesced, with one exception. The kernel splits a write through its page cache
//! at the end of a page, and another machine could append between the two parts. So an append that
//! ends with a page waits for the rest: until it arrives, until another request comes through the
//! same handle, or for a second; only for [`PARTIAL_PAGE_GRACE`] if a call requests something that
//! it changes.
//!
//! Invariants:
//! 1. Before a request for content or attributes of a file is sent, the writes that could change
//!    the answer have ended, so a mount always reads its own writes.
//! 2. The error of a write is kept until the handle it came through reports it, once.
//! 3. Writes of a handle are given to the remote in the order in which they began. One thread at a
//!    time does that; others leave theirs in the queue for it.
//! 4. Coalesced writes exist for a handle only while another write of it is in flight, whose end
//!    sends them, or, if they may be the first part of an append, for a bounded time.
//!
//! The lock is held for a few instructions, and never while a write is given to the remote.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{MutexGuard, OnceLock};
use std::time::Duration;

use base::{Mutex, until};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::write_behind::{Extent, WriteRequest};

/// Writes of one file in flight: enough to fill any window with requests of 4 KiB, and few enough
/// that a scan of all costs less than one of them.
const MAX_WRITES: usize = 1024;

/// How long a call that depends on an append waits for its second part. The kernel sends it as soon
/// as the first part has returned.
const PARTIAL_PAGE_GRACE: Duration = Duration::from_millis(20);

/// The writes of one inode. Allocated by the first write, since most files are never written to.
#[derive(Default)]
pub(crate) struct Writes {
    tracker: OnceLock<Box<Tracker>>,
}

#[derive(Default)]
struct Tracker {
    state: Mutex<State>,
    /// A write was sent, or has ended.
    progressed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    by_number: BTreeMap<u64, Write>,
    queues: Vec<HandleQueue>,
    /// Bytes of all writes.
    bytes: u64,
    /// Number of writes that have ended.
    answered: u64,
    /// The file extends to here at the server, or will when all writes have ended; 0 if that is
    /// not known.
    end: u64,
    /// The greatest end of a write, as the kernel assumes it, since `end` was not known.
    written_end: u64,
    /// Number of writes that make a hole.
    holes: usize,
}

struct Write {
    /// The number of its handle.
    handle: u64,
    range: Range<u64>,
    /// What it adds to the file before its content. A read there that overtakes the write finds the
    /// end of the file.
    hole: Range<u64>,
    /// Bytes of content.
    bytes: u64,
    /// It was given to the remote, so later requests through its handle come after it.
    sent: bool,
}

/// The writes through one handle.
struct HandleQueue {
    handle: u64,
    /// Writes in the queue, and writes that were sent and not answered.
    in_flight: usize,
    /// The end of the last write that began.
    end: u64,
    coalesced: Option<WriteRequest>,
    requests: VecDeque<WriteRequest>,
    /// A thread is giving the queue to the remote.
    sending: bool,
}

impl HandleQueue {
    /// Moves the coalesced writes into the queue.
    fn end_coalescing(&mut self) {
        if let Some(request) = self.coalesced.take() {
            self.push(request);
        }
    }

    fn push(&mut self, request: WriteRequest) {
        self.in_flight += 1;
        self.requests.push_back(request);
    }

    /// Whether all writes were sent.
    fn is_sent(&self) -> bool {
        self.coalesced.is_none() && self.requests.is_empty() && !self.sending
    }

    fn is_empty(&self) -> bool {
        self.in_flight == 0 && self.coalesced.is_none() && !self.sending
    }
}

impl State {
    fn queue(&mut self, handle: u64) -> Option<&mut HandleQueue> {
        self.queues.iter_mut().find(|queue| queue.handle == handle)
    }

    fn queue_or_new(&mut self, handle: u64) -> &mut HandleQueue {
        let at = self.queues.iter().position(|queue| queue.handle == handle);
        let at = at.unwrap_or_else(|| {
            self.queues.push(HandleQueue {
                handle,
                in_flight: 0,
                end: 0,
                coalesced: None,
                requests: VecDeque::new(),
                sending: false,
            });
            self.queues.len() - 1
        });
        &mut self.queues[at]
    }

    fn drop_empty(&mut self, handle: u64) {
        self.queues.retain(|queue| queue.handle != handle || !queue.is_empty());
    }
}

impl Writes {
    /// Appends `extent` to the coalesced writes of `handle`, if it is contiguous and both fit into
    /// a request of `most` bytes; must be followed by [`Writes::send`]. Otherwise it is returned,
    /// for [`Writes::begin`].
    pub(crate) fn append(&self, handle: u64, extent: Extent, most: u32) -> Result<(), Extent> {
        let Some(mut state) = self.lock() else { return Err(extent) };
        let state = &mut *state;
        let Some(queue) = state.queue(handle) else { return Err(extent) };
        let Some(request) = &mut queue.coalesced else { return Err(extent) };
        if !request.extent.can_append(&extent, most) {
            return Err(extent);
        }
        let (number, bytes) = (request.number, extent.len());
        request.extent.append(extent);
        let (range, appends) = (request.extent.range(), request.extent.appends());
        let end = request.extent.end();
        queue.end = range.end;
        let complete = appends && !request.extent.is_partial_page();
        if complete || request.extent.len() >= u64::from(most) {
            queue.end_coalescing();
        }
        state.bytes += bytes;
        state.written_end = state.written_end.max(end);
        if !appends {
            state.end = state.end.max(range.end);
        }
        if let Some(write) = state.by_number.get_mut(&number) {
            write.range = range;
            write.bytes += bytes;
        }
        Ok(())
    }

    /// Begins a write. Returns its number, and whether it waits for others. Must be followed by
    /// [`Writes::send`], and by [`Writes::end`] when it has ended. With `coalesce`, it waits if it
    /// is contiguous with another write in flight. `size` is that of the file, if no change has
    /// outdated it.
    pub(crate) fn begin(
        &self,
        handle: u64,
        coalesce: bool,
        size: Option<u64>,
        extent: Extent,
        request: impl FnOnce(u64, Extent) -> WriteRequest,
    ) -> (u64, bool) {
        let mut state = self.tracker.get_or_init(Box::default).state.lock();
        let state = &mut *state;
        let number = state.next;
        state.next += 1;
        let (range, bytes) = (extent.range(), extent.len());
        state.end = size.unwrap_or(state.end);
        state.written_end = state.written_end.max(extent.end());
        let hole = if extent.appends() { 0..0 } else { state.end..range.start };
        if !extent.appends() {
            state.end = state.end.max(range.end);
        }
        state.holes += usize::from(!hole.is_empty());
        let write = Write { handle, range: range.clone(), hole, bytes, sent: false };
        state.bytes += bytes;
        state.by_number.insert(number, write);
        let queue = state.queue_or_new(handle);
        queue.end_coalescing();
        let is_contiguous = range.start == queue.end;
        queue.end = range.end;
        let coalesces = coalesce && is_contiguous && queue.in_flight > 0;
        let waits = extent.is_partial_page() || coalesces;
        let request = request(number, extent);
        if waits {
            queue.coalesced = Some(request);
        } else {
            queue.push(request);
        }
        (number, waits)
    }

    /// Begins a request other than a write through `handle`, behind all writes that were sent. It
    /// changes no content. Must be followed by [`Writes::sent`], and by [`Writes::end`].
    pub(crate) fn begin_other(&self, handle: u64) -> u64 {
        let mut state = self.tracker.get_or_init(Box::default).state.lock();
        let number = state.next;
        state.next += 1;
        state
            .by_number
            .insert(number, Write { handle, range: 0..0, hole: 0..0, bytes: 0, sent: false });
        state.queue_or_new(handle).in_flight += 1;
        number
    }

    /// The request was given to the remote.
    pub(crate) fn sent(&self, number: u64) {
        let Some(tracker) = self.tracker.get() else { return };
        if let Some(write) = tracker.state.lock().by_number.get_mut(&number) {
            write.sent = true;
        }
        tracker.progressed.notify_waiters();
    }

    /// Gives the queue of `handle` to the remote. Must be called within a tokio runtime.
    pub(crate) fn send(&self, handle: u64) {
        loop {
            let request = {
                let Some(mut state) = self.lock() else { return };
                let Some(queue) = state.queue(handle) else { return };
                if queue.sending {
                    return;
                }
                let Some(request) = queue.requests.pop_front() else { return };
                queue.sending = true;
                request
            };
            let sending = Sending { writes: self, handle, number: request.number };
            request.send();
            drop(sending);
        }
    }

    /// Sends the writes that have waited for one that has [ended](Writes::end). Does nothing if the
    /// runtime has ended.
    pub(crate) fn send_after(&self, handle: u64) {
        if Handle::try_current().is_ok() {
            self.send(handle);
        }
    }

    /// Bytes of all writes that have not ended.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.lock().map_or(0, |state| state.bytes)
    }

    /// The number of writes that have ended so far.
    pub(crate) fn answered(&self) -> u64 {
        self.lock().map_or(0, |state| state.answered)
    }

    /// The number of writes through `handle` that were sent and not answered, and whether all of
    /// its writes were sent.
    pub(crate) fn sent_through(&self, handle: u64) -> (usize, bool) {
        let Some(state) = self.lock() else { return (0, true) };
        let writes = || state.by_number.values().filter(|write| write.handle == handle);
        let sent = writes().filter(|write| write.sent).count();
        (sent, sent == writes().count())
    }

    /// A write has ended, successfully or not. Must be followed by [`Writes::send`] or
    /// [`Writes::send_after`] for the writes that waited for it.
    pub(crate) fn end(&self, number: u64) {
        let Some(tracker) = self.tracker.get() else { return };
        let mut state = tracker.state.lock();
        let Some(write) = state.by_number.remove(&number) else { return };
        state.bytes -= write.bytes;
        state.answered += 1;
        state.holes -= usize::from(!write.hole.is_empty());
        if let Some(queue) = state.queue(write.handle) {
            queue.in_flight -= 1;
            let is_partial =
                queue.coalesced.as_ref().is_some_and(|request| request.extent.is_partial_page());
            if queue.in_flight == 0 && !is_partial {
                queue.end_coalescing();
            }
        }
        state.drop_empty(write.handle);
        drop(state);
        tracker.progressed.notify_waiters();
    }

    /// The file may have become shorter.
    pub(crate) fn forget_end(&self) {
        if let Some(mut state) = self.lock() {
            (state.end, state.written_end) = (0, 0);
        }
    }

    /// Whether the file should be longer than `size`, by the writes of this mount.
    pub(crate) fn exceed(&self, size: u64) -> bool {
        self.lock().is_some_and(|state| size < state.written_end)
    }

    /// Sends the coalesced writes of all handles whose requests `are_meant`.
    fn send_coalesced(&self, are_meant: impl Fn(u64, &WriteRequest) -> bool) {
        let handles: Vec<u64> = {
            let Some(mut state) = self.lock() else { return };
            let meant = |queue: &&mut HandleQueue| {
                let coalesced = queue.coalesced.as_ref();
                coalesced.is_some_and(|request| are_meant(queue.handle, request))
            };
            let queues = state.queues.iter_mut().filter(meant);
            queues
                .map(|queue| {
                    queue.end_coalescing();
                    queue.handle
                })
                .collect()
        };
        handles.into_iter().for_each(|handle| self.send(handle));
    }

    /// Sends all coalesced writes. This and the functions that follow must be called within a tokio
    /// runtime.
    pub(crate) fn send_all(&self) {
        self.send_coalesced(|_, _| true);
    }

    /// Sends all coalesced writes except appends whose second part may still come. Returns whether
    /// none is left.
    pub(crate) fn send_complete(&self, now: Instant) -> bool {
        let waits = |request: &WriteRequest| {
            request.extent.is_partial_page() && now < request.begun_at + PARTIAL_PAGE_GRACE
        };
        self.send_coalesced(|_, request| !waits(request));
        self.lock().is_none_or(|state| state.queues.iter().all(|queue| queue.coalesced.is_none()))
    }

    /// Sends the coalesced writes of `handle`.
    pub(crate) fn send_of(&self, handle: u64) {
        self.send_coalesced(|other, _| other == handle);
    }

    /// Sends the request with this number, if it is still coalescing.
    pub(crate) fn send_one(&self, number: u64) {
        self.send_coalesced(|_, request| request.number == number);
    }

    /// Sends the coalesced writes of all handles whose requests `are_meant`, because a call depends
    /// on them; an append whose second part may still come, [a little later](PARTIAL_PAGE_GRACE).
    async fn flush_pending(&self, are_meant: impl Fn(u64, &WriteRequest) -> bool) {
        self.send_coalesced(|handle, request| {
            !request.extent.is_partial_page() && are_meant(handle, request)
        });
        let is_meant = |queue: &HandleQueue| {
            let coalesced = queue.coalesced.as_ref();
            coalesced.is_some_and(|request| are_meant(queue.handle, request))
        };
        let all_sent = self.until(|state| !state.queues.iter().any(is_meant));
        if timeout(PARTIAL_PAGE_GRACE, all_sent).await.is_err() {
            self.send_coalesced(are_meant);
        }
    }

    /// Waits until another write of `bytes` fits into `bound`.
    pub(crate) async fn wait_for_room(&self, bytes: u64, bound: u64) {
        self.until(|state| {
            let can_append = state.bytes + bytes <= bound && state.by_number.len() < MAX_WRITES;
            can_append || state.bytes == 0
        })
        .await;
    }

    /// Waits until all writes that have begun by now have ended.
    pub(crate) async fn drained(&self) {
        let Some(before) = self.next() else { return };
        self.flush_pending(|_, request| request.number < before).await;
        self.until(|state| state.by_number.range(..before).next().is_none()).await;
    }

    /// Waits until all writes that have begun by now through other handles than `handle` have
    /// ended; those through `handle` have been sent.
    pub(crate) async fn drained_but(&self, handle: u64) {
        let Some(before) = self.next() else { return };
        self.flush_pending(|_, request| request.number < before).await;
        self.until(|state| {
            let mut writes = state.by_number.range(..before);
            writes.all(|(_, write)| write.handle == handle && write.sent)
        })
        .await;
    }

    /// Waits until all writes that have begun by now through `handle` have ended.
    pub(crate) async fn drained_of(&self, handle: u64) {
        let Some(before) = self.next() else { return };
        self.flush_pending(|_, request| request.number < before).await;
        self.until(|state| {
            state.by_number.range(..before).all(|(_, write)| write.handle != handle)
        })
        .await;
    }

    /// Waits until a write to `range` through `handle` overtakes no other: until no earlier write
    /// to any part of it through another handle is in flight.
    pub(crate) async fn clear_to_write(&self, handle: u64, range: Range<u64>) {
        self.wait_clear_of(&range, |other, _| other == handle).await;
    }

    /// Waits until a read of `range` through `handle` returns all earlier writes to it: those
    /// through other handles have ended, those through `handle` have been sent. If it is in a hole,
    /// the write that makes the hole has ended: a remote keeps the order of requests for the same
    /// bytes only.
    pub(crate) async fn clear_to_read(&self, handle: u64, range: Range<u64>) {
        self.wait_clear_of(&range, |other, sent| other == handle && sent).await;
        let before = match self.lock() {
            Some(state) if state.holes > 0 => state.next,
            _ => return,
        };
        self.until(|state| {
            let mut writes = state.by_number.range(..before);
            writes.all(|(_, write)| write.hole.is_empty() || are_apart(&write.hole, &range))
        })
        .await;
    }

    /// Waits until every write to a part of `range` that has begun by now has ended, or `is_done`
    /// by its handle and whether it was sent.
    async fn wait_clear_of(&self, range: &Range<u64>, is_done: impl Fn(u64, bool) -> bool) {
        let apart = |other: &Range<u64>| are_apart(other, range);
        let before = {
            let Some(state) = self.lock() else { return };
            // Nearly always there is at most one writer, and all of its writes are sent.
            let all_done = |queue: &HandleQueue| is_done(queue.handle, queue.is_sent());
            if state.queues.iter().all(all_done) {
                return;
            }
            state.next
        };
        let meant = |handle: u64, request: &WriteRequest| {
            request.number < before && !is_done(handle, false) && !apart(&request.extent.range())
        };
        self.flush_pending(meant).await;
        self.until(|state| {
            let mut writes = state.by_number.range(..before);
            writes.all(|(_, write)| is_done(write.handle, write.sent) || apart(&write.range))
        })
        .await;
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        let Some(tracker) = self.tracker.get() else { return };
        let check = || reached(&tracker.state.lock()).then_some(());
        until(&tracker.progressed, check).await;
    }

    /// The number of the next write; `None` if there was none yet.
    fn next(&self) -> Option<u64> {
        Some(self.lock()?.next)
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.tracker.get()?.state.lock())
    }
}

fn are_apart(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.end <= other.start || other.end <= one.start
}

/// A request is being given to the remote, until this is dropped.
struct Sending<'a> {
    writes: &'a Writes,
    handle: u64,
    number: u64,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let Some(tracker) = self.writes.tracker.get() else { return };
        let mut state = tracker.state.lock();
        if let Some(queue) = state.queue(self.handle) {
            queue.sending = false;
        }
        if let Some(write) = state.by_number.get_mut(&self.number) {
            write.sent = true;
        }
        state.drop_empty(self.handle);
        drop(state);
        tracker.progressed.notify_waiters();
    }
}
