//! A remote that changes as a whole: after `invalidate_all`, no earlier answer is valid, nor the
//! answer to an earlier request. The clock is paused, so nothing expires.

use std::sync::Mutex;
use std::time::Duration;

use base::{Access, AttrChange, Errno, Name};
use bytes::Bytes;
use testkit::{Call, MemRemote};
use vfs::{
    Config, Consistency, Entry, EntrySink, Ino, Invalidate, ListedEntry, LookupResult, OpenRequest,
    Vfs,
};

use super::stage::KernelMount;

const LONG_AGO: i64 = 1_000_000_000;

/// The names in the root that the kernel was told to drop, for each call.
#[derive(Default)]
struct Kernel(Mutex<Vec<Vec<Name>>>);

impl Invalidate for Kernel {
    fn content(&self, ino: Ino) {
        panic!("{ino:?} alone is not meant");
    }

    fn names(&self, in_root: &[Name]) {
        let mut names = in_root.to_vec();
        names.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
        self.0.lock().unwrap().push(names);
    }
}

#[derive(Default)]
struct Listed {
    names: Vec<String>,
    next: u64,
}

impl EntrySink for Listed {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }

    fn push(&mut self, entry: ListedEntry<'_>) {
        self.next = entry.next_offset;
        if entry.name != b"." && entry.name != b".." {
            self.names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
    }
}

type Mount = KernelMount<Kernel>;

/// A mount whose caches are valid until they are invalidated.
fn mounted() -> Mount {
    mounted_with(Consistency::Immutable)
}

fn mounted_with(consistency: Consistency) -> Mount {
    Mount::new(MemRemote::new(), Config { consistency, login: Some((0, 0)), ..Config::default() })
}

async fn look(vfs: &Vfs, dir: Ino, name: &str) -> Option<Entry> {
    match vfs.lookup(dir, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => Some(entry),
        LookupResult::Absent(_) => None,
    }
}

async fn found(vfs: &Vfs, dir: Ino, name: &str) -> Entry {
    look(vfs, dir, name).await.unwrap_or_else(|| panic!("{name} is absent"))
}

async fn names(vfs: &Vfs, dir: Ino) -> Vec<String> {
    let handle = vfs.opendir(dir).await.unwrap();
    let mut listed = Listed::default();
    loop {
        let from = listed.next;
        vfs.readdir(handle, from, true, &mut listed).await.unwrap();
        if listed.next == from {
            break;
        }
    }
    vfs.releasedir(handle);
    listed.names.sort();
    listed.names
}

/// The content as the kernel reads it; `None` if it may use its pages.
async fn read(vfs: &Vfs, ino: Ino) -> Option<Vec<u8>> {
    let opened = vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
    let content = match opened.keep_cache {
        true => None,
        false => Some(vfs.read(opened.handle, 0, 100).await.unwrap().to_vec()),
    };
    vfs.release(opened.handle);
    content
}

fn put(remote: &MemRemote, path: &str, content: &str) {
    remote.put_file(path, content);
    remote.set_mtime(path, LONG_AGO);
}

#[tokio::test(start_paused = true)]
async fn everything_is_asked_for_anew() {
    for consistency in [Consistency::Immutable, Consistency::Timeout, Consistency::CloseToOpen] {
        asked_for_anew(consistency).await;
    }
}

