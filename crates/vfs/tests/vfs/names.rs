//! Names that change while they are used: removed by another machine, missing in a partial listing,
//! unlinked or renamed locally during an open.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno, FileKind, Remote, RenameMode};
use bytes::Bytes;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, FaultyRemote, MemRemote, path};
use vfs::{
    Config, Consistency, Entry, EntrySink, Handle, Ino, ListedEntry, LookupResult, OpenRequest,
    Opened, Vfs,
};

const LONG_AGO: i64 = 1_000_000_000;

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    vfs: Vfs,
}

fn mounted_on(options: Options, config: Config) -> Mount {
    let remote = Arc::new(MemRemote::with(options));
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let vfs = Vfs::new(faulty.clone(), config);
    Mount { remote, faulty, vfs }
}

fn mounted() -> Mount {
    mounted_on(Options::default(), Config { login: Some((0, 0)), ..Config::default() })
}

fn put(remote: &MemRemote, path: &str, content: &str) {
    remote.put_file(path, content);
    remote.set_mtime(path, LONG_AGO);
}

async fn look(vfs: &Vfs, parent: Ino, name: &str) -> Option<Entry> {
    match vfs.lookup(parent, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => Some(entry),
        LookupResult::Absent(_) => None,
    }
}

async fn found(vfs: &Vfs, name: &str) -> Entry {
    look(vfs, Ino::ROOT, name).await.expect("it is there")
}

fn plain(access: Access) -> OpenRequest {
    OpenRequest::plain(access)
}

async fn read(vfs: &Vfs, handle: Handle) -> Result<Vec<u8>, Errno> {
    vfs.read(handle, 0, 1000).await.map(|data| data.to_vec())
}

/// Polls `future` until `gate` is reached.
macro_rules! until {
    ($future:expr, $gate:expr) => {
        tokio::select! {
            biased;
            _ = &mut $future => panic!("it did not wait"),
            () = $gate.arrived() => {}
        }
    };
}

fn mode(perm: u32) -> AttrChange {
    AttrChange { perm: Some(perm), ..AttrChange::default() }
}

// Names that another machine has removed.

/// C8: the kernel walks the path again after ESTALE, and then creates the file.
#[tokio::test]
async fn c8_an_open_of_a_cached_name_that_is_gone_is_sent_back_to_its_name() {
    let Mount { remote, vfs, .. } = mounted();
    put(&remote, "f", "old");
    let file = found(&vfs, "f").await;
    remote.remove("f");
    for access in [Access::Write, Access::Read] {
        assert_eq!(vfs.open(file.ino, plain(access)).await, Err(Errno::ESTALE), "{access:?}");
    }
    assert!(look(&vfs, Ino::ROOT, "f").await.is_none());
    let made = vfs.create(Ino::ROOT, b"f", 0o644, false, plain(Access::Write)).await;
    assert!(made.is_ok());
}

/// C8: a name that comes and goes is absent for the application in the end, never stale.
#[tokio::test]
async fn c8_an_open_is_sent_back_to_its_name_once() {
    let Mount { remote, vfs, .. } = mounted();
    for round in 0..2 {
        put(&remote, "f", "old");
        let file = found(&vfs, "f").await;
        remote.remove("f");
        assert_eq!(vfs.open(file.ino, plain(Access::Write)).await, Err(Errno::ESTALE));
        put(&remote, "f", "old");
        assert_eq!(found(&vfs, "f").await.ino, file.ino);
        remote.remove("f");
        let second = vfs.open(file.ino, plain(Access::Write)).await;
        assert_eq!(second, Err(Errno::ENOENT), "round {round}");
        assert!(look(&vfs, Ino::ROOT, "f").await.is_none());
    }
}

/// C8: also while a directory that is not on its path is being renamed.
#[tokio::test]
async fn c8_a_name_is_removed_from_the_cache_while_another_directory_is_renamed() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "old");
    remote.put_dir("d");
    let file = found(&vfs, "f").await;
    found(&vfs, "d").await;
    let gate = faulty.hold_answer(Call::Rename, 1);
    let mut renaming =
        Box::pin(vfs.rename((Ino::ROOT, b"d"), (Ino::ROOT, b"e"), RenameMode::Replace));
    until!(renaming, gate);
    remote.remove("f");
    assert_eq!(vfs.open(file.ino, plain(Access::Read)).await, Err(Errno::ESTALE));
    assert_eq!(vfs.lookup(Ino::ROOT, b"f").await.err(), Some(Errno::ENOENT));
    gate.release();
    renaming.await.unwrap();
}

