//! Changes through a cached remote are visible through it, whatever is cached, also in open files.

use base::{
    Access, AttrChange, Create, DigestEffort, DigestKind, Errno, OpenFlags, Remote, RenameMode,
    SetXattr, Timestamp,
};
use bytes::Bytes;
use cache::{CachedConfig, Mode};
use testkit::faulty::Gate;
use testkit::{Call, path};

use super::stage::{LONG_AGO, Stage, keep, list, pattern, read, size};

const READ: OpenFlags =
    OpenFlags { access: Access::Read, create: Create::Never, truncate: false, append: false };
const WRITE: OpenFlags = OpenFlags { access: Access::ReadWrite, ..READ };

/// A write through one handle is read through another one that was opened without the server.
#[tokio::test]
async fn a_write_is_read_through_a_file_opened_before_from_the_cache() {
    let stage = Stage::new();
    stage.put("f", "content");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    let reader = cached.open(&path("f"), READ).await.unwrap().fh;
    assert_eq!(stage.memory.open_handles(), 0);
    let writer = cached.open(&path("f"), WRITE).await.unwrap().fh;
    cached.write(writer, 0, Bytes::from_static(b"C")).await.unwrap();
    assert_eq!(cached.read(reader, 0, 100).await.unwrap().to_vec(), b"Content");
    // Even if the mtime does not show it.
    stage.memory.set_mtime("f", LONG_AGO);
    assert_eq!(read(&cached, "f").await.unwrap(), b"Content");
    cached.write(writer, 0, Bytes::from_static(b"K")).await.unwrap();
    assert_eq!(read(&cached, "f").await.unwrap(), b"Kontent");
    assert_eq!(cached.read(reader, 0, 1).await.unwrap().to_vec(), b"K");
    cached.close(writer);
    cached.close(reader);
    stage.memory.set_mtime("f", LONG_AGO);
    assert_eq!(read(&cached, "f").await.unwrap(), b"Kontent");
}

/// A write ends a fetch of the old content, which is open.
#[tokio::test]
async fn a_content_that_is_being_fetched_ends_with_a_change() {
    let stage = Stage::new();
    stage.put("f", pattern(1, 700_000));
    let cached = stage.mount(Mode::CloseToOpen);
    let reader = cached.open(&path("f"), READ).await.unwrap().fh;
    cached.read(reader, 0, 500_000).await.unwrap();
    cached.wait_idle().await;
    let writer = cached.open(&path("f"), WRITE).await.unwrap().fh;
    cached.write(writer, 0, Bytes::from(pattern(2, 700_000))).await.unwrap();
    cached.close(writer);
    stage.memory.set_mtime("f", LONG_AGO);
    assert!(keep(&cached, "f").await == pattern(2, 700_000));
    cached.close(reader);
    assert!(keep(&cached, "f").await == pattern(2, 700_000));
}

/// A file opened without the server stays the same file when its name is removed.
#[tokio::test]
async fn an_open_file_outlives_its_name() {
    let stage = Stage::new();
    for name in ["unlinked", "renamed", "replaced", "d/inside"] {
        stage.put(name, format!("this is {name}"));
    }
    stage.put("other", "other");
    let cached = stage.mount(Mode::CloseToOpen);
    let mut open = Vec::new();
    for name in ["unlinked", "renamed", "replaced", "d/inside"] {
        keep(&cached, name).await;
        open.push((name, cached.open(&path(name), READ).await.unwrap().fh));
    }
    assert_eq!(stage.memory.open_handles(), 0);
    cached.unlink(&path("unlinked")).await.unwrap();
    cached.rename(&path("renamed"), &path("elsewhere"), RenameMode::Replace).await.unwrap();
    cached.rename(&path("other"), &path("replaced"), RenameMode::Replace).await.unwrap();
    cached.rename(&path("d"), &path("e"), RenameMode::Replace).await.unwrap();
    let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    for (name, fh) in open {
        let content = format!("this is {name}");
        assert_eq!(cached.read(fh, 0, 100).await.unwrap().to_vec(), content.as_bytes());
        cached.fsetattr(fh, change).await.unwrap();
        assert_eq!(cached.fstat(fh).await.unwrap().perm, 0o600, "{name}");
        cached.close(fh);
    }
    assert_eq!(stage.memory.attr("elsewhere").perm, 0o600);
    assert_eq!(stage.memory.attr("e/inside").perm, 0o600);
    assert_eq!(stage.memory.attr("replaced").perm, 0o644);
}

