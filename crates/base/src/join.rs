//! Several futures awaited together.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Polls all futures in their order, until all are complete; returns their results in that order.
/// Each is dropped when it is complete.
pub async fn join_in_order<F: Future + Unpin>(
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let mut pending: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut are_complete = true;
        for (future, result) in pending.iter_mut().zip(&mut results) {
            let Some(running) = future else { continue };
            match Pin::new(running).poll(context) {
                Poll::Ready(output) => (*future, *result) = (None, Some(output)),
                Poll::Pending => are_complete = false,
            }
        }
        if are_complete { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn results_have_the_order_of_the_futures() {
        let mut polled = Vec::new();
        {
            let polled = std::cell::RefCell::new(&mut polled);
            // Each completes at its own poll.
            let futures = [(0, 3), (1, 1), (2, 2)].map(|(number, mut polls)| {
                let polled = &polled;
                poll_fn(move |_| {
                    polled.borrow_mut().push(number);
                    polls -= 1;
                    if polls == 0 { Poll::Ready(number) } else { Poll::Pending }
                })
            });
            let mut all = pin!(join_in_order(futures));
            let mut poll = || all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(poll().is_pending() && poll().is_pending());
            assert_eq!(poll(), Poll::Ready(vec![0, 1, 2]));
        }
        assert_eq!(polled, [0, 1, 2, 0, 2, 0]);
    }
}
