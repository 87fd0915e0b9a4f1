//! Standard output, written by a thread of its own. Its reader may be slow, or stop: that must hold
//! neither the threads of the runtime, which also wait for signals, nor a copy that is to end.
//!
//! A caller waits while more than [`LIMIT_BYTES`] wait to be written, until the end was requested.
//! The lock is never held during a write.

use std::io;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::Mutex;
use tokio::sync::watch;
use tokio::task::block_in_place;

/// Bytes that wait to be written, before callers wait.
const LIMIT_BYTES: usize = 1 << 20;

/// How long the rest is waited for after the end was requested.
const END_WAIT: Duration = Duration::from_secs(1);

/// Writes all of a text.
type Output = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

/// Prints in the order of the calls, until a write fails.
pub struct Printer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// For the thread: there is something to write.
    work: Condvar,
    /// For callers: there is room, a text is written, or the end was requested.
    progress: Condvar,
    /// Why nothing more is printed.
    failed: watch::Sender<Option<io::ErrorKind>>,
}

struct State {
    /// Until the thread has it.
    output: Option<Output>,
    waiting: Vec<u8>,
    is_writing: bool,
    is_ending: bool,
}

impl Printer {
    /// A printer that writes by `output`. It starts its thread when there is something to write.
    pub fn new(output: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Printer {
        let output: Option<Output> = Some(Box::new(output));
        let state = State { output, waiting: Vec::new(), is_writing: false, is_ending: false };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            progress: Condvar::new(),
            failed: watch::Sender::new(None),
        };
        Printer { shared: Arc::new(shared) }
    }

    /// Why nothing more is printed, if a write has failed.
    pub fn failed(&self) -> &watch::Sender<Option<io::ErrorKind>> {
        &self.shared.failed
    }

    /// Prints a text, perhaps after this call.
    pub fn print(&self, text: &str) {
        let mut state = self.shared.state.lock();
        if self.shared.is_full(&state) {
            drop(state);
            state = block_in_place(|| self.shared.progress_while(|it| self.shared.is_full(it)));
        }
        if self.shared.has_failed() {
            return;
        }
        state.waiting.extend_from_slice(text.as_bytes());
        if let Some(output) = state.output.take() {
            let shared = self.shared.clone();
            std::thread::spawn(move || shared.write_all(output));
        }
        self.shared.work.notify_one();
    }

    /// The copy is to end: no caller waits any more.
    pub fn end(&self) {
        self.shared.state.lock().is_ending = true;
        self.shared.progress.notify_all();
    }

    /// Waits until all is written, or a write has failed; after [`Printer::end`] no longer than
    /// [`END_WAIT`]. Returns whether it is so.
    pub fn finish(&self) -> bool {
        let is_over = |state: &State| self.shared.is_idle(state) || self.shared.has_failed();
        block_in_place(|| {
            let mut state = self.shared.progress_while(|it| !is_over(it) && !it.is_ending);
            let until = Instant::now() + END_WAIT;
            while !is_over(&state) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return false;
                }
                let waited = self.shared.progress.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            true
        })
    }
}

impl Shared {
    fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }

    fn is_full(&self, state: &State) -> bool {
        state.waiting.len() >= LIMIT_BYTES && !state.is_ending && !self.has_failed()
    }

    fn is_idle(&self, state: &State) -> bool {
        state.waiting.is_empty() && !state.is_writing
    }

    /// Waits as a caller, while the condition is true.
    fn progress_while(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.progress.wait_while(self.state.lock(), |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn write_all(&self, mut output: Output) {
        loop {
            let waited = self.work.wait_while(self.state.lock(), |state| state.waiting.is_empty());
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let text = std::mem::take(&mut state.waiting);
            state.is_writing = true;
            drop(state);
            self.progress.notify_all();
            let written = output(&text);
            if let Err(error) = &written {
                self.failed.send_replace(Some(error.kind()));
            }
            self.state.lock().is_writing = false;
            self.progress.notify_all();
            if written.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A printer whose writes wait for a word, and what it has written.
    fn held() -> (Printer, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (go, gate) = mpsc::channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let to = written.clone();
        let printer = Printer::new(move |text| {
            let _ = gate.recv();
            to.lock().extend_from_slice(text);
            Ok(())
        });
        (printer, go, written)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reader_that_has_stopped_does_not_hold_a_copy_that_is_to_end() {
        let (printer, go, written) = held();
        let (printer, line) = (Arc::new(printer), "x".repeat(LIMIT_BYTES / 4));
        // More than there are threads.
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (printer, line) = (printer.clone(), line.clone());
                tokio::spawn(async move { (0..4).for_each(|_| printer.print(&line)) })
            })
            .collect();
        // The other tasks go on.
        tokio::spawn(async {}).await.unwrap();
        assert!(tasks.iter().any(|task| !task.is_finished()));
        printer.end();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(!printer.finish());
        drop(go);
        assert!(printer.finish());
        assert_eq!(written.lock().len(), 8 * 4 * line.len());
    }

    #[test]
    fn all_is_printed_in_order_until_a_write_fails() {
        let (printer, go, written) = held();
        let wanted: String = (0..1000).map(|number| format!("{number}\n")).collect();
        (0..1000).for_each(|number| printer.print(&format!("{number}\n")));
        drop(go);
        assert!(printer.finish());
        assert_eq!(*written.lock(), wanted.as_bytes());

        let closed = Printer::new(|_| Err(io::ErrorKind::BrokenPipe.into()));
        closed.print("a line");
        assert!(closed.finish());
        assert_eq!(*closed.failed().borrow(), Some(io::ErrorKind::BrokenPipe));
        closed.print(&"x".repeat(2 * LIMIT_BYTES));
        closed.print("none of them waits");
    }
}