/// C8: also where the name has become that of a link or a directory.
#[tokio::test]
async fn c8_an_open_of_a_name_that_became_another_kind_is_sent_back_to_it() {
    let Mount { remote, vfs, .. } = mounted();
    put(&remote, "target", "new");
    for become_other in
        [(|remote: &MemRemote| remote.put_symlink("f", "target")) as fn(&MemRemote), |remote| {
            remote.put_dir("f")
        }]
    {
        put(&remote, "f", "old");
        vfs.invalidate_all();
        let file = found(&vfs, "f").await;
        remote.remove("f");
        become_other(&remote);
        for access in [Access::Write, Access::Read] {
            assert_eq!(vfs.open(file.ino, plain(access)).await, Err(Errno::ESTALE), "{access:?}");
        }
        let now = found(&vfs, "f").await;
        assert_ne!((now.ino, now.stat.attr.kind), (file.ino, FileKind::Regular));
        remote.remove("f");
    }
}

/// C8: a directory that has become a file.
#[tokio::test]
async fn c8_a_listing_of_a_name_that_became_a_file_is_sent_back_to_it() {
    let Mount { remote, vfs, .. } = mounted();
    remote.put_dir("d");
    let dir = found(&vfs, "d").await;
    remote.remove("d");
    put(&remote, "d", "a file");
    vfs.invalidate_all();
    assert_eq!(vfs.opendir(dir.ino).await.unwrap_err(), Errno::ESTALE);
    assert_eq!(found(&vfs, "d").await.stat.attr.kind, FileKind::Regular);
}

/// C8: a listing that was requested before the removal does not bring the name back.
#[tokio::test]
async fn c8_an_older_listing_does_not_show_a_name_that_an_open_found_gone() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "old");
    let file = found(&vfs, "f").await;
    let gate = faulty.hold_answer(Call::Readdir, 1);
    let root = vfs.opendir(Ino::ROOT).await.unwrap();
    let mut listing = Box::pin(list_on(&vfs, root));
    until!(listing, gate);
    remote.remove("f");
    assert_eq!(vfs.open(file.ino, plain(Access::Write)).await, Err(Errno::ESTALE));
    gate.release();
    listing.await;
    assert!(look(&vfs, Ino::ROOT, "f").await.is_none());
}

/// C8: the kernel walks a path twice at most, and not once if it takes its names for valid. A
/// listing has shown the second file, and the name leads to a third one by then.
#[tokio::test]
async fn c8_a_file_that_was_replaced_twice_is_opened_by_the_second_walk() {
    let limits = Limits { shows_inodes: true, ..Limits::default() };
    let config = Config { login: Some((0, 0)), ..Config::default() };
    let Mount { remote, vfs, .. } = mounted_on(Options { limits, ..Options::default() }, config);
    put(&remote, "f", "first");
    let first = found(&vfs, "f").await;
    let replace = async |content: &str| {
        put(&remote, "new", content);
        remote.rename(&path("new"), &path("f"), RenameMode::Replace).await.unwrap();
    };
    replace("second").await;
    assert_eq!(vfs.open(first.ino, plain(Access::Read)).await, Err(Errno::ESTALE));
    let root = vfs.opendir(Ino::ROOT).await.unwrap();
    list_on(&vfs, root).await;
    replace("third").await;
    assert_eq!(vfs.open(first.ino, plain(Access::Read)).await, Err(Errno::ESTALE));
    let opened = vfs.open(found(&vfs, "f").await.ino, plain(Access::Read)).await.unwrap();
    assert_eq!(read(&vfs, opened.handle).await.unwrap(), b"third");
}