/// A file with two names created here is not read from the store: a write through one name would
/// not be noticed through the other.
#[tokio::test]
async fn linked_names_are_one_file() {
    let stage = Stage::new();
    stage.put("d/a", "content");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "d/a").await;
    let reader = cached.open(&path("d/a"), READ).await.unwrap().fh;
    cached.link(&path("d/a"), &path("d/b")).await.unwrap();
    cached.rename(&path("d"), &path("e"), RenameMode::Replace).await.unwrap();
    let other = cached.open(&path("e/a"), READ).await.unwrap().fh;
    let writer = cached.open(&path("e/b"), WRITE).await.unwrap().fh;
    cached.write(writer, 0, Bytes::from_static(b"K")).await.unwrap();
    for fh in [reader, other] {
        assert_eq!(cached.read(fh, 0, 100).await.unwrap().to_vec(), b"Kontent");
        cached.close(fh);
    }
    cached.close(writer);
}

/// An answer that was requested before a change, and arrives after it, is not recorded.
#[tokio::test]
async fn an_answer_from_before_a_change_is_not_recorded() {
    let stage = Stage::new();
    stage.put("d/f", "before");
    let cached = stage.mount(Mode::Immutable);
    let gate = stage.faulty.hold_answer(Call::Lstat, 1);
    let asking = cached.clone();
    let late = tokio::spawn(async move { size(&asking, "d/f").await });
    gate.arrived().await;
    let change = AttrChange { size: Some(2), ..AttrChange::default() };
    cached.setattr(&path("d/f"), change).await.unwrap();
    gate.release();
    assert_eq!(late.await.unwrap(), Ok(6));
    assert_eq!(size(&cached, "d/f").await, Ok(2));

    let gate = stage.faulty.hold_answer(Call::Readdir, 2);
    let asking = cached.clone();
    let late = tokio::spawn(async move { list(&asking, "d").await });
    gate.arrived().await;
    cached.unlink(&path("d/f")).await.unwrap();
    gate.release();
    assert_eq!(late.await.unwrap().unwrap(), ["f"]);
    assert_eq!(list(&cached, "d").await.unwrap(), Vec::<String>::new());
    assert_eq!(stage.faulty.not_reached(), 0);
}

/// An open in flight when a change begins does not show the content before it.
#[tokio::test]
async fn an_open_in_flight_when_a_change_begins_is_made_at_the_server() {
    let stage = Stage::new();
    stage.put("f", "before");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    let gate = stage.faulty.hold_answer(Call::Lstat, 1);
    let opening = cached.clone();
    let late = tokio::spawn(async move { opening.open(&path("f"), READ).await });
    gate.arrived().await;
    let writer = cached.open(&path("f"), WRITE).await.unwrap().fh;
    gate.release();
    let reader = late.await.unwrap().unwrap().fh;
    cached.write(writer, 0, Bytes::from_static(b"BEFORE")).await.unwrap();
    assert_eq!(cached.read(reader, 0, 100).await.unwrap().to_vec(), b"BEFORE");
    cached.close(reader);
    cached.close(writer);
}

/// Two mounts on one store: a change by one is seen by the other.
#[tokio::test]
async fn a_change_by_one_mount_is_seen_by_another_on_the_same_store() {
    let stage = Stage::new();
    stage.put("f", pattern(1, 200_000));
    let store = super::stage::open_store(stage.dir.path());
    let one = stage.mount_on(store.clone(), stage.config());
    let other = stage.mount_on(store, stage.config());
    for round in 0..5u8 {
        keep(&one, "f").await;
        let fh = one.open(&path("f"), WRITE).await.unwrap().fh;
        let content = pattern(round, 150_000 + usize::from(round));
        let cut = AttrChange { size: Some(0), ..AttrChange::default() };
        one.fsetattr(fh, cut).await.unwrap();
        one.write(fh, 0, Bytes::from(content.clone())).await.unwrap();
        one.close(fh);
        assert!(keep(&other, "f").await == content, "round {round}");
        stage.memory.set_mtime("f", LONG_AGO + i64::from(round));
        assert!(keep(&other, "f").await == content, "round {round}");
        assert!(keep(&one, "f").await == content, "round {round}");
    }
}

