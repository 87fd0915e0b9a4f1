//! Files whose locks have ended with a connection, and not by their owner.
//!
//! A client has several connections with handles of a file, and sets locks over one of them. When
//! that one ends, others may get the locks. What the client has sent over its other connections
//! before it has noticed that must not change the file any more. So handles that were open are
//! invalid for changes then, and the locks end when the changes in progress have ended.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::handles::File;
use crate::schedule::Resource;
use crate::status::{LOCKS_LOST, Result};

/// Files that are remembered, at most: those of 16 connections. All are dropped then.
const MAX_FILES: usize = 16_384;

/// Shared by all connections of a client. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct LostLocks {
    state: Mutex<State>,
    /// A change has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lost: HashMap<Resource, Instant>,
    /// The number of changes in progress.
    changing: HashMap<Resource, usize>,
}

impl LostLocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of a file begins. It ends when the result is dropped.
    pub(crate) fn change(&self, file: &File) -> Result<Change<'_>> {
        let mut state = self.state();
        if state.lost.get(&file.inode).is_some_and(|lost| file.opened <= *lost) {
            return Err(LOCKS_LOST);
        }
        *state.changing.entry(file.inode).or_default() += 1;
        Ok(Change { lost: self, inode: file.inode })
    }

    /// The locks in these files are lost as soon as this returns.
    pub(crate) fn lose(&self, files: Vec<Resource>) {
        let mut state = self.state();
        if state.lost.len() + files.len() > MAX_FILES {
            state.lost.clear();
        }
        let now = Instant::now();
        state.lost.extend(files.iter().map(|file| (*file, now)));
        let is_changing =
            |state: &mut State| files.iter().any(|file| state.changing.contains_key(file));
        drop(self.changed.wait_while(state, is_changing));
    }
}

/// A change in progress.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    lost: &'a LostLocks,
    inode: Resource,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = self.lost.state();
        if let Some(count) = state.changing.get_mut(&self.inode) {
            *count -= 1;
            if *count == 0 {
                state.changing.remove(&self.inode);
                self.lost.changed.notify_all();
            }
        }
    }
}