/// C8: calls that create nothing find the name absent, and so does the next lookup.
#[tokio::test]
async fn c8_what_another_machine_has_removed_is_absent_for_each_call() {
    let truncate = AttrChange { size: Some(0), ..AttrChange::default() };
    for call in 0..5 {
        let Mount { remote, vfs, .. } = mounted();
        put(&remote, "f", "old");
        remote.put_symlink("l", "f");
        remote.put_dir("d");
        put(&remote, "d/g", "old");
        let (file, link) = (found(&vfs, "f").await, found(&vfs, "l").await);
        let dir = found(&vfs, "d").await;
        let name = ["f", "f", "l", "d", "f"][call];
        for gone in ["f", "l", "d/g", "d"] {
            remote.remove(gone);
        }
        let result = match call {
            0 => vfs.setattr(file.ino, mode(0o600), None).await.map(drop),
            1 => vfs.setattr(file.ino, truncate, None).await.map(drop),
            2 => vfs.readlink(link.ino).await.map(drop),
            3 => vfs.opendir(dir.ino).await.map(drop),
            _ => vfs.link(file.ino, Ino::ROOT, b"new").await.map(drop),
        };
        assert_eq!(result, Err(Errno::ENOENT), "call {call}");
        assert!(look(&vfs, Ino::ROOT, name).await.is_none(), "call {call}");
    }
}

/// C8: a call that creates a file in a removed directory finds the directory absent.
#[tokio::test]
async fn c8_a_directory_in_which_nothing_can_be_made_is_looked_up_again() {
    for call in 0..4 {
        let Mount { remote, vfs, .. } = mounted();
        remote.put_dir("d");
        remote.set_mtime("d", LONG_AGO);
        put(&remote, "f", "old");
        let (dir, _) = (found(&vfs, "d").await, found(&vfs, "f").await);
        remote.remove("d");
        let result = match call {
            0 => vfs.mkdir(dir.ino, b"x", 0o755).await.map(drop),
            1 => vfs.symlink(dir.ino, b"x", b"f").await.map(drop),
            2 => vfs.create(dir.ino, b"x", 0o644, false, plain(Access::Write)).await.map(drop),
            _ => {
                let to = (dir.ino, &b"f"[..]);
                vfs.rename((Ino::ROOT, b"f"), to, RenameMode::Replace).await
            }
        };
        assert_eq!(result, Err(Errno::ENOENT), "call {call}");
        assert!(look(&vfs, Ino::ROOT, "d").await.is_none(), "call {call}");
        assert!(look(&vfs, Ino::ROOT, "f").await.is_some(), "call {call}");
    }
}

/// C8: of several names made through this mount, the others stay if one is removed.
#[tokio::test(start_paused = true)]
async fn c8_a_file_is_found_by_its_other_name() {
    for call in 0..4 {
        let Mount { remote, vfs, .. } = mounted();
        put(&remote, "a", "content");
        let file = found(&vfs, "a").await;
        vfs.link(file.ino, Ino::ROOT, b"b").await.unwrap();
        remote.remove("a");
        tokio::time::advance(Duration::from_secs(60)).await;
        match call {
            0 => drop(vfs.setattr(file.ino, mode(0o600), None).await.unwrap()),
            1 => {
                let first = vfs.open(file.ino, plain(Access::Write)).await;
                assert_eq!(first, Err(Errno::ESTALE));
                let again = found(&vfs, "b").await.ino;
                let opened = vfs.open(again, plain(Access::Write)).await.unwrap();
                vfs.write(opened.handle, 0, Bytes::from_static(b"C")).await.unwrap();
                vfs.flush(opened.handle).await.unwrap();
                assert_eq!(remote.content("b"), b"Content");
            }
            2 => drop(vfs.link(file.ino, Ino::ROOT, b"c").await.unwrap()),
            _ => assert_eq!(vfs.getattr(file.ino).await.unwrap().nlink, 1),
        }
        assert!(look(&vfs, Ino::ROOT, "a").await.is_none(), "call {call}");
        assert_eq!(found(&vfs, "b").await.ino, file.ino, "call {call}");
    }
}

// Partial listings.

#[derive(Default)]
struct Names(Vec<String>, u64);

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        if entry.name != b"." && entry.name != b".." {
            self.0.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        self.1 = entry.next_offset;
    }
}

/// The names of a listing with their kinds.
#[derive(Default)]
struct Kinds(Vec<(String, Option<FileKind>)>);

