//! What the commands need of their process: a runtime, signals, the current directory.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cli::signals::HandledSignal;
use cli::{OrProblem, Problem};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::SignalKind;

/// The current directory.
pub fn current_directory() -> Result<PathBuf, Problem> {
    std::env::current_dir().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Problem::new("current directory", "it was removed or unmounted")
            .hint("change to another directory"),
        _ => Problem::new("current directory", error.to_string()),
    })
}

/// A runtime with this many threads, beside those of blocking calls. Call this before another
/// thread is started.
pub fn runtime(workers: usize) -> Result<Runtime, Problem> {
    crate::allocator::share_one_heap();
    allow_many_descriptors();
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .or_problem("cannot start")
}

/// Raises the limit of descriptors: each open file of a local branch takes one, and each session.
fn allow_many_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        raised.unwrap_or_else(
            |error| tracing::debug!(%error, "cannot raise the limit of open files"),
        );
    }
}

/// Signals within this time after the first one belong to the same request. The manager of a login
/// session that ends sends SIGTERM and SIGHUP at once, and timeout(1) its signal twice; a user who
/// repeats a request has waited before.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// When the end was requested last.
#[derive(Default)]
struct Requested(Option<Instant>);

impl Requested {
    /// Whether a signal at this time is a new request.
    fn is_new(&mut self, now: Instant) -> bool {
        let is_new = self.0.is_none_or(|last| now.duration_since(last) >= ONE_REQUEST);
        if is_new {
            self.0 = Some(now);
        }
        is_new
    }
}

/// The signals that request the end of the process. From here on, they do not end it by themselves.
pub struct EndSignals {
    terminate: HandledSignal,
    interrupt: HandledSignal,
    hangup: HandledSignal,
    requested: Requested,
}

impl EndSignals {
    /// Must be called within a runtime.
    pub fn new() -> io::Result<EndSignals> {
        Ok(EndSignals {
            terminate: HandledSignal::new(SignalKind::terminate())?,
            interrupt: HandledSignal::new(SignalKind::interrupt())?,
            hangup: HandledSignal::new(SignalKind::hangup())?,
            requested: Requested::default(),
        })
    }

    /// Waits for the next request, which may consist of several signals; returns the number of the
    /// first one.
    pub async fn next(&mut self) -> i32 {
        loop {
            let number = tokio::select! {
                () = self.terminate.received() => libc::SIGTERM,
                () = self.interrupt.received() => libc::SIGINT,
                () = self.hangup.received() => libc::SIGHUP,
            };
            if self.requested.is_new(Instant::now()) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_in_quick_succession_are_one_request() {
        let (mut requested, first) = (Requested::default(), Instant::now());
        let mut is_new =
            |milliseconds| requested.is_new(first + Duration::from_millis(milliseconds));
        assert!(is_new(0));
        assert!(!is_new(0) && !is_new(999));
        assert!(is_new(1000));
        assert!(!is_new(1001));
        assert!(is_new(2000));
    }
}
