//! Locks of many owners in one process, by the kernel's own locks.
//!
//! The kernel knows locks of processes and of open file descriptions. So each owner of locks in a
//! file gets a description of its own, which is opened again from a descriptor of the file. Its
//! `fcntl(2)` locks are those of the description (`F_OFD_SETLK`): they exclude the classical locks
//! of other programs, and all end when the description is closed.
//!
//! When a description that was open for writing is closed, file watchers see the end of a write,
//! also if nothing was written. So one is for reading only if that suffices, and none is opened for
//! an `fcntl` lock that is excluded.
//!
//! Nothing here waits: a caller that waits for a lock repeats the request. Each call may take as
//! long as the file system needs for a request.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{Errno, Lock, LockFamily, LockKind, LockOwner, LockRange, LockedRanges, Mutex, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fcntl_getfl, flock, fstat};

use crate::attr::{errno, of_nix};

/// Owners of locks in files, at most: each takes a descriptor.
const MAX_OWNERS: usize = 1024;

/// Ranges that one owner has locked in one file, at most.
const MAX_RANGES: usize = 1024;

/// First and longest pause between two attempts to set a lock for which a caller waits. The kernel
/// could wait itself, but a thread that does so can be ended by signals only. The longest pause is
/// the delay with which an unlock by another process is noticed.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// The pause before an attempt; `attempts` were made before.
pub fn lock_pause(attempts: u32) -> Duration {
    let [first, longest] = PAUSES;
    first.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(longest)
}

/// Device and inode number.
type FileId = (u64, u64);

/// An owner's description of one file.
#[derive(Debug)]
struct Description {
    fd: OwnedFd,
    held: LockedRanges,
    /// Another one, of this process, after each change of `held`.
    version: u64,
    /// It is not in the table any more.
    is_removed: bool,
}

/// The next version of a description.
static VERSION: AtomicU64 = AtomicU64::new(1);

type Shared = Arc<Mutex<Description>>;

type Key = (FileId, LockOwner);

/// The locks of one owner in one file.
#[derive(Debug)]
struct Held {
    description: Shared,
    /// The handles through which the owner has set locks.
    handles: Vec<u64>,
}

/// All locks that this process holds for its owners.
///
/// The table is never locked during a system call, and a description is locked before it. So only
/// calls for the same owner and file wait for a file system that does not answer.
#[derive(Debug, Default)]
pub struct Locks {
    table: Mutex<HashMap<Key, Held>>,
    /// No other lock is set. Changed while the table is locked.
    has_ended: AtomicBool,
}

/// A lock that was set, and what was locked in its range before.
#[derive(Debug)]
pub struct LockUndo {
    file: FileId,
    owner: LockOwner,
    range: LockRange,
    before: LockedRanges,
    version: u64,
}

impl Locks {
    /// Sets a lock through the descriptor `file`, which the caller knows as `handle`, without
    /// waiting.
    ///
    /// # Errors
    /// Those of [`Remote::lock`](base::Remote::lock).
    pub fn set(
        &self,
        handle: u64,
        file: impl AsFd,
        Lock { owner, range, kind }: Lock,
    ) -> Result<LockUndo> {
        let id = check(&file, owner, Some(kind))?;
        loop {
            let shared = self.description(&file, (id, owner), range, kind)?;
            let mut description = shared.lock();
            if description.is_removed {
                continue;
            }
            let before = description.held.within(range);
            let mut set = match description.held.len() < MAX_RANGES {
                true => description.set(owner, range, Some(kind)),
                false => Err(Errno::ENOLCK),
            };
            // It is not open for writing.
            if set == Err(Errno::EBADF) {
                set = description
                    .open_for_writing(&file, owner.family)
                    .and_then(|()| description.set(owner, range, Some(kind)));
            }
            let version = description.version;
            if set.is_ok()
                && let Some(held) = self.table.lock().get_mut(&(id, owner))
                && !held.handles.contains(&handle)
            {
                held.handles.push(handle);
            }
            self.remove_if_unused((id, owner), &mut description);
            return set.map(|()| LockUndo { file: id, owner, range, before, version });
        }
    }