impl EntrySink for Kinds {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        if entry.name != b"." && entry.name != b".." {
            self.0.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.kind));
        }
    }
}

async fn list_on(vfs: &Vfs, handle: vfs::DirHandle) -> Vec<String> {
    let mut names = Names::default();
    loop {
        let before = names.1;
        vfs.readdir(handle, before, true, &mut names).await.unwrap();
        if names.1 == before {
            names.0.sort();
            return names.0;
        }
    }
}

/// A FUSE mount without a daemon, or one of another user, is listed beside all other names, and a
/// lookup of it returns the error.
#[tokio::test]
async fn an_entry_whose_attributes_cannot_be_read_is_listed() {
    for errno in [Errno::ENOTCONN, Errno::EACCES, Errno::ESTALE] {
        let options = Options { listing_attrs: false, ..Options::default() };
        let Mount { remote, vfs, .. } = mounted_on(options, Config::default());
        ["a", "b"].iter().for_each(|name| put(&remote, name, "x"));
        remote.put_dir("mnt");
        remote.set_unseen("mnt", errno);
        for _ in 0..2 {
            let handle = vfs.opendir(Ino::ROOT).await.unwrap();
            let mut kinds = Kinds::default();
            vfs.readdir(handle, 0, true, &mut kinds).await.unwrap();
            kinds.0.sort_by(|(one, _), (other, _)| one.cmp(other));
            let kinds: Vec<_> = kinds.0.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
            let file = Some(FileKind::Regular);
            assert_eq!(kinds, [("a", file), ("b", file), ("mnt", None)], "{errno}");
            vfs.releasedir(handle);
        }
        assert_eq!(vfs.lookup(Ino::ROOT, b"mnt").await.unwrap_err(), errno);
    }
}

/// A10, with a server that lists names without attributes: a listing that was interrupted, or has
/// failed, loses no name when it continues.
#[tokio::test]
async fn a10_a_listing_that_was_given_up_loses_no_name() {
    let all: Vec<String> = (0..7).map(|at| format!("n{at}")).collect();
    for fails in [false, true] {
        for nth in 1..=7 {
            let options = Options { listing_attrs: false, listing_batch: 3, ..Options::default() };
            let Mount { remote, faulty, vfs } = mounted_on(options, Config::default());
            all.iter().for_each(|name| put(&remote, name, "x"));
            let handle = vfs.opendir(Ino::ROOT).await.unwrap();
            let mut names = Names::default();
            if fails {
                faulty.fail(Call::Lstat, nth, Errno::EIO);
                let failed = loop {
                    let at = names.1;
                    match vfs.readdir(handle, at, false, &mut names).await {
                        Ok(_) => assert!(names.1 > at, "it has to fail"),
                        Err(error) => break error,
                    }
                };
                assert_eq!(failed, Errno::EIO);
            } else {
                let gate = faulty.hold(Call::Lstat, nth);
                let mut listing = Box::pin(async {
                    loop {
                        let at = names.1;
                        vfs.readdir(handle, at, false, &mut names).await.unwrap();
                    }
                });
                until!(listing, gate);
            }
            // As getdents continues at the same position.
            loop {
                let at = names.1;
                vfs.readdir(handle, at, false, &mut names).await.unwrap();
                if names.1 == at {
                    break;
                }
            }
            names.0.sort();
            assert_eq!(names.0, all, "fails: {fails}, nth: {nth}");
            let again = vfs.opendir(Ino::ROOT).await.unwrap();
            assert_eq!(list_on(&vfs, again).await, all, "fails: {fails}, nth: {nth}");
        }
    }
}

// Local changes of names during an open.

/// An open of a file whose pages the kernel has, so that the open is deferred.
async fn granted(vfs: &Vfs, remote: &MemRemote, ino: Ino) -> Opened {
    vfs.release(vfs.open(ino, plain(Access::Read)).await.unwrap().handle);
    remote.reset_calls();
    let opened = vfs.open(ino, plain(Access::Read)).await.unwrap();
    assert!(opened.keep_cache && remote.round_trips() == 0);
    opened
}

