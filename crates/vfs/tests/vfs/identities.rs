//! A remote that tells files apart: hard links, replaced files, inode numbers.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, MemRemote, path};
use vfs::{
    Config, Consistency, Entry, EntrySink, Ino, ListedEntry, LookupResult, OpenRequest, Vfs,
};

fn mounted() -> (Arc<MemRemote>, Vfs) {
    mounted_with(Config::default())
}

fn mounted_with(config: Config) -> (Arc<MemRemote>, Vfs) {
    let limits = Limits { shows_inodes: true, ..Limits::default() };
    mounted_over(limits, config)
}

fn mounted_over(limits: Limits, config: Config) -> (Arc<MemRemote>, Vfs) {
    let remote = Arc::new(MemRemote::with(Options { limits, ..Options::default() }));
    let vfs = Vfs::new(remote.clone(), config);
    (remote, vfs)
}

async fn found(vfs: &Vfs, name: &str) -> Entry {
    match vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{name} is absent"),
    }
}

fn number_at(remote: &MemRemote, at: &str) -> u64 {
    remote.attr(at).id().unwrap().number
}

#[tokio::test]
async fn names_linked_elsewhere_are_one_inode_with_the_remotes_number() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    remote.link(&path("a"), &path("b")).await.unwrap();
    let (a, b) = (found(&vfs, "a").await, found(&vfs, "b").await);
    assert_eq!((a.ino, a.stat.number), (b.ino, number_at(&remote, "a")));
    assert_eq!((a.stat.nlink, b.stat.nlink), (2, 2));
    // What is written by one name is seen by the other at once.
    let opened = vfs.open(a.ino, OpenRequest::plain(Access::Write)).await.unwrap();
    vfs.write(opened.handle, 0, Bytes::from_static(b"longer content")).await.unwrap();
    assert_eq!(found(&vfs, "b").await.stat.attr.size, 14);
    vfs.release(opened.handle);
    vfs.unlink(Ino::ROOT, b"a").await.unwrap();
    let left = found(&vfs, "b").await;
    assert_eq!((left.ino, left.stat.nlink), (b.ino, 1));
    vfs.link(left.ino, Ino::ROOT, b"c").await.unwrap();
    assert_eq!(found(&vfs, "b").await.stat.nlink, 2);
}

/// The kernel repeats an open that fails with `ESTALE` only once.
#[tokio::test(start_paused = true)]
async fn c8_a_file_that_was_replaced_and_grows_is_opened_by_the_second_walk() {
    let (remote, vfs) = mounted();
    remote.put_file("log", "old");
    let old = found(&vfs, "log").await;
    remote.remove("log");
    remote.put_file("log", "new");
    let opened = vfs.open(old.ino, OpenRequest::plain(Access::Read)).await;
    assert_eq!(opened, Err(Errno::ESTALE), "another file has the name");
    let new = found(&vfs, "log").await;
    assert_ne!(new.ino, old.ino);
    let writer = remote.open(&path("log"), OpenFlags::existing(Access::Write)).await.unwrap();
    remote.write(writer.fh, 3, Bytes::from_static(b" and more")).await.unwrap();
    let opened = vfs.open(new.ino, OpenRequest::plain(Access::Read)).await.unwrap();
    let read = vfs.read(opened.handle, 0, 100).await.unwrap();
    assert_eq!(read.to_vec(), b"new and more");
}

/// One of several names is looked up again, and leads to a node of its own, while the node before
/// is in use by its descriptor.
#[tokio::test]
async fn an_inode_that_is_detached_is_not_found_by_its_other_names() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    remote.link(&path("a"), &path("b")).await.unwrap();
    let (before, _) = (found(&vfs, "a").await, found(&vfs, "b").await);
    let plain = OpenRequest::plain(Access::Read);
    let first = vfs.open(before.ino, plain).await.unwrap();
    let second = vfs.open(before.ino, plain).await.unwrap();
    assert_eq!(vfs.detach(second.handle), Errno::ESTALE);
    let (a, b) = (found(&vfs, "a").await, found(&vfs, "b").await);
    assert!(a.ino == b.ino && a.ino != before.ino);
    assert_eq!(vfs.read(first.handle, 0, 100).await.unwrap().to_vec(), b"content");
}

