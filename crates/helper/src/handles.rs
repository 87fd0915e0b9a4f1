//! Open files and directories.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base::Mutex;
use sftp::RemoteHandle;

use crate::directory::Listing;
use crate::lost_locks::LostLocks;
use crate::paths::FileSystem;
use crate::schedule::Resource;
use crate::session::MAX_REQUESTS;
use crate::status::{BAD_HANDLE, Failure, Result};

/// Connections of a client, at most: the first one, and 64 direct ones. They include those that
/// have ended while file systems hang, whose threads wait for these.
const MAX_CONNECTIONS: usize = 65;

/// What a handle leads to.
#[derive(Clone, Debug)]
pub(crate) enum Open {
    File(Arc<File>),
    Directory(Arc<Directory>),
}

impl Open {
    /// The file system. `None` if it is a local one: requests need no other machine.
    pub(crate) fn file_system(&self) -> Option<FileSystem> {
        match self {
            Open::File(file) => file.file_system,
            Open::Directory(directory) => directory.file_system,
        }
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) fd: OwnedFd,
    pub(crate) inode: Resource,
    pub(crate) opened: Instant,
    pub(crate) file_system: Option<FileSystem>,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Locked by the request that reads it; there is one at a time.
    pub(crate) listing: Mutex<Listing>,
    /// The id of the request that has opened it.
    pub(crate) opened_by: u32,
    pub(crate) file_system: Option<FileSystem>,
}

/// The room for handles, and what else all connections of a client share.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) lost_locks: LostLocks,
    /// The greatest number of handles that are open at the same time.
    pub(crate) max: usize,
    open: AtomicUsize,
    connections: AtomicUsize,
}

/// The room that a connection takes, until all its threads have ended.
#[derive(Debug)]
pub(crate) struct Place(Arc<Room>);

