//! Signals that the programs handle.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that are waited for instead of ending the process.
///
/// A signal that the process was started to ignore stays ignored, and is never received: nohup(1)
/// sets this for SIGHUP, and shells without job control for the SIGINT and SIGQUIT of commands in
/// the background.
pub struct HandledSignals(Vec<(SignalKind, Signal)>);

impl HandledSignals {
    /// Must be called within a runtime.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn new(kinds: &[SignalKind]) -> io::Result<HandledSignals> {
        let handled = kinds.iter().filter(|&&kind| !is_ignored(kind));
        Ok(HandledSignals(
            handled.map(|&kind| Ok((kind, signal(kind)?))).collect::<io::Result<_>>()?,
        ))
    }

    /// Waits for the next one. Dropping the future loses none.
    pub async fn next(&mut self) -> SignalKind {
        poll_fn(|context| {
            let mut received = self
                .0
                .iter_mut()
                .filter_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            received.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
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
    signals: HandledSignals,
    requested: Requested,
}

impl EndSignals {
    /// Must be called within a runtime.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn new() -> io::Result<EndSignals> {
        Ok(EndSignals {
            signals: HandledSignals::new(&[
                SignalKind::terminate(),
                SignalKind::interrupt(),
                SignalKind::hangup(),
            ])?,
            requested: Requested::default(),
        })
    }

    /// Waits for the next request, which may consist of several signals; returns the number of the
    /// first one.
    pub async fn next(&mut self) -> i32 {
        self.next_of(|_| true).await
    }

    /// As [`next`](Self::next), of the signals for which `is_request` is true. The others are
    /// ignored, and no later signal belongs to one of them.
    pub async fn next_of(&mut self, is_request: impl Fn(i32) -> bool) -> i32 {
        loop {
            let signal = self.signals.next().await.as_raw_value();
            if is_request(signal) && self.requested.is_new(Instant::now()) {
                return signal;
            }
        }
    }
}

/// Calls `received` with the number of each signal that requests the end of the process, on a
/// thread of its own: for what has no runtime.
///
/// # Errors
/// When the system refuses a handler or the thread.
pub fn watch_end_signals(mut received: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        EndSignals::new()?
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        loop {
            received(runtime.block_on(signals.next()));
        }
    })?;
    Ok(())
}

/// Whether this process ignores the signal, by proc(5): sigaction(2) has no safe interface.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use testkit::own_process::is_inside;

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

    /// Sends a signal to this process.
    fn send(signal: &str) {
        let process = std::process::id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    #[test]
    fn a_signal_that_is_no_request_does_not_hide_the_next_one() {
        let test = "signals::tests::a_signal_that_is_no_request_does_not_hide_the_next_one";
        if !is_inside(Command::new("env"), test) {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut signals = EndSignals::new().unwrap();
            send("-TERM");
            assert_eq!(signals.next().await, SignalKind::terminate().as_raw_value());
            tokio::time::sleep(ONE_REQUEST).await;
            send("-HUP");
            let is_request = |signal| signal != SignalKind::hangup().as_raw_value();
            let received = async |signals: &mut EndSignals, limit| {
                tokio::time::timeout(limit, signals.next_of(is_request)).await.ok()
            };
            assert_eq!(received(&mut signals, Duration::from_millis(300)).await, None);
            send("-TERM");
            let second = received(&mut signals, Duration::from_secs(10)).await;
            assert_eq!(second, Some(SignalKind::terminate().as_raw_value()));
        });
    }

    #[test]
    fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
        let mut ignoring = Command::new("sh");
        ignoring.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        let test = "signals::tests::a_signal_that_was_ignored_at_the_start_stays_ignored";
        if !is_inside(ignoring, test) {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let kinds = [SignalKind::hangup(), SignalKind::terminate()];
            let mut signals = HandledSignals::new(&kinds).unwrap();
            ["-HUP", "-TERM"].into_iter().for_each(send);
            assert_eq!(signals.next().await, SignalKind::terminate(), "SIGHUP was ignored");
        });
    }
}