/// As on overlayfs.
#[tokio::test]
async fn without_identities_links_and_ctimes_are_the_remotes() {
    let limits = Limits { shows_inodes: true, hides_identities: true, ..Limits::default() };
    let (remote, vfs) = mounted_over(limits, Config::default());
    remote.put_file("a", "content");
    remote.link(&path("a"), &path("b")).await.unwrap();
    let (a, b) = (found(&vfs, "a").await, found(&vfs, "b").await);
    assert_ne!(a.ino, b.ino);
    assert_eq!((a.stat.nlink, b.stat.nlink), (2, 2));
    assert_eq!(Some(a.stat.ctime), remote.attr("a").ctime());
    // Each change made here is requested, since it sets the ctime.
    vfs.link(a.ino, Ino::ROOT, b"c").await.unwrap();
    vfs.unlink(Ino::ROOT, b"b").await.unwrap();
    vfs.unlink(Ino::ROOT, b"c").await.unwrap();
    remote.set_ctime("a", 2_000_000_000);
    let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    vfs.setattr(a.ino, change, None).await.unwrap();
    remote.set_ctime("a", 2_000_000_000);
    vfs.invalidate_all();
    let stat = vfs.getattr(a.ino).await.unwrap();
    assert_eq!((stat.nlink, stat.attr, stat.ctime.secs), (1, remote.attr("a"), 2_000_000_000));
}

/// One name was known when the other was made.
#[tokio::test(start_paused = true)]
async fn h1_a_name_linked_elsewhere_later_is_one_inode_when_both_are_looked_up() {
    for names in [["a", "b"], ["b", "a"]] {
        for listed in [false, true] {
            let (remote, vfs) = mounted();
            remote.put_file("a", "content");
            let before = found(&vfs, "a").await;
            remote.link(&path("a"), &path("b")).await.unwrap();
            vfs.invalidate_all();
            if listed {
                let dir = vfs.opendir(Ino::ROOT).await.unwrap();
                vfs.readdir(dir, 0, true, &mut Taken).await.unwrap();
                vfs.releasedir(dir);
            }
            found(&vfs, names[0]).await;
            found(&vfs, names[1]).await;
            let (a, b) = (found(&vfs, "a").await, found(&vfs, "b").await);
            assert_eq!((a.ino, a.stat.nlink, b.stat.nlink), (b.ino, 2, 2), "{names:?} {listed}");
            assert_eq!(a.stat.number, before.stat.number);
            // What is written by one name is seen by the other at once.
            let opened = vfs.open(a.ino, OpenRequest::plain(Access::Write)).await.unwrap();
            vfs.write(opened.handle, 0, Bytes::from_static(b"longer content")).await.unwrap();
            assert_eq!(found(&vfs, "b").await.stat.attr.size, 14);
            vfs.release(opened.handle);
            vfs.unlink(Ino::ROOT, b"a").await.unwrap();
            assert_eq!(found(&vfs, "b").await.stat.nlink, 1);
        }
    }
}

/// A file that is open keeps its inode until it is closed.
#[tokio::test(start_paused = true)]
async fn h1_an_open_file_that_is_linked_elsewhere_keeps_its_inode() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    let a = found(&vfs, "a").await;
    let opened = vfs.open(a.ino, OpenRequest::plain(Access::ReadWrite)).await.unwrap();
    remote.link(&path("a"), &path("b")).await.unwrap();
    vfs.invalidate_all();
    let b = found(&vfs, "b").await;
    assert_eq!(found(&vfs, "a").await.ino, a.ino);
    assert_eq!(vfs.read(opened.handle, 0, 10).await.unwrap().to_vec(), b"content");
    vfs.write(opened.handle, 0, Bytes::from_static(b"CONTENT")).await.unwrap();
    vfs.flush(opened.handle).await.unwrap();
    vfs.release(opened.handle);
    vfs.invalidate_all();
    assert_eq!(found(&vfs, "a").await.ino, b.ino);
}

