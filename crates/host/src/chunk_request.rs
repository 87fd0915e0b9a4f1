//! One request for a chunk of a file's content, from its range lock to its reply.
//!
//! States: `Waiting` (for room in [`FlowControl`], if the request is large) → `Sent` → `Answered`.
//! A request dropped in `Waiting` was never sent. If a request that changes the file is dropped in
//! `Sent`, it keeps its place in the [`RangeLock`](crate::range_lock::RangeLock) until the server
//! has replied: a later request must not overtake it on another session.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use sftp::Call;

use crate::flow_control::directions::Directions;
use crate::flow_control::{FlowControl, Permit, Slots};
use crate::handles::OpenHandle;
use crate::range_lock::Ticket;
use crate::session::Session;

/// Requests of at least this size wait for room. Smaller ones are limited by the number of requests
/// that a session allows, and do not fill a window.
pub(crate) const LARGE_BYTES: u32 = 32 * 1024;

/// An SFTP request for a file.
pub(crate) trait Request: Unpin {
    /// The content of the reply.
    type Answer: Send + 'static;
    /// Whether the request changes the file.
    const CHANGES: bool;

    /// Bytes of content that the request transfers.
    fn bytes(&self) -> u32;

    /// The SFTP call, not sent yet.
    fn call(&mut self, open: &OpenHandle) -> Call<Self::Answer>;
}

/// READ.
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Request for Read {
    type Answer = Option<Bytes>;
    const CHANGES: bool = false;

    fn bytes(&self) -> u32 {
        self.len
    }

    fn call(&mut self, open: &OpenHandle) -> Call<Option<Bytes>> {
        open.session.client.read(&open.handle, self.offset, self.len)
    }
}

/// WRITE.
pub(crate) struct Write {
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
}

impl Request for Write {
    type Answer = ();
    const CHANGES: bool = true;

    fn bytes(&self) -> u32 {
        self.data.len() as u32
    }

    fn call(&mut self, open: &OpenHandle) -> Call<()> {
        open.session.client.write(&open.handle, self.offset, std::mem::take(&mut self.data))
    }
}

/// A change without content, such as FSETSTAT.
pub(crate) struct Change<F>(pub(crate) F);

impl<F: FnMut(&OpenHandle) -> Call<()> + Unpin> Request for Change<F> {
    type Answer = ();
    const CHANGES: bool = true;

    fn bytes(&self) -> u32 {
        0
    }

    fn call(&mut self, open: &OpenHandle) -> Call<()> {
        (self.0)(open)
    }
}

/// The handles of one file through which a request may go.
#[derive(Clone)]
pub(crate) enum Route {
    /// A single handle.
    One(Arc<OpenHandle>),
    /// Any of these handles, each on its own session.
    Many(Arc<[Arc<OpenHandle>]>),
}

impl Route {
    /// The session, if there is only one.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Route::One(open) => Some(open.session.slot),
            Route::Many(_) => None,
        }
    }

    /// The lowest limit of its sessions. They may be of different servers, even on one machine.
    pub(crate) fn lowest(&self, limit: impl Fn(&Session) -> u32) -> u32 {
        match self {
            Route::One(open) => limit(&open.session),
            Route::Many(all) => {
                all.iter().map(|open| limit(&open.session)).fold(u32::MAX, u32::min)
            }
        }
    }

    /// The live sessions; if there is none, one of the lost sessions, whose error is returned.
    fn slots(&self) -> Slots {
        match self {
            Route::One(open) => Slots::of(open.session.slot),
            Route::Many(all) => {
                let live = all.iter().filter(|open| open.session.is_alive());
                let live: Slots = live.map(|open| open.session.slot).collect();
                if live.is_empty() { Slots::of(all[0].session.slot) } else { live }
            }
        }
    }

    fn handle(&self, slot: usize) -> &Arc<OpenHandle> {
        match self {
            Route::One(open) => open,
            Route::Many(all) => {
                all.iter().find(|open| open.session.slot == slot).unwrap_or(&all[0])
            }
        }
    }
}

/// A reply, and the handle through which it was received.
pub(crate) type Answer<T> = (Arc<OpenHandle>, sftp::Result<T>);

/// One request, waiting or in flight.
pub(crate) struct ChunkRequest<R: Request> {
    request: R,
    route: Route,
    flow: Arc<FlowControl>,
    /// Held until the reply was received.
    ticket: Option<Arc<Ticket>>,
    state: State<R::Answer>,
}

enum State<T> {
    Waiting { waiter_id: Option<u64> },
    Sent { call: Call<T>, open: Arc<OpenHandle>, permit: Option<Permit> },
    Answered,
}

