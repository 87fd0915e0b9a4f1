//! Files whose locks have ended with a connection, and not by their owner.
//!
//! A client has several connections with handles of a file, and sets locks over one of them. When
//! that one ends, others may get the locks. What the client has sent over its other connections
//! before it has noticed that must not change the file any more. So handles that were open are
//! invalid for changes then, and the locks end when the changes in progress have ended.
//!
//! The client may have noticed the end of the connection first, and have connected again. Then the
//! handles of the new connection were open when the locks end, since it waits for these locks, or
//! has read locks already, which do not exclude each other. A client has all its locks in a file
//! over one connection. So one over which it has set a lock in the file after the last one over the
//! other is its successor, and its handles stay valid.

use std::collections::HashMap;
use std::sync::Condvar;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::Mutex;

use crate::handles::File;
use crate::schedule::Resource;
use crate::status::{LOCKS_LOST, Result};

/// Files with losses, and files in which locks were set, that are remembered, at most: those of 16
/// connections. All are dropped then.
const MAX_FILES: usize = 16_384;

/// Shared by all connections of a client. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct LostLocks {
    state: Mutex<State>,
    /// A change has ended.
    changed: Condvar,
    next: AtomicU64,
}

/// The loss of the locks in a file.
#[derive(Debug)]
struct Loss {
    at: Instant,
    /// The connections over which a lock in the file was set after the lost ones, or held.
    successors: Vec<u64>,
}

#[derive(Debug, Default)]
struct State {
    lost: HashMap<Resource, Loss>,
    /// The connections over which locks in a file were set, in the order of the last ones.
    lockers: HashMap<Resource, Vec<u64>>,
    /// The number of changes in progress.
    changing: HashMap<Resource, usize>,
}

impl LostLocks {
    /// A number for another connection.
    pub(crate) fn connection(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A lock was set in this file over this connection.
    pub(crate) fn set(&self, inode: Resource, connection: u64) {
        let mut state = self.state.lock();
        if let Some(loss) = state.lost.get_mut(&inode)
            && !loss.successors.contains(&connection)
        {
            loss.successors.push(connection);
        }
        if state.lockers.len() >= MAX_FILES {
            state.lockers.clear();
        }
        let lockers = state.lockers.entry(inode).or_default();
        lockers.retain(|locker| *locker != connection);
        lockers.push(connection);
    }

    /// A change of a file begins over this connection, which may have locks in the file. It ends
    /// when the result is dropped.
    pub(crate) fn change(
        &self,
        file: &File,
        connection: u64,
        has_locks: impl FnOnce() -> bool,
    ) -> Result<Change<'_>> {
        let mut state = self.state.lock();
        if let Some(loss) = state.lost.get_mut(&file.inode)
            && file.opened <= loss.at
            && !loss.successors.contains(&connection)
        {
            if !has_locks() {
                return Err(LOCKS_LOST);
            }
            loss.successors.push(connection);
        }
        *state.changing.entry(file.inode).or_default() += 1;
        Ok(Change { lost: self, inode: file.inode })
    }

    /// This connection has ended, and the locks in these files are lost as soon as this returns.
    pub(crate) fn lose(&self, files: &[Resource], connection: u64) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.lost.len() + files.len() > MAX_FILES {
            state.lost.clear();
        }
        for file in files {
            let lockers = state.lockers.get(file).map_or(&[][..], Vec::as_slice);
            let own = lockers.iter().position(|locker| *locker == connection);
            let successors = own.map_or(&[][..], |own| &lockers[own + 1..]).to_vec();
            state.lost.insert(*file, Loss { at: Instant::now(), successors });
        }
        let is_changing =
            |state: &mut State| files.iter().any(|file| state.changing.contains_key(file));
        drop(self.changed.wait_while(guard, is_changing));
    }

    /// This connection has ended, and has no locks.
    pub(crate) fn forget(&self, connection: u64) {
        self.state.lock().lockers.retain(|_, lockers| {
            lockers.retain(|locker| *locker != connection);
            !lockers.is_empty()
        });
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
        let mut state = self.lost.state.lock();
        if let Some(count) = state.changing.get_mut(&self.inode) {
            *count -= 1;
            if *count == 0 {
                state.changing.remove(&self.inode);
                self.lost.changed.notify_all();
            }
        }
    }
}
