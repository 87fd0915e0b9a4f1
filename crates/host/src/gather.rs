//! Several requests in flight for one operation.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sftp::{Call, Result};

enum Piece<T> {
    Pending(Call<T>),
    Answered(Result<T>),
}

impl<T> Piece<T> {
    /// Polls; `true` when the answer is there.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if let Piece::Pending(call) = self {
            match Pin::new(call).poll(context) {
                Poll::Ready(result) => *self = Piece::Answered(result),
                Poll::Pending => return false,
            }
        }
        true
    }
}

/// Sends all of them in their order at the first poll, and waits until every one is answered.
pub(crate) async fn all<T>(calls: impl IntoIterator<Item = Call<T>>) -> Vec<Result<T>> {
    let mut pieces: Vec<_> = calls.into_iter().map(Piece::Pending).collect();
    poll_fn(|context| {
        let mut done = true;
        for piece in &mut pieces {
            done &= piece.poll(context);
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers = pieces.into_iter().map(|piece| match piece {
        Piece::Answered(result) => result,
        // The poll above is over only when each is answered.
        Piece::Pending(_) => Err(sftp::Error::Disconnected("not answered".into())),
    });
    answers.collect()
}

/// Sends both in their order at the first poll, and waits until both are answered. The second may
/// open something: if this is given up, what it opened is closed.
pub(crate) async fn both<A, B>(first: Call<A>, mut second: Call<B>) -> (Result<A>, Result<B>) {
    let mut first = Piece::Pending(first);
    let second = poll_fn(|context| {
        let done = first.poll(context);
        // Its answer is taken last of all, so that it is never held by us alone.
        let sent = second.poll_send(context).is_ready();
        if done && sent { Pin::new(&mut second).poll(context) } else { Poll::Pending }
    })
    .await;
    match first {
        Piece::Answered(first) => (first, second),
        Piece::Pending(_) => (Err(sftp::Error::Disconnected("not answered".into())), second),
    }
}

/// The same where it is the first that may open something.
pub(crate) async fn opening<A, B>(mut first: Call<A>, second: Call<B>) -> (Result<A>, Result<B>) {
    let mut second = Piece::Pending(second);
    let first = poll_fn(|context| {
        let done = first.poll_send(context).is_ready() && second.poll(context);
        // Its answer is taken last of all, so that it is never held by us alone.
        if done { Pin::new(&mut first).poll(context) } else { Poll::Pending }
    })
    .await;
    match second {
        Piece::Answered(second) => (first, second),
        Piece::Pending(_) => (first, Err(sftp::Error::Disconnected("not answered".into()))),
    }
}

/// Sends a request now, to be awaited later; `None`, and nothing is sent, when there is no room.
///
/// It is not given back to wait for room: as long as nobody polls it, it would keep its turn.
pub(crate) fn send_now<T>(mut call: Call<T>) -> Option<Call<T>> {
    let sent = call.poll_send(&mut Context::from_waker(Waker::noop()));
    sent.is_ready().then_some(call)
}
