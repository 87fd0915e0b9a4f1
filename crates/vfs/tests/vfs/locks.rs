//! Locks of the remote: what is visible after a lock, what is at the remote before an unlock, and
//! when locks end. Owner 1 is a program of the mount, owner 9 another client.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{
    Access, Errno, Fh, Lock, LockFamily, LockKind, LockOwner, LockRange, OpenFlags, Remote,
};
use bytes::Bytes;
use testkit::{Call, path};
use vfs::{Caller, Config, Entry, Handle, Ino, Invalidate, LookupResult, OpenRequest, Vfs};

use super::stage::{Mount, mounted};

const POSIX: LockOwner = LockOwner { family: LockFamily::Posix, number: 1 };
const FLOCK: LockOwner = LockOwner { family: LockFamily::Flock, number: 1 };
const THEIRS: LockOwner = LockOwner { family: LockFamily::Posix, number: 9 };
const WHOLE: LockRange = LockRange::WHOLE;

/// What the kernel was told to drop.
#[derive(Default)]
struct Kernel(Mutex<Vec<&'static str>>);

impl Invalidate for Kernel {
    fn content(&self, _: Ino) {
        self.0.lock().unwrap().push("pages");
    }

    fn names(&self, _: &[base::Name]) {
        self.0.lock().unwrap().push("names");
    }
}

impl Kernel {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn with_kernel(config: Config) -> (Mount, Arc<Kernel>) {
    let mount = mounted(config);
    let kernel = Arc::<Kernel>::default();
    mount.vfs.set_invalidate(kernel.clone());
    mount.remote.put_file("f", "before");
    (mount, kernel)
}

async fn look(vfs: &Vfs, name: &str) -> Option<Entry> {
    match vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => Some(entry),
        LookupResult::Absent(_) => None,
    }
}

async fn open(mount: &Mount) -> (Ino, Handle) {
    let ino = look(&mount.vfs, "f").await.unwrap().ino;
    let opened = mount.vfs.open(ino, OpenRequest::plain(Access::ReadWrite)).await.unwrap();
    (ino, opened.handle)
}

async fn lock(mount: &Mount, handle: Handle, owner: LockOwner) -> Result<(), Errno> {
    mount.vfs.lock(handle, owner, WHOLE, LockKind::Write, false).await
}

/// The other client.
async fn there(mount: &Mount) -> Fh {
    let flags = OpenFlags::existing(Access::ReadWrite);
    mount.remote.open(&path("f"), flags).await.unwrap().fh
}

async fn lock_there(mount: &Mount, fh: Fh) -> Result<(), Errno> {
    mount.remote.lock(fh, Lock::new(THEIRS, WHOLE, LockKind::Write), false).await
}

#[tokio::test(start_paused = true)]
async fn a_lock_shows_what_was_changed_before_it() {
    let (mount, kernel) = with_kernel(Config::default());
    let (ino, handle) = open(&mount).await;
    assert_eq!(mount.vfs.getattr(ino).await.unwrap().attr.size, 6);
    // Another client has written, within the time-outs and the same second.
    let fh = there(&mount).await;
    mount.remote.write(fh, 6, Bytes::from_static(b" and after")).await.unwrap();
    mount.faulty.reset_calls();
    lock(&mount, handle, POSIX).await.unwrap();
    assert_eq!(mount.faulty.calls(Call::Fstat), 1);
    assert_eq!(kernel.take(), ["names", "pages"]);
    assert_eq!(mount.vfs.getattr(ino).await.unwrap().attr.size, 16);
    let data = mount.vfs.read(handle, 0, 100).await.unwrap();
    assert_eq!(data.to_vec(), b"before and after");
    // Pages of a content that is known for long stay.
    mount.vfs.unlock(handle, POSIX, WHOLE).await.unwrap();
    mount.remote.set_mtime("f", 1_000_000_000);
    lock(&mount, handle, POSIX).await.unwrap();
    assert_eq!(kernel.take(), ["pages"]);
    tokio::time::advance(Duration::from_secs(1)).await;
    lock(&mount, handle, POSIX).await.unwrap();
    assert_eq!(kernel.take(), [""; 0]);
}

/// A journal that was created or removed meanwhile.
#[tokio::test]
async fn a_lock_shows_the_present_names_beside_the_file() {
    let (mount, _) = with_kernel(Config::default());
    mount.remote.put_file("old", "");
    let (_, handle) = open(&mount).await;
    super::stage::list(&mount.vfs, Ino::ROOT, true).await;
    assert!(look(&mount.vfs, "old").await.is_some());
    mount.remote.put_file("new", "");
    mount.remote.remove("old");
    mount.faulty.reset_calls();
    assert!(look(&mount.vfs, "old").await.is_some());
    assert_eq!(mount.faulty.calls(Call::Lstat), 0, "it is cached");
    lock(&mount, handle, POSIX).await.unwrap();
    let found = look(&mount.vfs, "new").await.unwrap();
    assert_eq!(found.ttl, Duration::ZERO, "the kernel keeps no names here");
    assert!(look(&mount.vfs, "old").await.is_none());
    mount.remote.remove("new");
    lock(&mount, handle, POSIX).await.unwrap();
    let absent = mount.vfs.lookup(Ino::ROOT, b"new").await.unwrap();
    assert_eq!(absent, LookupResult::Absent(Duration::ZERO));
}

#[tokio::test]
async fn an_unlock_comes_after_all_writes() {
    let (mount, _) = with_kernel(Config::default());
    let (_, handle) = open(&mount).await;
    lock(&mount, handle, POSIX).await.unwrap();
    let held = mount.faulty.hold(Call::Write, 1);
    mount.vfs.write(handle, 0, Bytes::from_static(b"after!")).await.unwrap();
    let mut unlocking = Box::pin(mount.vfs.unlock(handle, POSIX, WHOLE));
    let short = Duration::from_millis(50);
    assert!(tokio::time::timeout(short, &mut unlocking).await.is_err());
    assert_eq!(mount.faulty.calls(Call::Unlock), 0);
    held.release();
    unlocking.await.unwrap();
    let fh = there(&mount).await;
    assert_eq!(lock_there(&mount, fh).await, Ok(()));
    assert_eq!(mount.remote.content("f"), b"after!");
}

async fn close(mount: &Mount, handle: Handle, owner: u64) {
    let caller = || std::future::ready(Caller::Alive);
    mount.vfs.flush_and_unlock(handle, Some(owner), caller).await.unwrap();
}

#[tokio::test]
async fn a_close_ends_the_locks_of_its_process() {
    let (mount, _) = with_kernel(Config::default());
    let (ino, handle) = open(&mount).await;
    let reading = mount.vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap().handle;
    let fh = there(&mount).await;
    lock(&mount, handle, POSIX).await.unwrap();
    lock(&mount, handle, FLOCK).await.unwrap();
    // A child that has inherited the file, and a file without locks.
    close(&mount, handle, 2).await;
    assert_eq!(lock_there(&mount, fh).await, Err(Errno::EAGAIN));
    // Any descriptor of the file.
    close(&mount, reading, 1).await;
    assert_eq!(lock_there(&mount, fh).await, Ok(()));
    assert_eq!(mount.remote.locked_ranges(), 2, "that of flock stays");
    close(&mount, handle, 1).await;
    mount.vfs.release(handle);
    let gone = async {
        while mount.remote.locked_ranges() > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    mount.remote.close(fh);
    mount.vfs.release(reading);
}

/// The kernel reports the last close of a file behind close(2): who comes next must not see the
/// lock.
#[tokio::test]
async fn a_flock_that_is_about_to_end_is_waited_for() {
    let (mount, _) = with_kernel(Config::default());
    let (ino, handle) = open(&mount).await;
    let next = mount.vfs.open(ino, OpenRequest::plain(Access::ReadWrite)).await.unwrap().handle;
    let other = LockOwner { number: 2, ..FLOCK };
    lock(&mount, handle, FLOCK).await.unwrap();
    assert_eq!(lock(&mount, next, other).await, Err(Errno::EAGAIN));
    close(&mount, handle, 1).await;
    let (locked, ()) = tokio::join!(lock(&mount, next, other), async {
        tokio::task::yield_now().await;
        mount.vfs.release(handle);
    });
    assert_eq!(locked, Ok(()));
    mount.vfs.release(next);
}

/// Between the grant and its answer, too.
#[tokio::test]
async fn a_dropped_lock_leaves_nothing() {
    let (mount, _) = with_kernel(Config::default());
    let (_, handle) = open(&mount).await;
    let fh = there(&mount).await;
    let read = LockRange::new(0, 4).unwrap();
    mount.vfs.lock(handle, POSIX, read, LockKind::Read, false).await.unwrap();
    for wait in [false, true] {
        let held = mount.faulty.hold_answer(Call::Fstat, 1);
        let mut locking = Box::pin(mount.vfs.lock(handle, POSIX, WHOLE, LockKind::Write, wait));
        let short = Duration::from_millis(50);
        assert!(tokio::time::timeout(short, &mut locking).await.is_err());
        drop(locking);
        drop(held);
        let behind = LockRange::new(5, 9).unwrap();
        let free = mount.remote.lock(fh, Lock::new(THEIRS, behind, LockKind::Write), true);
        tokio::time::timeout(Duration::from_secs(10), free).await.unwrap().unwrap();
        let kept = mount.remote.lock(fh, Lock::new(THEIRS, read, LockKind::Write), false).await;
        assert_eq!(kept, Err(Errno::EAGAIN), "what was there before stays");
        mount.remote.unlock(fh, THEIRS, WHOLE).await.unwrap();
    }
}