impl<R: Request> ChunkRequest<R> {
    pub(crate) fn new(
        request: R,
        route: Route,
        flow: &Directions,
        ticket: Option<Arc<Ticket>>,
    ) -> ChunkRequest<R> {
        let (flow, state) = (flow.of(R::CHANGES).clone(), State::Waiting { waiter_id: None });
        ChunkRequest { request, route, flow, ticket, state }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer<R::Answer>> {
        if let State::Waiting { waiter_id } = &mut self.state {
            let bytes = self.request.bytes();
            let permit = if bytes < LARGE_BYTES {
                None
            } else {
                let slots = self.route.slots();
                match self.flow.poll_acquire(slots, u64::from(bytes), waiter_id, context) {
                    Poll::Ready(permit) => Some(permit),
                    Poll::Pending => return Poll::Pending,
                }
            };
            let open = match &permit {
                Some(permit) => self.route.handle(permit.slot()),
                None => match &self.route {
                    Route::One(open) => open,
                    Route::Many(all) => &all[0],
                },
            };
            let (call, open) = (self.request.call(open), open.clone());
            self.state = State::Sent { call, open, permit };
        }
        let State::Sent { call, .. } = &mut self.state else { return Poll::Pending };
        let Poll::Ready(result) = Pin::new(call).poll(context) else { return Poll::Pending };
        let State::Sent { open, permit, .. } = std::mem::replace(&mut self.state, State::Answered)
        else {
            return Poll::Pending;
        };
        if let (Some(permit), true) = (permit, result.is_ok()) {
            permit.completed();
        }
        self.ticket = None;
        Poll::Ready((open, result))
    }
}

impl<R: Request> Drop for ChunkRequest<R> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Waiting { waiter_id: Some(id) } => self.flow.cancel_wait(id),
            State::Sent { call, open, permit } if R::CHANGES => {
                let ticket = self.ticket.take();
                // Without a runtime no later request is sent either.
                if let (Some(ticket), Ok(runtime)) = (ticket, tokio::runtime::Handle::try_current())
                {
                    runtime.spawn(async move {
                        let _ = call.await;
                        drop((open, permit, ticket));
                    });
                }
            }
            _ => {}
        }
    }
}

enum Progress<R: Request> {
    Pending(ChunkRequest<R>),
    Done(Answer<R::Answer>),
}

/// Waits for the ticket, sends all requests in order as there is room, and waits for all replies;
/// returns them in the order of the requests.
pub(crate) async fn all<R: Request>(
    ticket: Option<Arc<Ticket>>,
    requests: Vec<ChunkRequest<R>>,
) -> Vec<Answer<R::Answer>> {
    let mut running: Vec<_> = requests.into_iter().map(Progress::Pending).collect();
    let (mut ready, mut sent) = (false, false);
    poll_fn(|context| {
        if !ready {
            if ticket.as_ref().is_some_and(|ticket| ticket.poll_ready(context).is_pending()) {
                return Poll::Pending;
            }
            ready = true;
        }
        let (mut waiting, mut over) = (false, true);
        for request in &mut running {
            let Progress::Pending(pending) = request else { continue };
            // Requests behind one that waits for room would only wait behind it.
            if waiting && pending.is_waiting() {
                over = false;
                continue;
            }
            match pending.poll(context) {
                Poll::Ready(answer) => *request = Progress::Done(answer),
                Poll::Pending => {
                    waiting |= pending.is_waiting();
                    over = false;
                }
            }
        }
        if !waiting && !sent {
            sent = true;
            ticket.iter().for_each(|ticket| ticket.mark_sent());
        }
        if over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers = running.into_iter().filter_map(|it| match it {
        Progress::Done(answer) => Some(answer),
        Progress::Pending(_) => None,
    });
    answers.collect()
}

/// Waits for the ticket, sends one request when there is room, and waits for its reply.
pub(crate) async fn one<R: Request>(
    ticket: Option<Arc<Ticket>>,
    mut request: ChunkRequest<R>,
) -> Answer<R::Answer> {
    let (mut ready, mut sent) = (false, false);
    poll_fn(|context| {
        if !ready {
            if ticket.as_ref().is_some_and(|ticket| ticket.poll_ready(context).is_pending()) {
                return Poll::Pending;
            }
            ready = true;
        }
        let answer = request.poll(context);
        if !sent && !request.is_waiting() {
            sent = true;
            ticket.iter().for_each(|ticket| ticket.mark_sent());
        }
        answer
    })
    .await
}

/// Sends changes without content through `open`, and waits for the replies; returns the first error.
pub(crate) async fn change<F: FnMut(&OpenHandle) -> Call<()> + Unpin>(
    open: &Arc<OpenHandle>,
    flow: &Directions,
    ticket: Arc<Ticket>,
    calls: impl IntoIterator<Item = F>,
) -> sftp::Result<()> {
    let request = |call| {
        let route = Route::One(open.clone());
        ChunkRequest::new(Change(call), route, flow, Some(ticket.clone()))
    };
    let requests = calls.into_iter().map(request).collect();
    let answers = all(Some(ticket), requests).await;
    answers.into_iter().try_for_each(|(_, answer)| answer)
}

/// Waits for the ticket, sends `call`, and waits for the reply. Later operations on the same
/// session may be sent before the reply.
pub(crate) async fn in_order<T>(ticket: &Ticket, mut call: Call<T>) -> sftp::Result<T> {
    ticket.ready().await;
    poll_fn(|context| call.poll_send(context)).await;
    ticket.mark_sent();
    call.await
}