/// The kernel uses the size in the answer to a link, and drops the pages behind it.
#[tokio::test]
async fn the_answer_to_a_link_has_the_size_that_was_written() {
    let (_, vfs) = mounted();
    let request = OpenRequest::plain(Access::ReadWrite);
    let (a, opened) = vfs.create(Ino::ROOT, b"a", 0o644, true, request).await.unwrap();
    vfs.write(opened.handle, 0, Bytes::from_static(b"content")).await.unwrap();
    let b = vfs.link(a.ino, Ino::ROOT, b"b").await.unwrap();
    assert_eq!((b.ino, b.stat.attr.size, b.stat.nlink), (a.ino, 7, 2));
}

/// Only the remote knows the time of the change, and is asked before anybody else does.
#[tokio::test]
async fn the_attributes_of_a_renamed_file_are_requested_at_once() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    let a = found(&vfs, "a").await;
    let asked = remote.calls(Call::Lstat);
    vfs.rename((Ino::ROOT, b"a"), (Ino::ROOT, b"b"), RenameMode::Replace).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(vfs.getattr(a.ino).await.unwrap().attr, remote.attr("b"));
    assert_eq!(remote.calls(Call::Lstat), asked + 1);
}

/// By the other name, its target may lead out of the mount.
#[tokio::test]
async fn a_symbolic_link_of_two_names_is_judged_by_the_one_that_is_followed() {
    let (remote, vfs) = mounted();
    remote.put_dir("a");
    remote.symlink(b"../file", &path("a/link")).await.unwrap();
    remote.link(&path("a/link"), &path("link")).await.unwrap();
    let dir = found(&vfs, "a").await.ino;
    let LookupResult::Found(deep) = vfs.lookup(dir, b"link").await.unwrap() else { panic!() };
    assert_eq!(vfs.readlink(deep.ino).await.unwrap(), b"../file");
    let shallow = found(&vfs, "link").await;
    assert_eq!(shallow.stat.number, deep.stat.number);
    assert_eq!(vfs.readlink(shallow.ino).await, Err(Errno::EPERM));
    assert_eq!(vfs.readlink(deep.ino).await.unwrap(), b"../file");
    // A second name made here is the same inode.
    let second = vfs.link(deep.ino, Ino::ROOT, b"second").await.unwrap();
    assert_eq!(vfs.readlink(second.ino).await, Err(Errno::EPERM));
}

/// A process that has a directory open, or works in it, keeps it after it was removed.
#[tokio::test(start_paused = true)]
async fn a_directory_that_was_removed_here_keeps_its_attributes_and_is_empty() {
    for replaced in [false, true] {
        let (remote, vfs) = mounted();
        remote.put_dir("d");
        remote.put_dir("other");
        let dir = found(&vfs, "d").await;
        let before = remote.attr("d");
        if replaced {
            vfs.rename((Ino::ROOT, b"other"), (Ino::ROOT, b"d"), RenameMode::Replace)
                .await
                .unwrap();
        } else {
            vfs.rmdir(Ino::ROOT, b"d").await.unwrap();
        }
        for _ in 0..2 {
            let stat = vfs.getattr(dir.ino).await.unwrap();
            assert_eq!(
                (stat.attr.mode(), stat.attr.uid, stat.nlink),
                (before.mode(), before.uid, 0)
            );
            let listing = vfs.opendir(dir.ino).await.unwrap();
            for _ in 0..2 {
                vfs.readdir(listing, 0, true, &mut NoEntries).await.unwrap();
                tokio::time::advance(Duration::from_secs(100)).await;
            }
            vfs.releasedir(listing);
            tokio::time::advance(Duration::from_secs(100)).await;
        }
    }
}