async fn asked_for_anew(consistency: Consistency) {
    let Mount { remote, kernel, vfs, .. } = mounted_with(consistency);
    remote.put_dir("d");
    put(&remote, "d/same size", "one");
    put(&remote, "changes", "1");
    put(&remote, "goes", "");
    let dir = found(&vfs, Ino::ROOT, "d").await.ino;
    let inner = found(&vfs, dir, "same size").await.ino;
    let changes = found(&vfs, Ino::ROOT, "changes").await.ino;
    found(&vfs, Ino::ROOT, "goes").await;
    assert_eq!(look(&vfs, Ino::ROOT, "comes").await, None);
    assert_eq!(names(&vfs, dir).await, ["same size"]);
    let content = (consistency != Consistency::Immutable).then(|| b"one".to_vec());
    assert_eq!(read(&vfs, inner).await, content);

    put(&remote, "d/same size", "two");
    put(&remote, "d/another", "");
    put(&remote, "changes", "three");
    remote.remove("goes");
    put(&remote, "comes", "");
    remote.reset_calls();
    assert_eq!(names(&vfs, dir).await, ["same size"]);
    assert_eq!(vfs.getattr(changes).await.unwrap().attr.size, 1);
    assert!(look(&vfs, Ino::ROOT, "goes").await.is_some());
    assert_eq!(read(&vfs, inner).await, None, "its pages are the content, for all that is known");
    assert_eq!(remote.round_trips(), 0);

    vfs.invalidate_all();
    let told = |names: &[&str]| -> Vec<Name> {
        names.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect()
    };
    assert_eq!(*kernel.0.lock().unwrap(), [told(&["changes", "d", "goes"])]);
    assert_eq!(vfs.getattr(changes).await.unwrap().attr.size, 5);
    assert_eq!(look(&vfs, Ino::ROOT, "goes").await, None);
    assert!(look(&vfs, Ino::ROOT, "comes").await.is_some());
    assert_eq!(names(&vfs, dir).await, ["another", "same size"]);
    // Neither size nor mtime has changed, and pages are never compared, but the remote has changed.
    assert_eq!(read(&vfs, inner).await.unwrap(), b"two");
    assert_eq!(found(&vfs, dir, "same size").await.ino, inner, "it keeps its inode");

    // From here on caches are valid again.
    remote.reset_calls();
    assert_eq!(names(&vfs, dir).await, ["another", "same size"]);
    assert_eq!(vfs.getattr(changes).await.unwrap().attr.size, 5);
    assert_eq!(remote.round_trips(), 0);
    // Until then, the kernel may still have the older pages.
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(read(&vfs, inner).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_is_not_kept() {
    let Mount { remote, faulty, vfs, .. } = mounted();
    remote.put_dir("d");
    put(&remote, "d/f", "old");
    let dir = found(&vfs, Ino::ROOT, "d").await.ino;
    let f = found(&vfs, dir, "f").await.ino;

    // A lookup whose answer is from before.
    let gate = faulty.hold_answer(Call::Lstat, 1);
    let (looked, ()) = tokio::join!(look(&vfs, dir, "new"), async {
        gate.arrived().await;
        put(&remote, "d/new", "");
        vfs.invalidate_all();
        gate.release();
    });
    assert!(looked.is_some(), "it has asked again");

    // Attributes.
    vfs.invalidate_all();
    let gate = faulty.hold_answer(Call::Lstat, 1);
    let (told, ()) = tokio::join!(vfs.getattr(f), async {
        gate.arrived().await;
        put(&remote, "d/f", "newer");
        vfs.invalidate_all();
        gate.release();
    });
    assert_eq!(told.unwrap().attr.size, 5);
    assert_eq!(vfs.getattr(f).await.unwrap().attr.size, 5);

    // A listing: it may be returned as it was, but is not cached.
    let gate = faulty.hold_answer(Call::Readdir, 1);
    tokio::join!(names(&vfs, dir), async {
        gate.arrived().await;
        put(&remote, "d/f", "newest of all");
        put(&remote, "d/late", "");
        vfs.invalidate_all();
        gate.release();
    });
    assert_eq!(names(&vfs, dir).await, ["f", "late", "new"]);
    assert_eq!(found(&vfs, dir, "f").await.stat.attr.size, 13);
    assert_eq!(faulty.not_reached(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_open_and_what_is_made_stays_what_it_is() {
    let Mount { remote, faulty, vfs, .. } = mounted();
    let request = OpenRequest::plain(Access::ReadWrite);
    let (made, opened) = vfs.create(Ino::ROOT, b"made", 0o644, true, request).await.unwrap();
    let gate = faulty.hold(Call::Write, 1);
    vfs.write(opened.handle, 0, Bytes::from_static(b"content")).await.unwrap();
    let figures = vfs.stats();
    assert_eq!((figures.dirty_files, figures.dirty_bytes), (1, 7));
    assert_eq!((figures.open_files, figures.inodes), (1, 2));
    vfs.invalidate_all();
    gate.release();
    assert_eq!(vfs.read(opened.handle, 0, 100).await.unwrap().to_vec(), b"content");
    assert_eq!(vfs.getattr(made.ino).await.unwrap().attr.size, 7);
    vfs.flush(opened.handle).await.unwrap();
    vfs.release(opened.handle);
    let figures = vfs.stats();
    assert_eq!((figures.dirty_files, figures.dirty_bytes, figures.open_files), (0, 0, 0));
    assert_eq!(remote.content("made"), b"content");
    assert_eq!(found(&vfs, Ino::ROOT, "made").await.ino, made.ino);
    vfs.forget(made.ino, 2);
    assert_eq!(vfs.inodes(), 1);
}

#[tokio::test(start_paused = true)]
async fn set_id_bits_are_dropped_once_and_only_where_they_are() {
    let Mount { remote, vfs, .. } = mounted();
    for (name, perm) in [("tool", 0o6755), ("plain", 0o644)] {
        put(&remote, name, "");
        remote.set_perm(name, perm);
    }
    let tool = found(&vfs, Ino::ROOT, "tool").await.ino;
    let plain = found(&vfs, Ino::ROOT, "plain").await.ino;
    remote.reset_calls();
    for ino in [tool, plain, tool, Ino::ROOT] {
        vfs.drop_set_ids(ino).await.unwrap();
    }
    assert_eq!((remote.calls(Call::Setattr), remote.attr("tool").perm), (1, 0o755));
    let change = AttrChange { perm: Some(0o4755), ..AttrChange::default() };
    vfs.setattr(tool, change, None).await.unwrap();
    vfs.drop_set_ids(tool).await.unwrap();
    assert_eq!(remote.attr("tool").perm, 0o755);
}

#[tokio::test]
async fn a_remote_without_words_for_itself_tells_no_place() {
    let Mount { remote, vfs, .. } = mounted();
    put(&remote, "f", "");
    let f = found(&vfs, Ino::ROOT, "f").await.ino;
    assert_eq!(vfs.locate(f).await, Err(Errno::EOPNOTSUPP));
    vfs.unlink(Ino::ROOT, b"f").await.unwrap();
    assert_eq!(vfs.locate(f).await, Err(Errno::ESTALE));
}