    /// Removes the locks of an owner in a range.
    pub fn unlock(&self, file: impl AsFd, owner: LockOwner, range: LockRange) -> Result<()> {
        let id = check(&file, owner, None)?;
        let Some(shared) = self.known((id, owner)) else { return Ok(()) };
        let mut description = shared.lock();
        let unlocked = description.set(owner, range, None);
        self.remove_if_unused((id, owner), &mut description);
        unlocked
    }

    /// A lock of another owner that excludes this one.
    pub fn test(
        &self,
        file: impl AsFd,
        Lock { owner, range, kind }: Lock,
    ) -> Result<Option<(LockRange, LockKind)>> {
        let id = check(&file, owner, None)?;
        if owner.family == LockFamily::Flock {
            // There is no such request for flock(2).
            return Err(Errno::EINVAL);
        }
        match self.known((id, owner)) {
            Some(shared) => excluding(&shared.lock().fd, range, kind),
            // The description of the handle has no locks, so it excludes no owner.
            None => excluding(&file, range, kind),
        }
    }

    /// Restores what was locked before a lock was set, unless its owner has changed its locks
    /// since.
    pub fn undo(&self, undo: &LockUndo) {
        let key = (undo.file, undo.owner);
        let Some(shared) = self.known(key) else { return };
        let mut description = shared.lock();
        if description.version != undo.version {
            return;
        }
        // Conversions first, so that nothing is free in between that was locked before. One to a
        // stronger lock may fail; then the weaker one stays.
        for (range, kind) in undo.before.iter() {
            let _ = description.set(undo.owner, range, Some(kind));
        }
        for gap in undo.before.gaps(undo.range) {
            let _ = description.set(undo.owner, gap, None);
        }
        self.remove_if_unused(key, &mut description);
    }

    /// The handle was closed: ends the locks of those owners that have used no other one.
    pub fn close(&self, handle: u64) {
        let mut unused = Vec::new();
        for (key, held) in &mut *self.table.lock() {
            let before = held.handles.len();
            held.handles.retain(|used| *used != handle);
            if before > 0 && held.handles.is_empty() {
                unused.push((*key, held.description.clone()));
            }
        }
        for (key, shared) in unused {
            let mut description = shared.lock();
            // Not if the owner has used another one meanwhile.
            if self.table.lock().get(&key).is_some_and(|held| held.handles.is_empty()) {
                self.remove(key, &mut description);
            }
        }
    }

    /// Ends the locks in the files with these devices and inode numbers, and sets no other lock any
    /// more, in any file.
    pub fn end(&self, is_of: impl Fn((u64, u64)) -> bool) {
        let ended: Vec<_> = {
            let table = self.table.lock();
            self.has_ended.store(true, Ordering::Relaxed);
            let ended = table.iter().filter(|((file, _), _)| is_of(*file));
            ended.map(|(key, held)| (*key, held.description.clone())).collect()
        };
        for (key, shared) in ended {
            self.remove(key, &mut shared.lock());
        }
    }

    /// Whether anything is locked.
    pub fn is_empty(&self) -> bool {
        self.table.lock().is_empty()
    }

    /// Device and inode number of each file in which something is locked.
    pub fn files(&self) -> Vec<(u64, u64)> {
        self.table.lock().keys().map(|(file, _)| *file).collect()
    }

    fn known(&self, key: Key) -> Option<Shared> {
        self.table.lock().get(&key).map(|held| held.description.clone())
    }

