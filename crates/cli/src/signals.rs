//! Signals that the programs handle.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that is waited for instead of ending the process.
///
/// A signal that the process was started to ignore stays ignored, and is never received: nohup(1)
/// sets this for SIGHUP, and shells without job control for the SIGINT and SIGQUIT of commands in
/// the background.
pub struct HandledSignal(Option<Signal>);

impl HandledSignal {
    /// Must be called within a runtime.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn new(kind: SignalKind) -> io::Result<HandledSignal> {
        if is_ignored(kind) {
            return Ok(HandledSignal(None));
        }
        Ok(HandledSignal(Some(signal(kind)?)))
    }

    /// Waits for the next one. Dropping the future loses none.
    pub async fn received(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
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
    fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
        let mut ignoring = Command::new("sh");
        ignoring.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        let test = "signals::tests::a_signal_that_was_ignored_at_the_start_stays_ignored";
        if !is_inside(ignoring, test) {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut hangup = HandledSignal::new(SignalKind::hangup()).unwrap();
            let mut terminate = HandledSignal::new(SignalKind::terminate()).unwrap();
            for signal in ["-HUP", "-TERM"] {
                let process = std::process::id().to_string();
                assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
            }
            tokio::select! {
                biased;
                () = hangup.received() => panic!("SIGHUP was ignored"),
                () = terminate.received() => {}
            }
        });
    }
}