/// A7: if this mount unlinks the name during an open, or renames another file over it, the open
/// gets the file, or is sent back to the lookup.
#[tokio::test]
async fn a7_a_file_that_is_opened_while_its_name_is_taken_away_is_there_to_read() {
    for rename in [false, true] {
        let Mount { remote, faulty, vfs } = mounted();
        put(&remote, "f", "content");
        put(&remote, "g", "other");
        let file = found(&vfs, "f").await;
        vfs.release(granted(&vfs, &remote, file.ino).await.handle);
        let gate = faulty.hold(if rename { Call::Rename } else { Call::Unlink }, 1);
        let mut taking = Box::pin(async {
            match rename {
                true => {
                    let to = (Ino::ROOT, &b"f"[..]);
                    vfs.rename((Ino::ROOT, b"g"), to, RenameMode::Replace).await
                }
                false => vfs.unlink(Ino::ROOT, b"f").await,
            }
        });
        until!(taking, gate);
        let opened = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
        gate.release();
        taking.await.unwrap();
        assert_eq!(read(&vfs, opened.handle).await.unwrap(), b"content", "rename: {rename}");
    }
}

/// A6: a file that is renamed locally stays open, also for a read between the rename at the server
/// and its answer.
#[tokio::test]
async fn a6_a_file_that_is_being_renamed_can_be_read() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "content");
    let file = found(&vfs, "f").await;
    let opened = granted(&vfs, &remote, file.ino).await;
    let gate = faulty.hold_answer(Call::Rename, 1);
    let mut renaming =
        Box::pin(vfs.rename((Ino::ROOT, b"f"), (Ino::ROOT, b"g"), RenameMode::Replace));
    until!(renaming, gate);
    assert_eq!(read(&vfs, opened.handle).await.unwrap(), b"content");
    gate.release();
    renaming.await.unwrap();
}

/// C6: an open for writing that is overtaken by a rename over its name may have opened the other
/// file. It is sent back to the lookup, so that the writes go through the inode of that file.
#[tokio::test]
async fn c6_a_file_that_takes_the_name_of_one_that_is_being_opened_is_written_as_itself() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "old");
    put(&remote, "g", "other");
    let (file, _) = (found(&vfs, "f").await, found(&vfs, "g").await);
    let gate = faulty.hold(Call::Open, 1);
    let mut opening = Box::pin(vfs.open(file.ino, plain(Access::Write)));
    until!(opening, gate);
    let to = (Ino::ROOT, &b"f"[..]);
    vfs.rename((Ino::ROOT, b"g"), to, RenameMode::Replace).await.unwrap();
    gate.release();
    assert_eq!(opening.await, Err(Errno::ESTALE));
    let file = found(&vfs, "f").await;
    let opened = vfs.open(file.ino, plain(Access::Write)).await.unwrap();
    vfs.write(opened.handle, 5, Bytes::from_static(b" and more")).await.unwrap();
    vfs.flush(opened.handle).await.unwrap();
    assert_eq!(found(&vfs, "f").await.stat.attr.size, 14);
}

/// C6: an open with `O_TRUNC` that is overtaken by such a rename may have truncated the other file.
/// It does not truncate the file that has lost the name as well.
#[tokio::test]
async fn c6_an_open_that_truncates_empties_one_file() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "one");
    put(&remote, "g", "other");
    let file = found(&vfs, "f").await;
    let writer = vfs.open(file.ino, plain(Access::ReadWrite)).await.unwrap();
    let gate = faulty.hold(Call::Open, 1);
    let request = OpenRequest { truncate: true, ..plain(Access::Write) };
    let mut opening = Box::pin(vfs.open(file.ino, request));
    until!(opening, gate);
    let to = (Ino::ROOT, &b"f"[..]);
    vfs.rename((Ino::ROOT, b"g"), to, RenameMode::Replace).await.unwrap();
    gate.release();
    assert_eq!(opening.await, Err(Errno::ESTALE));
    assert_eq!(remote.content("f"), b"");
    assert_eq!(read(&vfs, writer.handle).await.unwrap(), b"one");
}