/// Another mount records what it has requested before a change made here: it is not used here.
#[tokio::test]
async fn what_another_mount_requested_before_a_change_is_not_used() {
    let stage = Stage::new();
    stage.put("f", "before");
    stage.memory.put_symlink("l", "before");
    let (one, other) = (stage.mount(Mode::Immutable), stage.mount(Mode::Immutable));
    let gates = [Call::Lstat, Call::Readlink].map(|call| stage.faulty.hold_answer(call, 1));
    let asking = other.clone();
    let late = tokio::spawn(async move {
        let (file, link) = (path("f"), path("l"));
        tokio::join!(asking.lstat(&file), asking.readlink(&link))
    });
    for gate in &gates {
        gate.arrived().await;
    }
    let change = AttrChange { size: Some(2), ..AttrChange::default() };
    one.setattr(&path("f"), change).await.unwrap();
    one.unlink(&path("l")).await.unwrap();
    one.symlink(b"after", &path("l")).await.unwrap();
    gates.iter().for_each(Gate::release);
    let (attr, target) = late.await.unwrap();
    assert_eq!((attr.unwrap().size, target.unwrap()), (6, b"before".to_vec()));
    assert_eq!(size(&one, "f").await, Ok(2));
    assert_eq!(one.readlink(&path("l")).await.unwrap(), b"after");
}

/// Another mount keeps the content of a file that was replaced here by one of the same size and
/// mtime: the old content is not shown here.
#[tokio::test]
async fn what_another_mount_has_kept_of_a_replaced_file_is_not_shown() {
    for whole in [true, false] {
        let stage = Stage::new();
        let (before, after) = (pattern(1, 1 << 20), pattern(2, 1 << 20));
        stage.put("f", &before);
        stage.put("g", &after);
        let (one, other) = (stage.mount(Mode::CloseToOpen), stage.mount(Mode::CloseToOpen));
        let reader = other.open(&path("f"), READ).await.unwrap().fh;
        one.rename(&path("g"), &path("f"), RenameMode::Replace).await.unwrap();
        other.read(reader, 0, if whole { 1 << 20 } else { 1 << 19 }).await.unwrap();
        other.close(reader);
        other.wait_idle().await;
        assert_eq!(other.status().completed, u64::from(whole));
        assert!(read(&one, "f").await.unwrap() == after, "whole: {whole}");
        let attr = one.lstat(&path("f")).await.unwrap();
        let digest = one.digest(&path("f"), &attr, DigestKind::Blake3, DigestEffort::Compute).await;
        let digest = digest.unwrap().expect("it is computed");
        assert!(digest[..] == *cache::Digest::of(&after).as_bytes(), "whole: {whole}");
    }
}

/// A part that was fetched is not continued after a change made here that size and mtime do not
/// show, also if no attributes of the file were recorded.
#[tokio::test]
async fn a_part_is_not_continued_after_a_change() {
    for is_open in [true, false] {
        let stage = Stage::new();
        let (before, after) = (pattern(1, 2 << 20), pattern(2, 2 << 20));
        stage.put("f", &before);
        stage.put("g", &after);
        let cached = stage.mount(Mode::CloseToOpen);
        let reader = cached.open(&path("f"), READ).await.unwrap().fh;
        cached.read(reader, 0, 1 << 20).await.unwrap();
        if !is_open {
            cached.close(reader);
        }
        cached.wait_idle().await;
        cached.rename(&path("g"), &path("f"), RenameMode::Replace).await.unwrap();
        assert!(keep(&cached, "f").await == after, "open: {is_open}");
        if is_open {
            assert!(cached.read(reader, 0, 1 << 20).await.unwrap().to_vec() == before[..1 << 20]);
            cached.close(reader);
        }
        assert!(keep(&stage.mount(Mode::CloseToOpen), "f").await == after, "open: {is_open}");
    }
}

/// No handle of the remote leaks, and a refused open changes nothing.
#[tokio::test]
async fn nothing_stays_open() {
    let stage = Stage::new();
    stage.put("f", "content");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    let reader = cached.open(&path("f"), READ).await.unwrap().fh;
    // Opens it late, and then finds another file there.
    stage.memory.put_file("g", "a new file");
    stage.memory.move_to("g", "f");
    assert_eq!(cached.fsync(reader).await, Err(Errno::ESTALE));
    assert_eq!(cached.read(reader, 0, 100).await.unwrap().to_vec(), b"content");
    cached.close(reader);
    let exclusive = OpenFlags { create: Create::Exclusive(0o644), ..WRITE };
    assert_eq!(cached.open(&path("f"), exclusive).await.err(), Some(Errno::EEXIST));
    assert_eq!(read(&cached, "f").await.unwrap(), b"a new file");
    cached.wait_idle().await;
    assert_eq!(stage.memory.open_handles(), 0);
}

