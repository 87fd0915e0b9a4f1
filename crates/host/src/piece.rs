//! One request for a part of a file's content, from its turn to its answer.
//!
//! `Waiting` (for room at the [`Gate`], if it is large) → `Sent` → answered. Given up while
//! waiting, it was never sent. Given up after that, what changes the file keeps its place in the
//! [`Order`](crate::order::Order) until the server has answered: what comes later must not
//! overtake it on another session.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use sftp::{Call, FileAttrs};

use crate::gate::{Gate, Pass, Slots};
use crate::gates::Gates;
use crate::handles::OpenHandle;
use crate::order::Turn;

/// Requests of this size and more wait for room. What is smaller is bounded by the number of
/// requests that a session takes, and does not fill a window.
pub(crate) const LARGE_BYTES: u32 = 32 * 1024;

/// What is asked.
pub(crate) trait Ask: Unpin {
    /// What is answered.
    type Answer: Send + 'static;
    /// Whether it changes the file.
    const CHANGES: bool;

    /// Bytes of content that this moves.
    fn bytes(&self) -> u32;

    /// The request, not sent yet.
    fn call(&mut self, open: &OpenHandle) -> Call<Self::Answer>;
}

/// READ.
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Ask for Read {
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

impl Ask for Write {
    type Answer = ();
    const CHANGES: bool = true;

    fn bytes(&self) -> u32 {
        self.data.len() as u32
    }

    fn call(&mut self, open: &OpenHandle) -> Call<()> {
        open.session.client.write(&open.handle, self.offset, std::mem::take(&mut self.data))
    }
}

/// FSETSTAT.
pub(crate) struct SetAttrs(pub(crate) FileAttrs);

impl Ask for SetAttrs {
    type Answer = ();
    const CHANGES: bool = true;

    fn bytes(&self) -> u32 {
        0
    }

    fn call(&mut self, open: &OpenHandle) -> Call<()> {
        open.session.client.fsetstat(&open.handle, self.0)
    }
}

/// COPY_DATA from another handle of the same session.
pub(crate) struct Copy {
    pub(crate) from: Arc<OpenHandle>,
    pub(crate) from_offset: u64,
    pub(crate) to_offset: u64,
    pub(crate) len: u64,
}

impl Ask for Copy {
    type Answer = ();
    const CHANGES: bool = true;

    fn bytes(&self) -> u32 {
        0
    }

    fn call(&mut self, open: &OpenHandle) -> Call<()> {
        let (from, to) = (&self.from.handle, &open.handle);
        open.session.client.copy_data(from, self.from_offset, self.len, to, self.to_offset)
    }
}

/// The handles of one file through which a request may go.
#[derive(Clone)]
pub(crate) enum Route {
    /// This one.
    One(Arc<OpenHandle>),
    /// Any of these, each on a session of its own.
    Many(Arc<[Arc<OpenHandle>]>),
}

impl Route {
    /// The session, if it is one alone.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Route::One(open) => Some(open.session.slot),
            Route::Many(_) => None,
        }
    }

    /// The sessions that live; when none does, one that will say why.
    fn slots(&self) -> Slots {
        match self {
            Route::One(open) => Slots::of(open.session.slot),
            Route::Many(all) => {
                let living = all.iter().filter(|open| open.session.is_alive());
                let living = living.fold(Slots::default(), |it, open| it.with(open.session.slot));
                if living.is_empty() { Slots::of(all[0].session.slot) } else { living }
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

/// An answer, and the handle through which it came.
pub(crate) type Answer<T> = (Arc<OpenHandle>, sftp::Result<T>);

/// One request on its way.
pub(crate) struct Piece<A: Ask> {
    ask: A,
    route: Route,
    gate: Arc<Gate>,
    /// Kept until the answer has come.
    turn: Option<Arc<Turn>>,
    state: State<A::Answer>,
}

enum State<T> {
    Waiting { ticket: Option<u64> },
    Sent { call: Call<T>, open: Arc<OpenHandle>, pass: Option<Pass> },
    Answered,
}

impl<A: Ask> Piece<A> {
    pub(crate) fn new(ask: A, route: Route, gates: &Gates, turn: Option<Arc<Turn>>) -> Piece<A> {
        let (gate, state) = (gates.of(A::CHANGES).clone(), State::Waiting { ticket: None });
        Piece { ask, route, gate, turn, state }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer<A::Answer>> {
        if let State::Waiting { ticket } = &mut self.state {
            let bytes = self.ask.bytes();
            let pass = if bytes < LARGE_BYTES {
                None
            } else {
                let slots = self.route.slots();
                match self.gate.poll_pass(slots, u64::from(bytes), ticket, context) {
                    Poll::Ready(pass) => Some(pass),
                    Poll::Pending => return Poll::Pending,
                }
            };
            let open = match &pass {
                Some(pass) => self.route.handle(pass.slot()),
                None => match &self.route {
                    Route::One(open) => open,
                    Route::Many(all) => &all[0],
                },
            };
            let (call, open) = (self.ask.call(open), open.clone());
            self.state = State::Sent { call, open, pass };
        }
        let State::Sent { call, .. } = &mut self.state else { return Poll::Pending };
        let Poll::Ready(result) = Pin::new(call).poll(context) else { return Poll::Pending };
        let State::Sent { open, pass, .. } = std::mem::replace(&mut self.state, State::Answered)
        else {
            return Poll::Pending;
        };
        if let (Some(pass), true) = (pass, result.is_ok()) {
            pass.arrived();
        }
        self.turn = None;
        Poll::Ready((open, result))
    }
}

impl<A: Ask> Drop for Piece<A> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Waiting { ticket: Some(ticket) } => self.gate.leave(ticket),
            State::Sent { call, open, pass } if A::CHANGES => {
                let turn = self.turn.take();
                // Without a runtime nothing comes later either.
                if let (Some(turn), Ok(runtime)) = (turn, tokio::runtime::Handle::try_current()) {
                    runtime.spawn(async move {
                        let _ = call.await;
                        drop((open, pass, turn));
                    });
                }
            }
            _ => {}
        }
    }
}

enum Running<A: Ask> {
    Under(Piece<A>),
    Over(Answer<A::Answer>),
}

/// Waits for the turn, sends all pieces in their order as there is room, and waits until every one
/// is answered; the answers are in the order of the pieces.
pub(crate) async fn all<A: Ask>(
    turn: Option<Arc<Turn>>,
    pieces: Vec<Piece<A>>,
) -> Vec<Answer<A::Answer>> {
    let mut running: Vec<_> = pieces.into_iter().map(Running::Under).collect();
    let (mut come, mut sent) = (false, false);
    poll_fn(|context| {
        if !come {
            if turn.as_ref().is_some_and(|turn| turn.poll_come(context).is_pending()) {
                return Poll::Pending;
            }
            come = true;
        }
        let (mut waiting, mut over) = (false, true);
        for it in &mut running {
            let Running::Under(piece) = it else { continue };
            // Those behind one that waits for room would only wait behind it.
            if waiting && piece.is_waiting() {
                over = false;
                continue;
            }
            match piece.poll(context) {
                Poll::Ready(answer) => *it = Running::Over(answer),
                Poll::Pending => {
                    waiting |= piece.is_waiting();
                    over = false;
                }
            }
        }
        if !waiting && !sent {
            sent = true;
            turn.iter().for_each(|turn| turn.sent());
        }
        if over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers = running.into_iter().filter_map(|it| match it {
        Running::Over(answer) => Some(answer),
        Running::Under(_) => None,
    });
    answers.collect()
}

/// As [`all`], of one.
pub(crate) async fn one<A: Ask>(turn: Option<Arc<Turn>>, mut piece: Piece<A>) -> Answer<A::Answer> {
    let (mut come, mut sent) = (false, false);
    poll_fn(|context| {
        if !come {
            if turn.as_ref().is_some_and(|turn| turn.poll_come(context).is_pending()) {
                return Poll::Pending;
            }
            come = true;
        }
        let answer = piece.poll(context);
        if !sent && !piece.is_waiting() {
            sent = true;
            turn.iter().for_each(|turn| turn.sent());
        }
        answer
    })
    .await
}

/// Waits for the turn, sends `call`, and waits for the answer. What enters later may follow on the
/// same session before that.
pub(crate) async fn in_turn<T>(turn: &Turn, mut call: Call<T>) -> sftp::Result<T> {
    turn.come().await;
    poll_fn(|context| call.poll_send(context)).await;
    turn.sent();
    call.await
}