impl Room {
    pub(crate) fn new(max: usize) -> Room {
        let (open, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Room { lost_locks: LostLocks::default(), max, open, connections }
    }

    /// The room for another connection; `None` if there is none.
    pub(crate) fn place(self: &Arc<Room>) -> Option<Place> {
        let more = |taken| (taken < MAX_CONNECTIONS).then_some(taken + 1);
        let taken = self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All handles of a connection.
#[derive(Debug)]
pub(crate) struct Handles {
    slots: Mutex<Slots>,
    pub(crate) room: Arc<Room>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
    /// The last directories that were opened: the id of the request, and the handle. As many as
    /// there are requests in flight, each of which may name one.
    opened: VecDeque<(u32, u64)>,
}

/// A place of a handle. Its serial number changes with each handle, so that a handle that was
/// closed never leads to a later file.
#[derive(Debug)]
struct Slot {
    serial: u32,
    open: Option<Open>,
}

impl Handles {
    pub(crate) fn new(room: Arc<Room>) -> Handles {
        Handles { slots: Mutex::default(), room }
    }

    /// Whether there is room for another handle. Asked before a file is opened, which may create
    /// it.
    pub(crate) fn check_room(&self) -> Result<()> {
        match self.room.open.load(Ordering::Relaxed) < self.room.max {
            true => Ok(()),
            false => Err(Failure::System(rustix::io::Errno::MFILE)),
        }
    }

    pub(crate) fn insert(&self, open: Open) -> Result<RemoteHandle> {
        let mut slots = self.slots.lock();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                slots.slots.push(Slot { serial: 0, open: None });
                (slots.slots.len() - 1) as u32
            }
        };
        slots.open += 1;
        self.room.open.fetch_add(1, Ordering::Relaxed);
        let place = &mut slots.slots[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        place.open = Some(open);
        let bytes = [slot.to_be_bytes(), place.serial.to_be_bytes()].concat();
        RemoteHandle::new(&bytes).map_err(|_| BAD_HANDLE)
    }

    /// The directory that the request with this id opens can be listed by this id; not any more the
    /// one that an earlier request with this id has opened.
    pub(crate) fn insert_directory(
        &self,
        id: u32,
        open: impl FnOnce() -> Result<Directory>,
    ) -> Result<RemoteHandle> {
        self.forget(id);
        let handle = self.insert(Open::Directory(Arc::new(open()?)))?;
        let opened = &mut self.slots.lock().opened;
        opened.truncate(MAX_REQUESTS - 1);
        opened.push_front((id, number(handle.as_bytes())?));
        Ok(handle)
    }

    /// The id of a request stands for no directory any more.
    pub(crate) fn forget(&self, id: u32) {
        self.slots.lock().opened.retain(|(opened_by, _)| *opened_by != id);
    }

    /// A directory that may also be named by the id of the request that has opened it.
    pub(crate) fn listed(&self, handle: &[u8]) -> Result<Arc<Directory>> {
        let Some(id) = early(handle) else { return self.directory(handle) };
        let opened =
            self.slots.lock().opened.iter().find(|(opened_by, _)| *opened_by == id).copied();
        self.directory(&opened.ok_or(BAD_HANDLE)?.1.to_be_bytes())
    }

    pub(crate) fn get(&self, handle: &[u8]) -> Result<Open> {
        let (slot, serial) = parse(handle)?;
        let slots = self.slots.lock();
        let place = slots.slots.get(slot as usize).filter(|place| place.serial == serial);
        place.and_then(|place| place.open.clone()).ok_or(BAD_HANDLE)
    }

    /// As [`Handles::get`], also of a directory that is named by the id of a request.
    pub(crate) fn named(&self, handle: &[u8]) -> Result<Open> {
        match early(handle) {
            None => self.get(handle),
            Some(_) => self.listed(handle).map(Open::Directory),
        }
    }

    pub(crate) fn file(&self, handle: &[u8]) -> Result<Arc<File>> {
        match self.get(handle)? {
            Open::File(file) => Ok(file),
            Open::Directory(_) => Err(BAD_HANDLE),
        }
    }

    pub(crate) fn directory(&self, handle: &[u8]) -> Result<Arc<Directory>> {
        match self.get(handle)? {
            Open::Directory(directory) => Ok(directory),
            Open::File(_) => Err(BAD_HANDLE),
        }
    }

    /// The open files of local file systems.
    pub(crate) fn local_files(&self) -> HashSet<Resource> {
        let slots = self.slots.lock();
        let open = slots.slots.iter().filter_map(|slot| slot.open.as_ref());
        let local = open.filter_map(|open| match open {
            Open::File(file) if file.file_system.is_none() => Some(file.inode),
            _ => None,
        });
        local.collect()
    }

    pub(crate) fn remove(&self, handle: &[u8]) -> Result<Open> {
        let (slot, serial) = parse(handle)?;
        let mut slots = self.slots.lock();
        let place = slots.slots.get_mut(slot as usize).filter(|place| place.serial == serial);
        let open = place.and_then(|place| place.open.take()).ok_or(BAD_HANDLE)?;
        slots.free.push(slot);
        slots.open -= 1;
        self.room.open.fetch_sub(1, Ordering::Relaxed);
        Ok(open)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.room.open.fetch_sub(self.slots.lock().open, Ordering::Relaxed);
    }
}

/// The id of the request that opens a directory, in place of its handle.
pub(crate) fn early(handle: &[u8]) -> Option<u32> {
    handle.try_into().ok().map(u32::from_be_bytes)
}

/// The number that a handle is, which is never that of another one.
pub(crate) fn number(handle: &[u8]) -> Result<u64> {
    let bytes: [u8; 8] = handle.try_into().map_err(|_| BAD_HANDLE)?;
    Ok(u64::from_be_bytes(bytes))
}

fn parse(handle: &[u8]) -> Result<(u32, u32)> {
    let number = number(handle)?;
    Ok(((number >> 32) as u32, number as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Open {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        Open::File(Arc::new(File {
            fd,
            inode: Resource::Inode(0, 0),
            opened: Instant::now(),
            file_system: None,
        }))
    }

    #[test]
    fn a_closed_handle_never_leads_to_a_later_file() {
        let room = Arc::new(Room::new(1));
        let handles = Handles::new(room.clone());
        let first = handles.insert(file()).unwrap();
        assert!(handles.check_room().is_err());
        assert!(handles.directory(first.as_bytes()).is_err());
        handles.remove(first.as_bytes()).unwrap();
        assert!(handles.remove(first.as_bytes()).is_err());
        handles.check_room().unwrap();
        let second = handles.insert(file()).unwrap();
        assert_ne!(first, second);
        assert!(handles.file(first.as_bytes()).is_err() && handles.file(second.as_bytes()).is_ok());
        for invalid in [&b""[..], b"1234567", b"123456789", &[0xff; 8]] {
            assert!(handles.get(invalid).is_err());
        }
        // Another connection of the client has no more room, until this one ends.
        let other = Handles::new(room);
        assert!(other.check_room().is_err());
        drop(handles);
        other.check_room().unwrap();
    }
}