/// Another directory takes the name of a renamed one, with a file of the same size and mtime: parts
/// of the two files are not put together.
#[tokio::test]
async fn parts_below_a_renamed_directory_are_not_continued() {
    const PIECE: usize = 1 << 20;
    let stage = Stage::new();
    let (first, second) = (pattern(1, 2 * PIECE), pattern(2, 2 * PIECE));
    stage.put("d/f", &first);
    stage.put("e/f", &second);
    let cached = stage.mount(Mode::CloseToOpen);
    list(&cached, "").await.unwrap();
    let fh = cached.open(&path("d/f"), READ).await.unwrap().fh;
    cached.read(fh, 0, PIECE as u32).await.unwrap();
    cached.close(fh);
    cached.wait_idle().await;
    assert!(cached.presence(&path("d/f")).await.unwrap().present > 0, "a part is here");
    cached.rename(&path("d"), &path("gone"), RenameMode::Replace).await.unwrap();
    cached.rename(&path("e"), &path("d"), RenameMode::Replace).await.unwrap();
    let cached = stage.mount(Mode::CloseToOpen);
    assert_eq!(cached.presence(&path("d/f")).await.unwrap().present, 0);
    assert!(keep(&cached, "d/f").await == second);
    assert!(keep(&stage.mount(Mode::CloseToOpen), "d/f").await == second);
}

/// A program writes a file, renames it or a directory above it, and writes more before it closes
/// it. What is read in between under the new name is not kept.
#[tokio::test]
async fn a_file_renamed_while_it_is_written_is_not_kept_until_it_is_closed() {
    for (mode, from, to) in [
        (Mode::Immutable, "d/f", "d/g"),
        (Mode::Immutable, "d", "e"),
        (Mode::CloseToOpen, "d/f", "d/g"),
        (Mode::CloseToOpen, "d", "e"),
    ] {
        let stage = Stage::new();
        stage.put("d/f", "before");
        let renamed = if from == "d" { "e/f" } else { "d/g" };
        let cached = stage.mount(mode);
        let writer = cached.open(&path("d/f"), WRITE).await.unwrap().fh;
        cached.rename(&path(from), &path(to), RenameMode::Replace).await.unwrap();
        let reader = cached.open(&path(renamed), READ).await.unwrap().fh;
        assert_eq!(cached.read(reader, 0, 100).await.unwrap().to_vec(), b"before");
        cached.wait_idle().await;
        cached.write(writer, 0, Bytes::from_static(b"BEFORE, and after")).await.unwrap();
        assert_eq!(cached.read(reader, 0, 100).await.unwrap().to_vec(), b"BEFORE, and after");
        cached.close(reader);
        cached.finish(writer).await.unwrap();
        for cached in [cached, stage.mount(mode)] {
            assert_eq!(size(&cached, renamed).await, Ok(17), "{from} to {to}, {mode:?}");
            assert_eq!(read(&cached, renamed).await.unwrap(), b"BEFORE, and after");
        }
    }
}

/// `chmod`, `touch` and `rsync -a` change directories whose files are cached.
#[tokio::test]
async fn a_change_of_a_directory_keeps_what_is_cached_below_it() {
    let times = AttrChange { mtime: Some(Timestamp::from_secs(7)), ..AttrChange::default() };
    let perm = AttrChange { perm: Some(0o2775), ..AttrChange::default() };
    for change in [Some(times), Some(perm), None] {
        let stage = Stage::new();
        stage.put("d/e/f", pattern(1, 300_000));
        stage.put("d/e/part", pattern(2, 700_000));
        let cached = stage.mount(Mode::CloseToOpen);
        for dir in ["", "d", "d/e"] {
            list(&cached, dir).await.unwrap();
        }
        keep(&cached, "d/e/f").await;
        let open = cached.open(&path("d/e/f"), READ).await.unwrap().fh;
        let part = cached.open(&path("d/e/part"), READ).await.unwrap().fh;
        cached.read(part, 0, 500_000).await.unwrap();
        stage.asked();
        for dir in [path("d"), path("d/e")] {
            match change {
                Some(change) => cached.setattr(&dir, change).await.unwrap(),
                None => {
                    let value = Bytes::from_static(b"value");
                    let set = cached.setxattr(&dir, b"user.x", value, SetXattr::Either);
                    set.await.unwrap();
                }
            }
        }
        assert_eq!(stage.asked(), 2, "no file below is opened at the server");
        list(&cached, "").await.unwrap();
        list(&cached, "d").await.unwrap();
        assert_eq!(cached.lstat(&path("d")).await.unwrap(), stage.memory.attr("d"));
        cached.read(part, 500_000, 200_000).await.unwrap();
        for fh in [open, part] {
            cached.close(fh);
        }
        cached.wait_idle().await;
        let before = cached.status();
        assert!(read(&cached, "d/e/f").await.unwrap() == pattern(1, 300_000));
        assert!(read(&cached, "d/e/part").await.unwrap() == pattern(2, 700_000));
        assert_eq!(cached.status().hits, before.hits + 2);
        drop(cached);
        let offline = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
        assert_eq!(list(&offline, "d/e").await.unwrap(), ["f", "part"]);
        assert!(read(&offline, "d/e/f").await.unwrap() == pattern(1, 300_000));
        assert_eq!(offline.lstat(&path("d")).await.unwrap().perm, stage.memory.attr("d").perm);
    }
}

