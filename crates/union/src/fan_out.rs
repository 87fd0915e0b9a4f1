//! Concurrent calls, whose answers are taken in an order of the caller's choice.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call in flight.
pub(crate) type Call<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

enum CallState<'a, T> {
    Pending(Call<'a, T>),
    Ready(T),
    Taken,
}

/// Calls that all make progress while the answer of one is awaited. Dropping it drops the calls
/// that have not been answered.
///
/// All pending calls are polled at each wake-up: for at most as many calls as branches this is
/// cheaper than a waker for each.
pub(crate) struct FanOut<'a, T>(Vec<CallState<'a, T>>);

impl<'a, T> FanOut<'a, T> {
    /// Runs these calls.
    pub(crate) fn of<F: Future<Output = T> + Send + 'a>(
        calls: impl IntoIterator<Item = F>,
    ) -> FanOut<'a, T> {
        FanOut(calls.into_iter().map(|call| CallState::Pending(Box::pin(call))).collect())
    }

    /// The number of calls, including those whose answers were taken.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The answer of the call at `index`, which must not have been taken before. Dropping this
    /// future loses nothing.
    pub(crate) async fn take(&mut self, index: usize) -> T {
        poll_fn(|context| {
            self.poll(context);
            match std::mem::replace(&mut self.0[index], CallState::Taken) {
                CallState::Ready(answer) => Poll::Ready(answer),
                slot => {
                    self.0[index] = slot;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// All answers, in the order of the calls.
    pub(crate) async fn all(mut self) -> Vec<T> {
        let mut answers = Vec::with_capacity(self.len());
        for index in 0..self.len() {
            answers.push(self.take(index).await);
        }
        answers
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        for slot in &mut self.0 {
            if let CallState::Pending(call) = slot
                && let Poll::Ready(answer) = call.as_mut().poll(context)
            {
                *slot = CallState::Ready(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    /// Calls that answer with the value sent to them.
    fn calls(count: usize) -> (Vec<oneshot::Sender<usize>>, FanOut<'static, usize>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| oneshot::channel()).unzip();
        let call = async |receiver: oneshot::Receiver<usize>| receiver.await.unwrap();
        (senders, FanOut::of(receivers.into_iter().map(call)))
    }

    #[tokio::test]
    async fn answers_come_in_the_order_asked_for_whatever_the_order_of_replies() {
        let (senders, calls) = calls(5);
        let task = tokio::spawn(calls.all());
        for (index, sender) in senders.into_iter().enumerate().rev() {
            tokio::task::yield_now().await;
            sender.send(index).unwrap();
        }
        assert_eq!(task.await.unwrap(), [0, 1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_no_answer() {
        let (mut senders, mut calls) = calls(2);
        senders.pop().unwrap().send(7).unwrap();
        tokio::select! {
            biased;
            _ = calls.take(0) => unreachable!("nobody has answered"),
            () = tokio::task::yield_now() => {}
        }
        // The other call was answered during that wait.
        assert_eq!(calls.take(1).await, 7);
        senders.pop().unwrap().send(1).unwrap();
        assert_eq!(calls.take(0).await, 1);
    }
}
