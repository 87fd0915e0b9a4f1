//! Records SIGINT and similar signals instead of ending the process, so that the program can clean
//! up.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use cli::signals::HandledSignal;
use tokio::signal::unix::SignalKind;

/// The signals received.
pub struct Interrupts(Receiver<()>);

impl Interrupts {
    /// From here on these signals do not end the process.
    pub fn listen() -> io::Result<Interrupts> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let mut interrupt = HandledSignal::new(SignalKind::interrupt())?;
        let mut terminate = HandledSignal::new(SignalKind::terminate())?;
        let mut hangup = HandledSignal::new(SignalKind::hangup())?;
        drop(entered);
        let (sender, receiver) = channel();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        () = interrupt.received() => {}
                        () = terminate.received() => {}
                        () = hangup.received() => {}
                    }
                    if sender.send(()).is_err() {
                        return;
                    }
                }
            });
        })?;
        Ok(Interrupts(receiver))
    }

    /// Whether a signal was received since the last call.
    pub fn has_come(&self) -> bool {
        self.0.try_recv().is_ok()
    }

    /// Waits for the next signal.
    pub fn wait(&self) {
        let _ = self.0.recv();
    }
}