/// The kernel repeats an open that fails with `ESTALE` only once. So an open for writing does not
/// fail with it because another file is renamed, nor because the file itself is.
#[tokio::test]
async fn a_file_is_opened_for_writing_whatever_is_renamed_meanwhile() {
    for (from, to) in [("dir", "moved"), ("f", "h")] {
        let Mount { remote, faulty, vfs } = mounted();
        put(&remote, "f", "content");
        remote.put_dir("dir");
        let file = found(&vfs, "f").await;
        found(&vfs, "dir").await;
        let gate = faulty.hold(Call::Open, 1);
        let mut opening = Box::pin(vfs.open(file.ino, plain(Access::ReadWrite)));
        until!(opening, gate);
        let new_name = (Ino::ROOT, to.as_bytes());
        vfs.rename((Ino::ROOT, from.as_bytes()), new_name, RenameMode::Replace).await.unwrap();
        gate.release();
        let opened = opening.await.unwrap_or_else(|error| panic!("{from}: {error}"));
        assert_eq!(read(&vfs, opened.handle).await.unwrap(), b"content", "{from}");
    }
}

/// C6: an open of a file that this mount renames at any moment succeeds: the kernel would repeat
/// the open only once.
#[tokio::test]
async fn c6_a_file_that_is_renamed_during_its_open_is_opened() {
    let to = |name: &'static str| (Ino::ROOT, name.as_bytes());
    for access in [Access::Read, Access::ReadWrite] {
        // The server opens it after the rename.
        let Mount { remote, faulty, vfs } = mounted();
        put(&remote, "f", "content");
        let file = found(&vfs, "f").await;
        let gate = faulty.hold(Call::Open, 1);
        let mut opening = Box::pin(vfs.open(file.ino, plain(access)));
        until!(opening, gate);
        vfs.rename(to("f"), to("g"), RenameMode::Replace).await.unwrap();
        gate.release();
        let opened = opening.await.unwrap();
        assert_eq!(read(&vfs, opened.handle).await.unwrap(), b"content", "{access:?}");
        // Before it; and the file has its name back when the answer arrives.
        let gate = faulty.hold_answer(Call::Open, 1);
        let mut opening = Box::pin(vfs.open(file.ino, plain(Access::ReadWrite)));
        until!(opening, gate);
        for (from, new) in [("g", "f"), ("f", "g")] {
            vfs.rename(to(from), to(new), RenameMode::Replace).await.unwrap();
        }
        gate.release();
        assert_eq!(opening.await.map(drop), Ok(()), "{access:?}");
        // After the rename at the server, before its answer.
        let gate = faulty.hold_answer(Call::Rename, 1);
        let mut renaming = Box::pin(vfs.rename(to("g"), to("h"), RenameMode::Replace));
        until!(renaming, gate);
        let mut opening = Box::pin(vfs.open(file.ino, plain(Access::ReadWrite)));
        tokio::select! {
            biased;
            _ = &mut opening => panic!("it has no name that is known"),
            () = tokio::task::yield_now() => {}
        }
        gate.release();
        renaming.await.unwrap();
        let opened = opening.await.unwrap();
        vfs.write(opened.handle, 0, Bytes::from_static(b"CONTENT")).await.unwrap();
        vfs.flush(opened.handle).await.unwrap();
        assert_eq!(remote.content("h"), b"CONTENT", "{access:?}");
    }
}

/// A6: of two concurrent opens, the one that is answered last may be of a file that had the name
/// before. It is not registered beside the other: both fill the pages of one inode.
#[tokio::test(flavor = "multi_thread")]
async fn a6_an_open_that_was_overtaken_by_another_one_has_the_same_file() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "old content");
    let file = found(&vfs, "f").await;
    let gate = faulty.hold_answer(Call::Open, 1);
    let mut first = Box::pin(vfs.open(file.ino, plain(Access::Read)));
    until!(first, gate);
    remote.put_file("new", "new content");
    remote.set_mtime("new", LONG_AGO + 1);
    let (from, to) = (path("new"), path("f"));
    remote.rename(&from, &to, RenameMode::Replace).await.unwrap();
    let second = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
    gate.release();
    let first = first.await.unwrap();
    assert_eq!(read(&vfs, second.handle).await.unwrap(), b"new content");
    assert_eq!(read(&vfs, first.handle).await.unwrap(), b"new content");
}

// A change that succeeded is not reported as an error.