/// It may have been moved: then it is not empty.
#[tokio::test(start_paused = true)]
async fn a_directory_that_was_gone_already_is_not_empty() {
    let (remote, vfs) = mounted();
    remote.put_dir("d");
    let dir = found(&vfs, "d").await;
    remote.rename(&path("d"), &path("e"), RenameMode::Replace).await.unwrap();
    assert_eq!(vfs.rmdir(Ino::ROOT, b"d").await, Err(Errno::ENOENT));
    assert_eq!(vfs.opendir(dir.ino).await.err(), Some(Errno::ESTALE));
    assert_eq!(vfs.getattr(dir.ino).await.err(), Some(Errno::ESTALE));
}

/// Fails if it gets an entry other than `.` and `..`.
struct NoEntries;

impl EntrySink for NoEntries {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }

    fn push(&mut self, entry: ListedEntry<'_>) {
        assert!([&b"."[..], b".."].contains(&entry.name), "{:?}", entry.name);
    }
}

/// Takes all entries.
struct Taken;

impl EntrySink for Taken {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }

    fn push(&mut self, _: ListedEntry<'_>) {}
}

#[tokio::test]
async fn a_listing_from_before_a_name_was_removed_is_not_used_for_the_others() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    remote.link(&path("a"), &path("b")).await.unwrap();
    let dir = vfs.opendir(Ino::ROOT).await.unwrap();
    vfs.readdir(dir, 0, true, &mut Taken).await.unwrap();
    let b = found(&vfs, "b").await;
    assert_eq!(b.stat.nlink, 2);
    vfs.unlink(Ino::ROOT, b"a").await.unwrap();
    assert_eq!(vfs.getattr(b.ino).await.unwrap().nlink, 1);
    assert_eq!(found(&vfs, "b").await.stat.nlink, 1);
}

#[tokio::test]
async fn a_number_is_the_same_after_a_rename_and_after_the_kernel_has_forgotten_the_file() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    let before = found(&vfs, "a").await;
    vfs.rename((Ino::ROOT, b"a"), (Ino::ROOT, b"b"), RenameMode::Replace).await.unwrap();
    let renamed = found(&vfs, "b").await;
    assert_eq!((renamed.ino, renamed.stat.number), (before.ino, number_at(&remote, "b")));
    vfs.forget(before.ino, 2);
    assert_eq!(found(&vfs, "b").await.stat.number, before.stat.number);
}

/// Size and mtime are equal, so that plain SFTP does not tell them apart.
#[tokio::test]
async fn a_file_replaced_by_another_machine_is_another_inode() {
    let (remote, vfs) = mounted();
    for (name, content) in [("a", "old"), ("b", "new")] {
        remote.put_file(name, content);
        remote.set_mtime(name, 1_000_000_000);
    }
    let before = found(&vfs, "a").await;
    let old = vfs.open(before.ino, OpenRequest::plain(Access::Read)).await.unwrap();
    remote.rename(&path("b"), &path("a"), RenameMode::Replace).await.unwrap();
    vfs.invalidate_all();
    let after = found(&vfs, "a").await;
    assert!(after.ino != before.ino && after.stat.number == number_at(&remote, "a"));
    let new = vfs.open(after.ino, OpenRequest::plain(Access::Read)).await.unwrap();
    for (opened, content) in [(&old, "old"), (&new, "new")] {
        let data = vfs.read(opened.handle, 0, 10).await.unwrap();
        assert_eq!(data.to_vec(), content.as_bytes());
    }
    assert_eq!(vfs.getattr(before.ino).await.unwrap().nlink, 0);
}

/// The kernel looks a name up again if the open fails, but not if a later call does.
#[tokio::test]
async fn h2_an_open_of_a_directory_whose_name_leads_to_another_one_is_sent_back_to_it() {
    let (remote, vfs) = mounted();
    remote.put_dir("cur");
    remote.put_file("new/file", "content");
    let before = found(&vfs, "cur").await;
    // The attributes are not known any more, but the name is.
    vfs.mkdir(before.ino, b"made here", 0o755).await.unwrap();
    let same = vfs.opendir(before.ino).await.unwrap();
    vfs.releasedir(same);
    vfs.mkdir(before.ino, b"made later", 0o755).await.unwrap();
    remote.move_to("cur", "old");
    remote.move_to("new", "cur");
    assert_eq!(vfs.opendir(before.ino).await.unwrap_err(), Errno::ESTALE);
    let after = found(&vfs, "cur").await;
    assert_eq!(after.stat.number, number_at(&remote, "cur"));
    let opened = vfs.opendir(after.ino).await.unwrap();
    vfs.getattr(after.ino).await.unwrap();
    vfs.releasedir(opened);
}

