//! Several requests in flight for one operation.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sftp::{Call, Result};

enum MaybeDone<T> {
    Pending(Call<T>),
    Done(Result<T>),
}

impl<T> MaybeDone<T> {
    /// Polls; `true` when the reply was received.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if let MaybeDone::Pending(call) = self {
            match Pin::new(call).poll(context) {
                Poll::Ready(result) => *self = MaybeDone::Done(result),
                Poll::Pending => return false,
            }
        }
        true
    }
}

/// Sends all calls in order at the first poll, and waits for all replies.
pub(crate) async fn all<T>(calls: impl IntoIterator<Item = Call<T>>) -> Vec<Result<T>> {
    let mut calls: Vec<_> = calls.into_iter().map(MaybeDone::Pending).collect();
    poll_fn(|context| {
        let mut done = true;
        for call in &mut calls {
            done &= call.poll(context);
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers = calls.into_iter().map(|call| match call {
        MaybeDone::Done(result) => result,
        // The loop above ends only when all calls are done.
        MaybeDone::Pending(_) => Err(sftp::Error::Disconnected("not answered".into())),
    });
    answers.collect()
}

/// Sends both calls in order at the first poll, and waits for both replies. The second may open a
/// handle: if this future is dropped, the handle is closed.
pub(crate) async fn both<A, B>(first: Call<A>, mut second: Call<B>) -> (Result<A>, Result<B>) {
    // The reply of `second` is taken last, so that a handle in it is never held by this future
    // alone.
    let first = first_of(first, &mut second).await;
    (first, second.await)
}

/// Sends both calls in order at the first poll, and waits for the reply of the first.
pub(crate) async fn first_of<A, B>(first: Call<A>, second: &mut Call<B>) -> Result<A> {
    let mut first = MaybeDone::Pending(first);
    poll_fn(|context| {
        let done = first.poll(context);
        let sent = second.poll_send(context).is_ready();
        if done && sent { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    match first {
        MaybeDone::Done(first) => first,
        MaybeDone::Pending(_) => Err(sftp::Error::Disconnected("not answered".into())),
    }
}

/// Sends both calls in order at the first poll, and waits for both replies. The first may open a
/// handle: if this future is dropped, the handle is closed.
pub(crate) async fn both_first_opens<A, B>(
    mut first: Call<A>,
    second: Call<B>,
) -> (Result<A>, Result<B>) {
    let mut second = MaybeDone::Pending(second);
    let first = poll_fn(|context| {
        let done = first.poll_send(context).is_ready() && second.poll(context);
        // The reply of `first` is taken last, so that a handle in it is never held by this future
        // alone.
        if done { Pin::new(&mut first).poll(context) } else { Poll::Pending }
    })
    .await;
    match second {
        MaybeDone::Done(second) => (first, second),
        MaybeDone::Pending(_) => (first, Err(sftp::Error::Disconnected("not answered".into()))),
    }
}

/// Sends a request now, to be awaited later. `None`, and nothing was sent, if there is no room.
///
/// A call without room is not returned: while it is not polled, it would keep its place in the
/// queue.
pub(crate) fn send_now<T>(mut call: Call<T>) -> Option<Call<T>> {
    let sent = call.poll_send(&mut Context::from_waker(Waker::noop()));
    sent.is_ready().then_some(call)
}