/// A created file exists, even if its attributes cannot be requested.
#[tokio::test(start_paused = true)]
async fn what_was_made_is_no_error_because_a_question_about_it_fails() {
    for errno in [Errno::ETIMEDOUT, Errno::EACCES] {
        let Mount { remote, faulty, vfs } = mounted();
        put(&remote, "f", "content");
        let file = found(&vfs, "f").await;
        tokio::time::advance(Duration::from_secs(60)).await;
        for call in [Call::Lstat, Call::Fstat] {
            faulty.fail_always(call, errno);
        }
        let linked = vfs.link(file.ino, Ino::ROOT, b"g").await.unwrap();
        assert_eq!((linked.ino, linked.stat.nlink), (file.ino, 2));
        let dir = vfs.mkdir(Ino::ROOT, b"d", 0o750).await.unwrap();
        assert_eq!((dir.stat.attr.kind, dir.stat.attr.perm), (FileKind::Directory, 0o750));
        let link = vfs.symlink(Ino::ROOT, b"l", b"f").await.unwrap();
        assert_eq!((link.stat.attr.kind, link.stat.attr.size), (FileKind::Symlink, 1));
        assert_eq!(dir.stat.ttl.max(dir.ttl).max(link.stat.ttl).max(link.ttl), Duration::ZERO);
        faulty.clear();
        assert_eq!(found(&vfs, "g").await.ino, file.ino);
        assert_eq!(found(&vfs, "d").await.stat.attr.kind, FileKind::Directory);
    }
}

// How long a name is valid.

/// C4: attributes newer than the name do not make the name newer.
#[tokio::test(start_paused = true)]
async fn c4_a_name_is_not_valid_for_longer_than_it_was_seen_for() {
    let Mount { remote, vfs, .. } = mounted();
    put(&remote, "f", "content");
    let file = found(&vfs, "f").await;
    assert_eq!(file.ttl, Duration::from_secs(20));
    tokio::time::advance(Duration::from_secs(15)).await;
    vfs.open(file.ino, plain(Access::Write)).await.unwrap();
    let again = found(&vfs, "f").await;
    assert_eq!(again.stat.ttl, Duration::from_secs(20), "by the handle");
    assert_eq!(again.ttl, Duration::from_secs(5));
}

// Writing in place through an append-only descriptor.

/// A2: a page of a shared mapping is written at its offset in the file, also through a descriptor
/// that appends.
#[tokio::test]
async fn a2_a_page_is_written_back_in_place_through_an_appending_descriptor() {
    for other in [false, true] {
        let Mount { remote, vfs, .. } = mounted();
        put(&remote, "f", "0123456789");
        let file = found(&vfs, "f").await;
        let other = match other {
            true => Some(vfs.open(file.ino, plain(Access::ReadWrite)).await.unwrap()),
            false => None,
        };
        let appends = OpenRequest { append: true, ..plain(Access::ReadWrite) };
        let opened = vfs.open(file.ino, appends).await.unwrap();
        vfs.write(opened.handle, 10, Bytes::from_static(b"ab")).await.unwrap();
        for _ in 0..2 {
            vfs.write_back(opened.handle, 2, Bytes::from_static(b"page")).await.unwrap();
        }
        vfs.flush(opened.handle).await.unwrap();
        assert_eq!(remote.content("f"), b"01page6789ab");
        other.into_iter().chain([opened]).for_each(|opened| vfs.release(opened.handle));
        assert_eq!(remote.open_handles(), 0);
    }
}

/// A6: a page is never written to a file that has taken the name.
#[tokio::test]
async fn a6_a_page_that_cannot_be_written_in_place_is_an_error() {
    let Mount { remote, vfs, .. } = mounted();
    put(&remote, "f", "0123456789");
    put(&remote, "g", "another one");
    let file = found(&vfs, "f").await;
    let appends = OpenRequest { append: true, ..plain(Access::ReadWrite) };
    let opened = vfs.open(file.ino, appends).await.unwrap();
    remote.move_to("g", "f");
    let written = vfs.write_back(opened.handle, 2, Bytes::from_static(b"page")).await;
    assert_eq!(written, Err(Errno::EIO));
    assert_eq!(remote.content("f"), b"another one");
}

// Pages kept over opens.