/// A union of a source that tells files apart and one that does not.
#[tokio::test]
async fn a_name_that_moves_to_a_source_without_identities_is_another_inode() {
    let (remote, vfs) = mounted_with(Config { is_union: true, ..Config::default() });
    for name in ["a", "b"] {
        remote.put_file(name, "content");
        remote.set_mtime(name, 1_000_000_000);
    }
    remote.link(&path("a"), &path("link")).await.unwrap();
    remote.put_dir("dir");
    let (a, dir) = (found(&vfs, "a").await, found(&vfs, "dir").await);
    remote.edit(|tree| tree.show_inodes(false));
    vfs.invalidate_all();
    let moved = found(&vfs, "a").await;
    assert!(moved.ino != a.ino && moved.stat.number != a.stat.number);
    // A directory is that of all sources.
    assert_eq!(found(&vfs, "dir").await.ino, dir.ino);
    remote.edit(|tree| tree.show_inodes(true));
    vfs.invalidate_all();
    let back = found(&vfs, "a").await;
    assert!(back.ino != moved.ino && back.stat.number == a.stat.number);
    assert_eq!(found(&vfs, "link").await.ino, back.ino);
    assert_eq!(found(&vfs, "dir").await.ino, dir.ino);
}

/// What a disk cache has kept of an immutable tree may be from before the server had the helper.
#[tokio::test]
async fn a_file_that_begins_to_have_an_identity_is_the_same_file() {
    let immutable = Config { consistency: Consistency::Immutable, ..Config::default() };
    for config in [Config::default(), Config { is_union: true, ..immutable }] {
        let (remote, vfs) = mounted_with(config);
        remote.put_file("f", "content");
        remote.edit(|tree| tree.show_inodes(false));
        let before = found(&vfs, "f").await;
        remote.edit(|tree| tree.show_inodes(true));
        let opened = vfs.open(before.ino, OpenRequest::plain(Access::Read)).await.unwrap();
        assert_eq!(vfs.read(opened.handle, 0, 10).await.unwrap().to_vec(), b"content");
    }
}

#[tokio::test]
async fn numbers_of_a_union_do_not_depend_on_what_is_used_first() {
    let (remote, vfs) = mounted_with(Config { is_union: true, ..Config::default() });
    remote.put_file("a", "content");
    remote.link(&path("a"), &path("b")).await.unwrap();
    let (a, b) = (found(&vfs, "a").await, found(&vfs, "b").await);
    assert_eq!((a.ino, a.stat.number, a.stat.nlink), (b.ino, b.stat.number, 2));
    assert_ne!(a.stat.number, number_at(&remote, "a"));
}

/// A call for an inode that has one more name, which another file has taken at the server.
async fn by_the_other_name(call: usize, vfs: &Vfs, ino: Ino) {
    match call {
        0 => {
            let plain = OpenRequest::plain(Access::Write);
            let truncating = OpenRequest { truncate: true, ..plain };
            match vfs.open(ino, truncating).await {
                Ok(opened) => vfs.release(opened.handle),
                // The kernel looks the name up again.
                Err(error) => assert_eq!(error, Errno::ESTALE),
            }
        }
        1 => {
            let cut = AttrChange { size: Some(1), ..AttrChange::default() };
            vfs.setattr(ino, cut, None).await.unwrap();
        }
        2 => {
            let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
            vfs.setattr(ino, change, None).await.unwrap();
        }
        _ => {
            vfs.link(ino, Ino::ROOT, b"new").await.unwrap();
        }
    }
}

