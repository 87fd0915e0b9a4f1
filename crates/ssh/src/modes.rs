//! Other modes of a terminal for a time.

use std::io;
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// A terminal with changed modes, until this is dropped.
pub(crate) struct ChangedModes<T: AsFd> {
    terminal: T,
    before: Termios,
}

impl<T: AsFd> ChangedModes<T> {
    /// Changes the modes. What was typed before is discarded.
    pub(crate) fn of(terminal: T, change: impl FnOnce(&mut Termios)) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut modes = before.clone();
        change(&mut modes);
        tcsetattr(&terminal, OptionalActions::Flush, &modes)?;
        Ok(ChangedModes { terminal, before })
    }
}

impl<T: AsFd> Drop for ChangedModes<T> {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
