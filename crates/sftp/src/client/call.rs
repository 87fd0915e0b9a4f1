//! One request as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::pending::Expect;
use super::{Packet, Shared, reader};
use crate::codec::{RemoteHandle, Reply};
use crate::error::{Error, Result};

/// A request. It is sent by the first poll, or as soon after that as there is room. It may be
/// dropped at any time.
///
/// A call that was polled and waits for room keeps its place in the queue, before later calls: it
/// must be polled when woken, or dropped.
#[must_use = "a request is sent when its future is first polled"]
pub struct Call<T> {
    shared: Arc<Shared>,
    /// If the call is dropped after it was sent, the server is requested to undo the request to set
    /// a lock on this handle.
    undone_for: Option<RemoteHandle>,
    expect: Expect,
    finish: fn(Reply) -> Result<T>,
    state: State<T>,
}

enum State<T> {
    /// Not sent; with a ticket it is queued.
    New { packet: Packet, ticket: Option<u64> },
    /// Sent with this id.
    Sent(u32),
    /// The result is known without a request.
    Known(Result<T>),
    /// Complete.
    Done,
}

// A call has no pinned fields.
impl<T> Unpin for Call<T> {}

impl<T> Call<T> {
    pub(super) fn new(
        shared: &Arc<Shared>,
        packet: Packet,
        expect: Expect,
        finish: fn(Reply) -> Result<T>,
    ) -> Call<T> {
        let state = State::New { packet, ticket: None };
        Call { shared: shared.clone(), undone_for: None, expect, finish, state }
    }

    /// The request contains this handle: it fails with [`Error::Closed`] if CLOSE was sent before.
    pub(super) fn through(mut self, handle: &RemoteHandle) -> Call<T> {
        if let State::New { packet, .. } = &mut self.state
            && let Some(free) = packet.handles.iter_mut().find(|known| known.is_none())
        {
            *free = Some(handle.clone());
        }
        self
    }

    /// The request sets a lock on this handle, which must not stay if the call is dropped.
    pub(super) fn undone_for(mut self, handle: &RemoteHandle) -> Call<T> {
        self.undone_for = Some(handle.clone());
        self
    }

    pub(super) fn known(shared: &Arc<Shared>, result: Result<T>) -> Call<T> {
        Call {
            shared: shared.clone(),
            undone_for: None,
            expect: Expect::Status,
            finish: |_: Reply| {
                Err(Error::Protocol("a reply to a request that was never sent".into()))
            },
            state: State::Known(result),
        }
    }
}

impl<T> Call<T> {
    /// Sends the request without taking the reply; ready when it was sent, or never will be.
    ///
    /// While the reply is not taken, dropping the call closes any handle in the reply. So a caller
    /// with several calls can take the reply with the handle last.
    pub fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let State::New { packet, ticket } = &mut self.state else {
            return Poll::Ready(());
        };
        self.state = match self.shared.send_or_enqueue(packet, self.expect, ticket, context.waker())
        {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(id)) => State::Sent(id),
            Poll::Ready(Err(error)) => State::Known(Err(error)),
        };
        Poll::Ready(())
    }
}

impl Call<RemoteHandle> {
    /// What stands for the handle that this OPENDIR will return, after it was sent: its id
    /// (`early-handle@sshoal`). It is for READDIR only, and not to be closed.
    pub fn early_handle(&self) -> Option<RemoteHandle> {
        match self.state {
            State::Sent(id) => RemoteHandle::new(&id.to_be_bytes()).ok(),
            _ => None,
        }
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let call = &mut *self;
        if matches!(call.state, State::New { .. }) {
            if call.poll_send(context).is_pending() {
                return Poll::Pending;
            }
            if matches!(call.state, State::Sent(_)) {
                // The slot has this waker. A reply or an end since the check above has called it.
                return Poll::Pending;
            }
        }
        match &mut call.state {
            State::Sent(id) => {
                let reply = call.shared.pending.lock().take(*id, context.waker());
                match reply {
                    None => Poll::Pending,
                    Some(reply) => {
                        call.state = State::Done;
                        let result = reply.and_then(call.finish);
                        if let Err(error @ Error::Protocol(_)) = &result {
                            call.shared.finish(error.clone());
                        }
                        Poll::Ready(result)
                    }
                }
            }
            State::Known(_) => match std::mem::replace(&mut call.state, State::Done) {
                State::Known(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            State::New { .. } | State::Done => Poll::Pending,
        }
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        match self.state {
            State::New { ticket: Some(ticket), .. } => {
                let next = self.shared.pending.lock().leave_queue(ticket);
                next.into_iter().for_each(|waker| waker.wake());
            }
            State::Sent(id) => {
                if let Some(handle) = &self.undone_for {
                    let cancel = Packet::cancel_lock(handle, id);
                    self.shared.send_unattended(cancel, Expect::Status);
                }
                let reply = self.shared.pending.lock().forget(id);
                reply.into_iter().for_each(|reply| reader::discard(&self.shared, reply));
            }
            State::New { ticket: None, .. } | State::Known(_) | State::Done => {}
        }
    }
}
