//! The sending side: packets go to the stream in the order in which they are pushed.
//!
//! While nothing is queued, the pushing thread writes. What the stream does not accept is queued,
//! and then only the writer task writes until the queue is empty again. The lock is held across the
//! non-blocking write, never across a wait. A stream that enciphers may accept bytes before it
//! sends them: what it still has counts as queued.
//!
//! Packets pushed inside a [`base::task::batch`] are *coalesced*: queued, and written together at
//! the end of the batch, since each write wakes ssh, which encrypts and writes one packet of its
//! own for it. From a few KiB on coalescing gains nothing, and the queue is written at once.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};

use base::Mutex;
use base::task::{AtEnd, at_end_of_batch};
use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use super::{Packet, Shared};
use crate::codec::RemoteHandle;
use crate::error::{Error, Result};

/// Maximum number of slices in one vectored write; longer writes are limited by their bytes.
const MAX_SLICES: usize = 64;

/// Bytes from which coalesced packets are written at once: half of what ssh reads and sends as one
/// packet.
const MAX_COALESCED_BYTES: usize = 16 << 10;

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The writing half of the stream and its queue.
pub(super) struct Output(Mutex<State>);

pub(super) struct State {
    /// `None` after the end of the connection.
    stream: Option<Writer>,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// The stream has bytes that it has accepted and not sent.
    unsent: bool,
    /// Wakes the writer task.
    writer: Option<Waker>,
    /// The writer task has to be woken after the lock was released.
    wake_writer: bool,
    /// The queue waits for the end of a batch, not for the stream.
    coalescing: bool,
}

impl Output {
    pub(super) fn new(stream: Writer) -> Output {
        Output(Mutex::new(State {
            stream: Some(stream),
            queue: VecDeque::new(),
            queued_bytes: 0,
            unsent: false,
            writer: None,
            wake_writer: false,
            coalescing: false,
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Closes the stream; returns the waker of the writer task, which then ends.
    pub(super) fn close(&self) -> Option<Waker> {
        let mut state = self.lock();
        let stream = state.stream.take();
        state.queue.clear();
        state.queued_bytes = 0;
        let writer = state.writer.take();
        drop(state);
        drop(stream);
        writer
    }
}

impl State {
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// The waker of the writer task if it has to be woken, to be called after the lock was
    /// released.
    pub(super) fn writer_to_wake(&mut self) -> Option<Waker> {
        if std::mem::take(&mut self.wake_writer) { self.writer.clone() } else { None }
    }

    /// Writes a packet, or queues the rest that cannot be written now. Inside a batch the packet is
    /// queued, and `shared` writes the queue at the end of the batch.
    pub(super) fn push(&mut self, packet: &mut Packet, shared: &Arc<Shared>) -> Result<()> {
        if packet.closes {
            packet.handles.iter().flatten().for_each(RemoteHandle::set_closed);
        }
        let idle = self.queue.is_empty() && !self.unsent && !self.coalescing;
        let mut written = 0;
        if idle && packet.len() < MAX_COALESCED_BYTES {
            self.coalescing = at_end_of_batch(|| shared.clone());
        }
        if idle && !self.coalescing {
            match self.write_now(packet) {
                Ok(n) => written = n,
                Err(error) => return Err(Error::of_stream(&error)),
            }
        }
        if written < packet.len() {
            let mut head = std::mem::take(&mut packet.head).freeze();
            let mut body = std::mem::take(&mut packet.body);
            let of_head = written.min(head.len());
            head.advance(of_head);
            body.advance(written - of_head);
            for piece in [head, body] {
                if !piece.is_empty() {
                    self.queued_bytes += piece.len();
                    self.queue.push_back(piece);
                }
            }
            self.wake_writer = idle && !self.coalescing;
        }
        self.wake_writer |= idle && self.unsent;
        if self.queued_bytes >= MAX_COALESCED_BYTES { self.write_coalesced() } else { Ok(()) }
    }

    /// Writes coalesced packets; the rest that the stream does not accept is left to the writer
    /// task.
    fn write_coalesced(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.coalescing) {
            return Ok(());
        }
        // No task has to be woken here.
        match self.flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(error)) => Err(Error::of_stream(&error)),
            Poll::Pending => {
                self.wake_writer = true;
                Ok(())
            }
        }
    }

    /// Writes as much of a packet as the stream accepts at once; returns the number of bytes.
    fn write_now(&mut self, packet: &Packet) -> io::Result<usize> {
        // No task has to be woken: the rest is left to the writer task, which polls the stream
        // again.
        let mut context = Context::from_waker(Waker::noop());
        let mut written = 0;
        while written < packet.len() {
            let of_head = written.min(packet.head.len());
            let slices = [
                IoSlice::new(&packet.head[of_head..]),
                IoSlice::new(&packet.body[written - of_head..]),
            ];
            let slices = if of_head == packet.head.len() { &slices[1..] } else { &slices[..] };
            match write_vectored(&mut self.stream, &mut context, slices) {
                Poll::Ready(n) => written += n?,
                Poll::Pending => break,
            }
        }
        match self.flush_stream(&mut context) {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(written),
        }
    }

    /// Has the stream send what it has accepted.
    fn flush_stream(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        let flushed = Pin::new(stream).poll_flush(context);
        self.unsent = flushed.is_pending();
        flushed
    }

    /// Writes the queue; ready when it is empty, or with an error.
    fn flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let written = {
                let pieces = self.queue.iter().take(MAX_SLICES);
                let slices: Vec<IoSlice<'_>> = pieces.map(|piece| IoSlice::new(piece)).collect();
                match write_vectored(&mut self.stream, context, &slices) {
                    Poll::Ready(n) => n?,
                    Poll::Pending => return Poll::Pending,
                }
            };
            self.consume(written);
        }
        self.flush_stream(context)
    }

    fn consume(&mut self, mut written: usize) {
        self.queued_bytes -= written;
        while let Some(front) = self.queue.front_mut() {
            if front.len() > written {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.queue.pop_front();
        }
    }
}

fn write_vectored(
    stream: &mut Option<Writer>,
    context: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let Some(stream) = stream else {
        return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
    };
    match Pin::new(stream).poll_write_vectored(context, slices) {
        Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        other => other,
    }
}

impl AtEnd for Shared {
    fn at_end(&self) {
        let mut output = self.output.lock();
        let written = output.write_coalesced();
        let writer = output.writer_to_wake();
        drop(output);
        writer.into_iter().for_each(Waker::wake);
        if let Err(error) = written {
            self.finish(error);
        }
    }
}

/// The writer task: writes what is queued until the connection ends.
pub(super) async fn run(shared: Arc<Shared>) {
    let _guard = shared.finish_on_panic();
    std::future::poll_fn(|context| {
        let mut state = shared.output.lock();
        if state.stream.is_none() {
            return Poll::Ready(());
        }
        if !state.writer.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.writer = Some(context.waker().clone());
        }
        let before = state.queued_bytes;
        let flushed = state.flush(context);
        let made_room = state.queued_bytes < before;
        drop(state);
        if let Poll::Ready(Err(error)) = flushed {
            shared.finish(Error::of_stream(&error));
            return Poll::Ready(());
        }
        if made_room {
            shared.wake_next();
        }
        Poll::Pending
    })
    .await;
}
