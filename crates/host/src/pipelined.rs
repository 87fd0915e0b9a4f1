//! Several requests in flight for one operation.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sftp::{Call, Result};

/// Sends both calls in order at the first poll, and waits for both replies. The second may open a
/// handle: if this future is dropped, the handle is closed.
pub(crate) async fn both<A, B>(first: Call<A>, mut second: Call<B>) -> (Result<A>, Result<B>) {
    // The reply of `second` is taken last, so that a handle in it is never held by this future
    // alone.
    let first = first_of(first, &mut second).await;
    (first, second.await)
}

/// Sends both calls in order at the first poll, and waits for the reply of the first.
pub(crate) async fn first_of<A, B>(mut first: Call<A>, second: &mut Call<B>) -> Result<A> {
    let mut reply = None;
    poll_fn(|context| {
        poll_for(&mut reply, &mut first, context);
        let is_sent = second.poll_send(context).is_ready();
        reply.take_if(|_| is_sent).map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Polls a call, unless its reply was received.
fn poll_for<T>(reply: &mut Option<Result<T>>, call: &mut Call<T>, context: &mut Context<'_>) {
    if reply.is_none()
        && let Poll::Ready(received) = Pin::new(call).poll(context)
    {
        *reply = Some(received);
    }
}

/// Sends both calls in order at the first poll, and waits for both replies. The first may open a
/// handle: if this future is dropped, the handle is closed.
pub(crate) async fn both_first_opens<A, B>(
    mut first: Call<A>,
    mut second: Call<B>,
) -> (Result<A>, Result<B>) {
    let mut reply = None;
    poll_fn(|context| {
        if first.poll_send(context).is_ready() {
            poll_for(&mut reply, &mut second, context);
        }
        // The reply of `first` is taken last, so that a handle in it is never held by this future
        // alone.
        if reply.is_some()
            && let Poll::Ready(first) = Pin::new(&mut first).poll(context)
            && let Some(second) = reply.take()
        {
            return Poll::Ready((first, second));
        }
        Poll::Pending
    })
    .await
}

/// Sends a request now, to be awaited later. `None`, and nothing was sent, if there is no room.
///
/// A call without room is not returned: while it is not polled, it would keep its place in the
/// queue.
pub(crate) fn send_now<T>(mut call: Call<T>) -> Option<Call<T>> {
    let sent = call.poll_send(&mut Context::from_waker(Waker::noop()));
    sent.is_ready().then_some(call)
}