/// The kernel names an inode, and not the name that the application has used.
#[tokio::test(start_paused = true)]
async fn h1_a_call_by_one_name_does_not_change_the_file_that_has_taken_the_other() {
    for (call, kept, looked_up) in (0..4).flat_map(|call| {
        [("p", ["p", "q"]), ("p", ["q", "p"]), ("q", ["p", "q"])]
            .map(|(kept, order)| (call, kept, order))
    }) {
        for identifies in [true, false] {
            let (remote, vfs) = match identifies {
                true => mounted(),
                false => mounted_over(Limits::default(), Config::default()),
            };
            remote.put_file("p", "content");
            if identifies {
                remote.link(&path("p"), &path("q")).await.unwrap();
            } else {
                let p = found(&vfs, "p").await;
                vfs.link(p.ino, Ino::ROOT, b"q").await.unwrap();
            }
            let mut ino = None;
            for name in looked_up {
                let entry = found(&vfs, name).await;
                assert_eq!(*ino.get_or_insert(entry.ino), entry.ino);
            }
            let taken = if kept == "p" { "q" } else { "p" };
            remote.remove(taken);
            remote.put_file(taken, "precious");
            let before = remote.attr(taken);
            // The kernel does so each time.
            let entry = found(&vfs, kept).await;
            assert_eq!(entry.ttl, Duration::ZERO);
            by_the_other_name(call, &vfs, entry.ino).await;
            let what = format!("{call} by {kept}, {looked_up:?}, identifies: {identifies}");
            assert_eq!(remote.content(taken), b"precious", "{what}");
            let after = remote.attr(taken);
            assert_eq!((after.perm, after.mtime), (before.perm, before.mtime), "{what}");
            match call {
                0 => assert_eq!(remote.content(kept), b"", "{what}"),
                1 => assert_eq!(remote.content(kept), b"c", "{what}"),
                2 => assert_eq!(remote.attr(kept).perm, 0o600, "{what}"),
                _ => assert_eq!(remote.content("new"), b"content", "{what}"),
            }
        }
    }
}

/// As tools for backups rename their directories.
#[tokio::test(start_paused = true)]
async fn h1_a_linked_file_is_opened_after_its_directories_were_renamed_elsewhere() {
    let (remote, vfs) = mounted();
    remote.put_file("a/f", "content");
    remote.put_dir("b");
    remote.link(&path("a/f"), &path("b/f")).await.unwrap();
    let below = async |dir: &str| {
        let dir = found(&vfs, dir).await.ino;
        match vfs.lookup(dir, b"f").await.unwrap() {
            LookupResult::Found(entry) => entry.ino,
            LookupResult::Absent(_) => panic!("f is absent"),
        }
    };
    assert_eq!(below("a").await, below("b").await);
    remote.rename(&path("b"), &path("c"), RenameMode::Replace).await.unwrap();
    remote.rename(&path("a"), &path("b"), RenameMode::Replace).await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    for dir in ["b", "c"] {
        let ino = below(dir).await;
        let opened = vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
        assert_eq!(vfs.read(opened.handle, 0, 10).await.unwrap().to_vec(), b"content");
        vfs.release(opened.handle);
    }
}

/// The new ctime may be that of a write.
#[tokio::test(start_paused = true)]
async fn h2_a_name_removed_elsewhere_does_not_explain_a_new_ctime() {
    let (remote, vfs) = mounted();
    remote.put_file("a", "content");
    remote.link(&path("a"), &path("b")).await.unwrap();
    found(&vfs, "a").await;
    let ino = found(&vfs, "b").await.ino;
    tokio::time::sleep(Duration::from_secs(100)).await;
    for _ in 0..2 {
        let opened = vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
        vfs.read(opened.handle, 0, 10).await.unwrap();
        vfs.release(opened.handle);
        tokio::time::sleep(Duration::from_secs(100)).await;
    }
    remote.remove("b");
    remote.set_ctime("a", 2_000_000_000);
    assert!(matches!(vfs.lookup(Ino::ROOT, b"b").await, Ok(LookupResult::Absent(_))));
    assert_eq!(found(&vfs, "a").await.ino, ino);
    let opened = vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
    assert!(!opened.keep_cache);
    vfs.release(opened.handle);
}