/// T2: pages that another machine has outdated while the file was written locally are not kept for
/// ever.
#[tokio::test(start_paused = true)]
async fn t2_pages_are_not_kept_over_writes_that_another_machine_may_have_been_at() {
    let config = Config { consistency: Consistency::Timeout, ..Config::default() };
    let Mount { remote, vfs, .. } = mounted_on(Options::default(), config);
    put(&remote, "f", "page0page1");
    let file = found(&vfs, "f").await;
    let opened = vfs.open(file.ino, plain(Access::ReadWrite)).await.unwrap();
    read(&vfs, opened.handle).await.unwrap();
    put(&remote, "f", "page0PAGE1");
    vfs.write(opened.handle, 0, Bytes::from_static(b"PAGE")).await.unwrap();
    vfs.flush(opened.handle).await.unwrap();
    vfs.release(opened.handle);
    let again = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
    assert!(!again.keep_cache, "the second page is not what it was");
}

/// T2: for a file that was empty at its open, the kernel has only locally written data.
#[tokio::test(start_paused = true)]
async fn t2_pages_of_what_was_written_here_alone_are_kept() {
    for truncate in [false, true] {
        let config = Config { consistency: Consistency::Timeout, ..Config::default() };
        let Mount { remote, vfs, .. } = mounted_on(Options::default(), config);
        if truncate {
            put(&remote, "f", "old content");
            found(&vfs, "f").await;
        }
        let request = OpenRequest { truncate, ..plain(Access::Write) };
        let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o644, false, request).await.unwrap();
        vfs.write(opened.handle, 0, Bytes::from_static(b"content")).await.unwrap();
        vfs.flush(opened.handle).await.unwrap();
        vfs.release(opened.handle);
        let again = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
        assert!(again.keep_cache, "truncate: {truncate}");
    }
}

/// C3: whether a content is past its racy window depends on the time at which it was read, not on
/// that of the open that gets it.
#[tokio::test(start_paused = true)]
async fn c3_content_that_was_fetched_ahead_is_as_old_as_its_read() {
    let config = Config {
        open_revalidate: Duration::from_secs(5),
        login: Some((0, 0)),
        ..Config::default()
    };
    let Mount { remote, vfs, .. } = mounted_on(Options::default(), config);
    let names: Vec<String> = (0..6).map(|at| format!("n{at}")).collect();
    names.iter().for_each(|name| remote.put_file(name, "first"));
    let stamp = remote.attr("n5").mtime.secs;
    let dir = vfs.opendir(Ino::ROOT).await.unwrap();
    list_on(&vfs, dir).await;
    for name in &names[..4] {
        let file = found(&vfs, name).await;
        let opened = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
        read(&vfs, opened.handle).await.unwrap();
        vfs.release(opened.handle);
    }
    // Within the same second, of the same size.
    remote.put_file("n5", "later");
    remote.set_mtime("n5", stamp);
    tokio::time::advance(Duration::from_secs(3)).await;
    let file = found(&vfs, "n5").await;
    remote.reset_calls();
    let opened = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
    assert_eq!(read(&vfs, opened.handle).await.unwrap(), b"first", "as it was fetched");
    assert_eq!(remote.calls(Call::Open), 0);
    vfs.release(opened.handle);
    tokio::time::advance(Duration::from_secs(10)).await;
    let again = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
    assert!(!again.keep_cache);
    assert_eq!(read(&vfs, again.handle).await.unwrap(), b"later");
}

/// The kernel uses the size in the answer to a create, and drops the pages behind it.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_create_of_an_existing_file_has_the_size_that_was_written_meanwhile() {
    let Mount { remote, faulty, vfs } = mounted();
    put(&remote, "f", "old");
    let file = found(&vfs, "f").await;
    let writer = vfs.open(file.ino, plain(Access::Write)).await.unwrap();
    let gate = faulty.hold_answer(Call::Open, 1);
    let mut creating =
        Box::pin(vfs.create(Ino::ROOT, b"f", 0o644, false, plain(Access::ReadWrite)));
    until!(creating, gate);
    vfs.write(writer.handle, 0, Bytes::from_static(b"longer")).await.unwrap();
    gate.release();
    let (entry, _) = creating.await.unwrap();
    assert_eq!((entry.ino, entry.stat.attr.size), (file.ino, 6));
}