/// The server may refuse to open a file below after `chmod 000` of a directory.
#[tokio::test]
async fn a_change_that_may_remove_rights_forgets_what_is_cached_below() {
    let perm = |perm| AttrChange { perm: Some(perm), ..AttrChange::default() };
    let changes = [
        Some(perm(0)),
        Some(perm(0o744)),
        Some(AttrChange { uid: Some(1234), ..AttrChange::default() }),
        Some(AttrChange { gid: Some(1234), ..AttrChange::default() }),
        // The access list.
        None,
    ];
    for mode in [Mode::Immutable, Mode::CloseToOpen] {
        for change in changes {
            let stage = Stage::new();
            stage.put("d/e/f", "content");
            assert_eq!(stage.memory.attr("d").perm, 0o755);
            let cached = stage.mount(mode);
            cached.lstat(&path("d")).await.unwrap();
            keep(&cached, "d/e/f").await;
            let attr = cached.lstat(&path("d/e/f")).await.unwrap();
            let known = cached.open_stored(&path("d/e/f"), &attr).await.unwrap();
            match change {
                Some(change) => cached.setattr(&path("d"), change).await.unwrap(),
                None => {
                    let (name, value) = (b"system.posix_acl_access", Bytes::from_static(b"list"));
                    // The remote in memory may refuse it.
                    let _ = cached.setxattr(&path("d"), name, value, SetXattr::Either).await;
                }
            }
            stage.faulty.fail_always(Call::Lstat, Errno::EACCES);
            stage.faulty.fail_always(Call::Open, Errno::EACCES);
            assert!(cached.open_stored(&path("d/e/f"), &attr).await.is_none(), "{change:?}");
            assert_eq!(read(&cached, "d/e/f").await, Err(Errno::EACCES), "{mode:?}, {change:?}");
            // Opened at the server before.
            assert_eq!(cached.read(known.fh, 0, 100).await.unwrap().to_vec(), b"content");
            cached.close(known.fh);
        }
    }
}

/// Without the present mode it is unknown whether `chmod` removes a right.
#[tokio::test]
async fn a_change_of_an_unknown_mode_forgets_what_is_cached_below() {
    let stage = Stage::new();
    stage.put("d/f", "content");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "d/f").await;
    let attr = cached.lstat(&path("d/f")).await.unwrap();
    let change = AttrChange { perm: Some(0o755), ..AttrChange::default() };
    cached.setattr(&path("d"), change).await.unwrap();
    assert!(cached.open_stored(&path("d/f"), &attr).await.is_none());
}

/// `touch` and `rsync -a` change the root of the mount, too.
#[tokio::test]
async fn a_change_of_the_root_keeps_its_listing() {
    let stage = Stage::new();
    stage.put("f", "content");
    let cached = stage.mount(Mode::CloseToOpen);
    list(&cached, "").await.unwrap();
    cached.wait_idle().await;
    let times = AttrChange { mtime: Some(Timestamp::from_secs(7)), ..AttrChange::default() };
    cached.setattr(&path(""), times).await.unwrap();
    cached.lstat(&path("")).await.unwrap();
    drop(cached);
    let offline = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    assert_eq!(list(&offline, "").await.unwrap(), ["f"]);
}
