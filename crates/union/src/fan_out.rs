//! Several calls at once, whose answers are taken in the order of the callers' choice.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call on its way.
pub(crate) type Call<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

enum Slot<'a, T> {
    Waiting(Call<'a, T>),
    Answered(T),
    Taken,
}

/// Calls that all go on whenever an answer of one of them is waited for. Dropping it drops those
/// that have not answered.
///
/// All that wait are polled at each wake-up: with as many as there are branches that is cheaper
/// than a waker for each.
pub(crate) struct Fan<'a, T>(Vec<Slot<'a, T>>);

impl<'a, T> FromIterator<Call<'a, T>> for Fan<'a, T> {
    fn from_iter<I: IntoIterator<Item = Call<'a, T>>>(calls: I) -> Fan<'a, T> {
        Fan(calls.into_iter().map(Slot::Waiting).collect())
    }
}

impl<T> Fan<'_, T> {
    /// How many calls there are, with those whose answers were taken.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The answer of the call at `index`, which must not have been taken yet. Dropping this future
    /// loses nothing.
    pub(crate) async fn take(&mut self, index: usize) -> T {
        poll_fn(|context| {
            self.poll(context);
            match std::mem::replace(&mut self.0[index], Slot::Taken) {
                Slot::Answered(answer) => Poll::Ready(answer),
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
            if let Slot::Waiting(call) = slot
                && let Poll::Ready(answer) = call.as_mut().poll(context)
            {
                *slot = Slot::Answered(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    /// Calls that answer with what is sent to them.
    fn calls(count: usize) -> (Vec<oneshot::Sender<usize>>, Fan<'static, usize>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| oneshot::channel()).unzip();
        let call = |receiver: oneshot::Receiver<usize>| -> Call<'static, usize> {
            Box::pin(async move { receiver.await.unwrap() })
        };
        (senders, receivers.into_iter().map(call).collect())
    }

    #[tokio::test]
    async fn answers_come_in_the_order_asked_for_whatever_the_order_of_replies() {
        let (senders, fan) = calls(5);
        let task = tokio::spawn(fan.all());
        for (index, sender) in senders.into_iter().enumerate().rev() {
            tokio::task::yield_now().await;
            sender.send(index).unwrap();
        }
        assert_eq!(task.await.unwrap(), [0, 1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_no_answer() {
        let (mut senders, mut fan) = calls(2);
        senders.pop().unwrap().send(7).unwrap();
        tokio::select! {
            biased;
            _ = fan.take(0) => unreachable!("nobody has answered"),
            () = tokio::task::yield_now() => {}
        }
        // The other one has answered during that.
        assert_eq!(fan.take(1).await, 7);
        senders.pop().unwrap().send(1).unwrap();
        assert_eq!(fan.take(0).await, 1);
    }
}