    /// The description of an owner. Without one, it is opened for this lock, unless that is
    /// excluded.
    fn description(
        &self,
        file: impl AsFd,
        key: Key,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Shared> {
        if let Some(known) = self.known(key) {
            return Ok(known);
        }
        // `flock(2)` has no such request, and needs no descriptor for writing.
        let is_posix = key.1.family == LockFamily::Posix;
        if is_posix
            && excluding(&file, range, kind)?.is_some()
            // It was not one of this owner, which another caller has set since.
            && self.known(key).is_none()
        {
            return Err(Errno::EAGAIN);
        }
        let fd = open_again(file, is_posix && kind == LockKind::Write)?;
        let mut table = self.table.lock();
        if table.len() >= MAX_OWNERS || self.has_ended.load(Ordering::Relaxed) {
            return Err(Errno::ENOLCK);
        }
        let new = || {
            let held = LockedRanges::default();
            let description = Description { fd, held, version: 0, is_removed: false };
            Held { description: Arc::new(Mutex::new(description)), handles: Vec::new() }
        };
        Ok(table.entry(key).or_insert_with(new).description.clone())
    }

    /// Ends all locks of an owner in a file.
    fn remove(&self, key: Key, description: &mut Description) {
        // A caller that has found the description before keeps it open for a moment.
        let _ = description.set(key.1, LockRange::WHOLE, None);
        description.held = LockedRanges::default();
        self.remove_if_unused(key, description);
    }

    fn remove_if_unused(&self, key: Key, description: &mut Description) {
        if description.held.is_empty() && !description.is_removed {
            description.is_removed = true;
            self.table.lock().remove(&key);
        }
    }
}

impl Description {
    fn set(&mut self, owner: LockOwner, range: LockRange, kind: Option<LockKind>) -> Result<()> {
        let set = request(&self.fd, owner.family, range, kind);
        match (set, owner.family) {
            (Ok(()), _) => self.held.set(range, kind),
            (Err(Errno::EBADF), _) => return set,
            // flock(2) removes the old lock first when it converts one.
            (Err(_), LockFamily::Flock) => self.held.set(range, None),
            (Err(_), LockFamily::Posix) => return set,
        }
        self.version = VERSION.fetch_add(1, Ordering::Relaxed);
        set
    }

    /// Replaces the descriptor by one that is open for writing, with the same locks, if `file` is
    /// open for writing.
    fn open_for_writing(&mut self, file: impl AsFd, family: LockFamily) -> Result<()> {
        if access(&file)? == OFlags::RDONLY {
            return Err(Errno::EBADF);
        }
        let fd = open_again(file, true)?;
        // They are read locks, so those of both descriptions do not exclude each other.
        for (range, kind) in self.held.iter() {
            request(&fd, family, range, Some(kind)).map_err(|_| Errno::ENOLCK)?;
        }
        self.fd = fd;
        Ok(())
    }
}

fn request(
    fd: &OwnedFd,
    family: LockFamily,
    range: LockRange,
    kind: Option<LockKind>,
) -> Result<()> {
    let requested = match family {
        LockFamily::Posix => {
            let record = record(range, kind);
            fcntl(fd, FcntlArg::F_OFD_SETLK(&record)).map(drop).map_err(of_nix)
        }
        LockFamily::Flock => {
            let operation = match kind {
                Some(LockKind::Read) => FlockOperation::NonBlockingLockShared,
                Some(LockKind::Write) => FlockOperation::NonBlockingLockExclusive,
                None => FlockOperation::NonBlockingUnlock,
            };
            flock(fd, operation).map_err(errno)
        }
    };
    requested.map_err(|errno| match errno {
        // POSIX permits both.
        Errno::EACCES => Errno::EAGAIN,
        errno => errno,
    })
}

/// A lock of another description than `fd` that excludes this one.
fn excluding(
    fd: impl AsFd,
    range: LockRange,
    kind: LockKind,
) -> Result<Option<(LockRange, LockKind)>> {
    let mut found = record(range, Some(kind));
    fcntl(fd, FcntlArg::F_OFD_GETLK(&mut found)).map_err(of_nix)?;
    let kind = match i32::from(found.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Read,
        _ => LockKind::Write,
    };
    let start = u64::try_from(found.l_start).unwrap_or(0);
    let last = match u64::try_from(found.l_len) {
        Ok(len @ 1..) => start.saturating_add(len - 1),
        _ => LockRange::WHOLE.last(),
    };
    Ok(LockRange::new(start, last).map(|range| (range, kind)))
}

/// The file, if the descriptor permits such a lock.
fn check(file: &impl AsFd, owner: LockOwner, kind: Option<LockKind>) -> Result<FileId> {
    let id = id(file)?;
    if let (LockFamily::Posix, Some(kind)) = (owner.family, kind) {
        let access = access(file)?;
        let permitted = match kind {
            LockKind::Read => access != OFlags::WRONLY,
            LockKind::Write => access != OFlags::RDONLY,
        };
        if !permitted {
            return Err(Errno::EBADF);
        }
    }
    Ok(id)
}

#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
fn id(file: &impl AsFd) -> Result<FileId> {
    let stat = fstat(file).map_err(errno)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((stat.st_dev as u64, stat.st_ino as u64)),
        _ => Err(Errno::EBADF),
    }
}

