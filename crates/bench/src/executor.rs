//! Runs programs so that the run survives them.

use std::process::{Command, Output};
use std::time::Duration;

use crate::failure::Failure;
use crate::results::Usage;

/// Runs programs so that the run survives them: each in a process group of its own, with a
/// deadline, ended when the user ends the run.
#[derive(Clone, Debug)]
pub struct Executor {}

/// A program that has ended by itself.
#[derive(Debug)]
pub struct Ran {
    /// Status and what it printed.
    pub output: Output,
    /// From its start to its end.
    pub seconds: f64,
    /// Of itself and what it waited for.
    pub usage: Usage,
}

impl Executor {
    /// Runs a program to its end. Its standard input is empty unless the command has another.
    ///
    /// # Errors
    /// When it cannot be started, is not done by `limit` (its group is killed), or the run was
    /// interrupted. A status other than 0 is no error here.
    pub fn run(&self, command: Command, limit: Duration) -> Result<Ran, Failure> {
        let _ = (command, limit);
        unimplemented!()
    }

    /// The same; a status other than 0 is a failure that quotes its last words.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn succeed(&self, command: Command, limit: Duration) -> Result<Ran, Failure> {
        let _ = (command, limit);
        unimplemented!()
    }
}