fn access(file: impl AsFd) -> Result<OFlags> {
    Ok(fcntl_getfl(file).map_err(errno)? & OFlags::ACCMODE)
}

/// Another description of the same file: for reading, or, if the owner `writes`, for reading and
/// writing. If that is not permitted, as `file` is. Any access suits `flock(2)` on a local file
/// system, and a program that is open for writing cannot be executed (`ETXTBSY`).
fn open_again(file: impl AsFd, writes: bool) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let as_file_is = access(&file)?;
    // `NONBLOCK`: never wait for another process's lease.
    let other = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let open = |access| rustix::fs::open(&path, access | other, Mode::empty());
    let opened = open(if writes { OFlags::RDWR } else { OFlags::RDONLY });
    opened.or_else(|_| open(as_file_is)).map_err(|_| Errno::ENOLCK)
}

#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
fn record(range: LockRange, kind: Option<LockKind>) -> libc::flock {
    let kind = match kind {
        Some(LockKind::Read) => libc::F_RDLCK,
        Some(LockKind::Write) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    // A length of zero is up to the end of the file, whatever its size.
    let len = match range.last() == LockRange::WHOLE.last() {
        true => 0,
        false => range.last() - range.start() + 1,
    };
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: range.start() as _,
        l_len: len as _,
        // Required for locks of open file descriptions.
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    use std::fs::File;

    fn owner(family: LockFamily, number: u64) -> LockOwner {
        LockOwner { family, number }
    }

    fn range(start: u64, last: u64) -> LockRange {
        LockRange::new(start, last).unwrap()
    }

    fn files(dir: &tempfile::TempDir) -> (File, File) {
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let both = File::options().read(true).write(true).open(&path).unwrap();
        (both, File::open(path).unwrap())
    }

    /// The file system does not answer one of them.
    #[test]
    fn a_call_that_hangs_delays_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = files(&dir);
        let other = tempfile::tempfile().unwrap();
        let (one, whole) = (owner(LockFamily::Posix, 1), LockRange::WHOLE);
        let locks = Arc::new(Locks::default());
        locks.set(1, &file, Lock::new(one, whole, LockKind::Write)).unwrap();
        locks.set(2, &other, Lock::new(one, whole, LockKind::Write)).unwrap();
        let description = locks.known((id(&file).unwrap(), one)).unwrap();
        let hung = description.lock();
        let (done, is_done) = std::sync::mpsc::channel();
        let locks_of_thread = locks.clone();
        let thread = std::thread::spawn(move || {
            locks_of_thread.close(2);
            assert_eq!(locks_of_thread.files().len(), 1);
            done.send(()).unwrap();
        });
        let ended = is_done.recv_timeout(Duration::from_secs(20));
        drop(hung);
        thread.join().unwrap();
        assert_eq!(ended, Ok(()));
        locks.close(1);
        assert!(locks.is_empty());
    }

    #[test]
    fn no_lock_is_set_after_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = files(&dir);
        let other = tempfile::tempfile().unwrap();
        let (one, whole) = (owner(LockFamily::Posix, 1), LockRange::WHOLE);
        let locks = Locks::default();
        let set =
            |file: &File, owner| locks.set(1, file, Lock::new(owner, whole, LockKind::Write)).err();
        assert_eq!((set(&file, one), set(&other, one)), (None, None));
        let file_id = id(&file).unwrap();
        locks.end(|of| of == file_id);
        let free = Lock::new(owner(LockFamily::Posix, 2), whole, LockKind::Write);
        assert_eq!(locks.test(&file, free), Ok(None));
        assert!(locks.test(&other, free).unwrap().is_some());
        assert_eq!(set(&file, one), Some(Errno::ENOLCK));
        locks.end(|_| true);
        assert_eq!(locks.test(&other, free), Ok(None));
        assert!(locks.is_empty());
    }

    #[test]
    fn an_undone_lock_leaves_what_was_locked_before() {
        let dir = tempfile::tempdir().unwrap();
        let (file, read) = files(&dir);
        let (one, two) = (owner(LockFamily::Posix, 1), owner(LockFamily::Posix, 2));
        let locks = Locks::default();
        locks.set(1, &file, Lock::new(one, range(5, 9), LockKind::Read)).unwrap();
        let undo = locks.set(1, &file, Lock::new(one, range(0, 9), LockKind::Write)).unwrap();
        assert_eq!(
            locks.set(2, &file, Lock::new(two, range(9, 9), LockKind::Read)).err(),
            Some(Errno::EAGAIN)
        );
        let test =
            |last| locks.test(&read, Lock::new(two, range(0, last), LockKind::Write)).unwrap();
        assert_eq!(test(9), Some((range(0, 9), LockKind::Write)));
        locks.undo(&undo);
        assert_eq!(test(4), None);
        assert_eq!(test(9), Some((range(5, 9), LockKind::Read)));
        locks.set(2, &file, Lock::new(two, range(9, 9), LockKind::Read)).unwrap();
        // A later request of the owner has precedence.
        let undo = locks.set(1, &file, Lock::new(one, range(0, 3), LockKind::Write)).unwrap();
        locks.set(1, &file, Lock::new(one, range(0, 3), LockKind::Read)).unwrap();
        locks.undo(&undo);
        assert_eq!(test(3), Some((range(0, 3), LockKind::Read)));
        locks.close(1);
        locks.close(2);
        assert!(locks.is_empty());
        let free = owner(LockFamily::Posix, 3);
        assert_eq!(locks.test(&file, Lock::new(free, LockRange::WHOLE, LockKind::Write)), Ok(None));
    }

    #[test]
    fn the_access_of_the_descriptor_decides() {
        let dir = tempfile::tempdir().unwrap();
        let (file, read) = files(&dir);
        let write = File::options().write(true).open(dir.path().join("file")).unwrap();
        let locks = Locks::default();
        let posix = owner(LockFamily::Posix, 1);
        let set = |file: &File, owner, kind| {
            locks.set(1, file, Lock::new(owner, LockRange::WHOLE, kind)).err()
        };
        assert_eq!(set(&read, posix, LockKind::Write), Some(Errno::EBADF));
        assert_eq!(set(&write, posix, LockKind::Read), Some(Errno::EBADF));
        // One owner through several descriptors.
        assert_eq!(set(&read, posix, LockKind::Read), None);
        assert_eq!(set(&write, posix, LockKind::Write), None);
        assert_eq!(set(&read, owner(LockFamily::Flock, 1), LockKind::Write), None);
        assert_eq!(set(&file, owner(LockFamily::Flock, 2), LockKind::Read), Some(Errno::EAGAIN));
        let directory = File::open(dir.path()).unwrap();
        assert_eq!(set(&directory, posix, LockKind::Read), Some(Errno::EBADF));
    }

    /// Whether a file in the directory was closed that was open for writing.
    fn sees_a_write(watcher: &OwnedFd) -> bool {
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); 4096];
        match Reader::new(watcher, &mut buffer).next() {
            Ok(event) => event.events().contains(ReadFlags::CLOSE_WRITE),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                false
            }
        }
    }

    #[test]
    fn only_a_write_lock_that_was_set_is_seen_by_file_watchers() {
        let dir = tempfile::tempdir().unwrap();
        let (file, read) = files(&dir);
        let watcher = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watcher, dir.path(), WatchFlags::CLOSE_WRITE).unwrap();
        let locks = Locks::default();
        let (one, two) = (owner(LockFamily::Posix, 1), owner(LockFamily::Posix, 2));
        let whole = owner(LockFamily::Flock, 1);
        for (file, owner, kind) in [
            (&read, one, LockKind::Read),
            (&file, one, LockKind::Read),
            (&file, whole, LockKind::Read),
            (&file, whole, LockKind::Write),
        ] {
            locks.set(1, file, Lock::new(owner, LockRange::WHOLE, kind)).unwrap();
            locks.unlock(file, owner, LockRange::WHOLE).unwrap();
            assert!(!sees_a_write(&watcher), "{owner:?} {kind:?}");
        }
        assert!(locks.is_empty());
        locks.set(1, &file, Lock::new(one, LockRange::WHOLE, LockKind::Write)).unwrap();
        for _ in 0..10 {
            let excluded = locks.set(2, &file, Lock::new(two, LockRange::WHOLE, LockKind::Write));
            assert_eq!(excluded.err(), Some(Errno::EAGAIN));
        }
        assert!(!sees_a_write(&watcher));
        locks.unlock(&file, one, LockRange::WHOLE).unwrap();
        assert!(sees_a_write(&watcher));
    }

    /// Its description was opened for reading.
    #[test]
    fn an_owner_of_read_locks_gets_a_write_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (file, read) = files(&dir);
        let locks = Locks::default();
        let (one, two) = (owner(LockFamily::Posix, 1), owner(LockFamily::Posix, 2));
        for (file, range) in [(&read, range(0, 4)), (&file, range(20, 24))] {
            locks.set(1, file, Lock::new(one, range, LockKind::Read)).unwrap();
        }
        locks.set(2, &file, Lock::new(two, range(10, 19), LockKind::Read)).unwrap();
        let write =
            |last| locks.set(1, &file, Lock::new(one, range(5, last), LockKind::Write)).err();
        assert_eq!(write(10), Some(Errno::EAGAIN));
        let found = |at| locks.test(&file, Lock::new(two, range(at, at), LockKind::Write)).unwrap();
        assert_eq!(found(5), None);
        assert_eq!(write(9), None);
        assert_eq!(found(0), Some((range(0, 4), LockKind::Read)));
        assert_eq!(found(5), Some((range(5, 9), LockKind::Write)));
        assert_eq!(found(24), Some((range(20, 24), LockKind::Read)));
        locks.unlock(&file, one, LockRange::WHOLE).unwrap();
        assert_eq!(found(0), None);
    }

    #[test]
    fn ranges_and_owners_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = files(&dir);
        let locks = Locks::default();
        let one = owner(LockFamily::Posix, 1);
        for at in 0..MAX_RANGES as u64 {
            locks.set(1, &file, Lock::new(one, range(2 * at, 2 * at), LockKind::Read)).unwrap();
        }
        let most = range(1_000_000, 1_000_000);
        assert_eq!(
            locks.set(1, &file, Lock::new(one, most, LockKind::Read)).err(),
            Some(Errno::ENOLCK)
        );
        locks.unlock(&file, one, LockRange::WHOLE).unwrap();
        locks.set(1, &file, Lock::new(one, most, LockKind::Read)).unwrap();
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        let pauses: Vec<u64> = (1..10).map(|it| lock_pause(it).as_millis() as u64).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        assert_eq!(lock_pause(u32::MAX), PAUSES[1]);
    }
}
