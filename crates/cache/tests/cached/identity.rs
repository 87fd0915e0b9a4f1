//! Over a remote that identifies files: inode number and ctime decide whether a content is current,
//! and are shown as recorded.

use base::{Access, Attr, AttrChange, Errno, OpenFlags, Remote, Timestamp};
use bytes::Bytes;
use cache::{CachedConfig, Mode};
use testkit::path;

use super::stage::{
    LONG_AGO, Stage, identifying_changes, identifying_files, keep, list, pattern, read,
};

/// C3 without its exception: the file was written, or replaced, and has its size and mtime again.
#[tokio::test]
async fn a_change_that_size_and_mtime_do_not_show_is_seen() {
    for (replaced, hides) in [(false, false), (true, false), (false, true), (true, true)] {
        let stage = Stage::over(identifying_changes(hides));
        stage.put("f", "old");
        assert_eq!(keep(&stage.mount(Mode::CloseToOpen), "f").await, b"old");
        let cached = stage.mount(Mode::CloseToOpen);
        assert_eq!(read(&cached, "f").await.unwrap(), b"old");
        assert_eq!(cached.status().hits, 1);
        if replaced {
            stage.put("g", "new");
            stage.memory.move_to("g", "f");
        } else {
            stage.memory.put_file("f", "new");
            stage.memory.set_mtime("f", LONG_AGO);
        }
        // Any change sets the ctime, but that of another file may be the same.
        stage.memory.set_ctime("f", if replaced { LONG_AGO } else { LONG_AGO + 1 });
        assert_eq!(read(&cached, "f").await.unwrap(), b"new", "{replaced} {hides}");
        assert_eq!(read(&stage.mount(Mode::CloseToOpen), "f").await.unwrap(), b"new");
    }
}

/// I4: all descriptors of a file fill the pages of one inode.
#[tokio::test]
async fn an_open_file_shows_a_change_that_a_later_request_has_seen() {
    for (opens, hides) in [(false, false), (true, false), (false, true), (true, true)] {
        let stage = Stage::over(identifying_changes(hides));
        stage.put("f", "old");
        keep(&stage.mount(Mode::CloseToOpen), "f").await;
        let cached = stage.mount(Mode::CloseToOpen);
        let open =
            || async { cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap() };
        let (older, opened) = (open().await, open().await);
        assert_eq!(cached.status().hits, 2);
        stage.memory.put_file("f", "new");
        stage.memory.set_mtime("f", LONG_AGO);
        stage.memory.set_ctime("f", LONG_AGO + 1);
        match opens {
            true => assert_eq!(read(&cached, "f").await.unwrap(), b"new"),
            false => assert_eq!(cached.fstat(opened.fh).await.unwrap().size, 3),
        }
        for opened in [older, opened] {
            assert_eq!(
                cached.read(opened.fh, 0, 8).await.unwrap().to_vec(),
                b"new",
                "{opens} {hides}"
            );
            cached.close(opened.fh);
        }
    }
}

/// I4: the kernel shows the size that a look-up or a listing returned to all readers of the file.
#[tokio::test]
async fn an_open_file_shows_a_change_that_a_look_up_or_a_listing_has_seen() {
    for lists in [false, true] {
        let stage = Stage::over(identifying_files());
        stage.put("d/f", "old");
        keep(&stage.mount(Mode::CloseToOpen), "d/f").await;
        let cached = stage.mount(Mode::CloseToOpen);
        let opened = cached.open(&path("d/f"), OpenFlags::existing(Access::Read)).await.unwrap();
        assert_eq!(cached.status().hits, 1);
        stage.memory.put_file("d/f", "newer");
        match lists {
            true => assert_eq!(list(&cached, "d").await.unwrap(), ["f"]),
            false => assert_eq!(cached.lstat(&path("d/f")).await.unwrap().size, 5),
        }
        let data = cached.read(opened.fh, 0, 8).await.unwrap().to_vec();
        assert_eq!(data, b"newer", "listed: {lists}");
        cached.close(opened.fh);
    }
}

/// An mtime long past proves nothing for a file that has just changed.
#[tokio::test]
async fn a_content_is_not_kept_in_the_second_of_its_ctime() {
    let stage = Stage::over(identifying_files());
    stage.put("f", "content");
    stage.memory.set_ctime("f", Timestamp::now().secs);
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    assert_eq!(cached.status().completed, 0);
    stage.memory.set_ctime("f", LONG_AGO);
    keep(&cached, "f").await;
    assert_eq!(cached.status().completed, 1);
}

#[tokio::test]
async fn what_is_recorded_is_shown_unless_the_paths_are_of_several_hosts() {
    let stage = Stage::over(identifying_files());
    stage.put("d/f", "content");
    let cached = stage.mount(Mode::Immutable);
    list(&cached, "d").await.unwrap();
    let seen = cached.lstat(&path("d/f")).await.unwrap();
    assert_eq!(seen.ctime().unwrap(), Timestamp::from_secs(LONG_AGO));
    keep(&cached, "d/f").await;
    drop(cached);
    for inode_attrs in [true, false] {
        let config = CachedConfig { offline: true, inode_attrs, ..stage.config() };
        let cached = stage.mount_with(config);
        let expected = Attr { inode: seen.inode.filter(|_| inode_attrs), ..seen };
        assert_eq!(cached.lstat(&path("d/f")).await, Ok(expected));
        let dh = cached.opendir(&path("d")).await.unwrap();
        let entries = cached.readdir(dh).await.unwrap().unwrap();
        assert_eq!(entries[0].attr, Some(expected));
        cached.closedir(dh);
        assert_eq!(read(&cached, "d/f").await.unwrap(), b"content");
    }
}

/// The kernel opens the file, and any of its names may be sent.
#[tokio::test]
async fn a_content_read_by_one_name_is_opened_by_another_one_offline() {
    let stage = Stage::over(identifying_files());
    for file in ["d/f", "d/other", "e/f"] {
        stage.put(file, "content");
    }
    stage.memory.link(&path("d/f"), &path("e/g")).await.unwrap();
    for file in ["d/f", "d/other"] {
        stage.memory.set_ctime(file, LONG_AGO);
    }
    let cached = stage.mount(Mode::CloseToOpen);
    for dir in ["d", "e"] {
        list(&cached, dir).await.unwrap();
    }
    keep(&cached, "d/f").await;
    drop(cached);
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    cached.lstat(&path("d/f")).await.unwrap();
    assert_eq!(read(&cached, "e/g").await.unwrap(), b"content");
    assert_eq!(read(&cached, "d/other").await, Err(base::Errno::EIO), "another file");
}

/// A2, I4: all names of a file fill the pages of one inode.
#[tokio::test]
async fn what_is_written_by_one_name_is_read_by_another() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum How {
        WriterFirst,
        ReaderFirst,
        Truncating,
        Setattr,
        LookUp,
        Listing,
    }
    use How::{Listing, LookUp, ReaderFirst, Setattr, Truncating, WriterFirst};
    for how in [WriterFirst, ReaderFirst, Truncating, Setattr, LookUp, Listing] {
        let stage = Stage::over(identifying_files());
        stage.put("a", "old");
        stage.memory.put_dir("d");
        stage.memory.link(&path("a"), &path("d/b")).await.unwrap();
        stage.memory.set_ctime("a", LONG_AGO);
        keep(&stage.mount(Mode::CloseToOpen), "a").await;
        let cached = stage.mount(Mode::CloseToOpen);
        let open_a =
            || async { cached.open(&path("a"), OpenFlags::existing(Access::Read)).await.unwrap() };
        let open_b = async |flags| cached.open(&path("d/b"), flags).await.unwrap();
        let writing = OpenFlags::existing(Access::ReadWrite);
        let (reader, expected) = match how {
            WriterFirst | ReaderFirst => {
                let reader = if how == ReaderFirst { Some(open_a().await) } else { None };
                let writer = open_b(writing).await;
                let reader = match reader {
                    Some(reader) => reader,
                    None => open_a().await,
                };
                cached.write(writer.fh, 0, Bytes::from_static(b"new")).await.unwrap();
                cached.close(writer.fh);
                (reader, "new")
            }
            Truncating => {
                let reader = open_a().await;
                let flags = OpenFlags { truncate: true, ..OpenFlags::existing(Access::Read) };
                cached.close(open_b(flags).await.fh);
                (reader, "")
            }
            Setattr => {
                let reader = open_a().await;
                let change = AttrChange { size: Some(1), ..AttrChange::default() };
                cached.setattr(&path("d/b"), change).await.unwrap();
                (reader, "o")
            }
            LookUp | Listing => {
                let reader = open_a().await;
                stage.memory.put_file("d/b", "newer");
                match how {
                    LookUp => assert_eq!(cached.lstat(&path("d/b")).await.unwrap().size, 5),
                    _ => assert_eq!(list(&cached, "d").await.unwrap(), ["b"]),
                }
                (reader, "newer")
            }
        };
        assert_eq!(cached.status().hits, 1, "{how:?}");
        let data = cached.read(reader.fh, 0, 8).await.unwrap();
        assert_eq!(data.to_vec(), expected.as_bytes(), "{how:?}");
        cached.close(reader.fh);
    }
}

/// A2, I4: in a listing, the name of an open file may be that of another file.
#[tokio::test]
async fn a_listing_shows_what_is_written_by_another_name_of_a_replaced_file() {
    let stage = Stage::over(identifying_files());
    stage.put("a", "old");
    stage.memory.link(&path("a"), &path("b")).await.unwrap();
    stage.memory.set_ctime("a", LONG_AGO);
    keep(&stage.mount(Mode::CloseToOpen), "a").await;
    let cached = stage.mount(Mode::CloseToOpen);
    let reader = cached.open(&path("a"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(cached.status().hits, 1);
    stage.memory.link(&path("b"), &path("c")).await.unwrap();
    stage.memory.remove("a");
    stage.put("a", "another file");
    stage.memory.put_file("b", "newer");
    assert_eq!(list(&cached, "").await.unwrap(), ["a", "b", "c"]);
    // Its name does not lead to it.
    assert_eq!(cached.read(reader.fh, 0, 8).await.err(), Some(Errno::ESTALE));
    cached.close(reader.fh);
}

/// A link or another mode changes the ctime, but no content.
#[tokio::test]
async fn an_immutable_content_stays_whatever_the_ctime_is() {
    let stage = Stage::over(identifying_files());
    stage.put("f", "content");
    stage.put("g", "another");
    let cached = stage.mount(Mode::Immutable);
    list(&cached, "").await.unwrap();
    keep(&cached, "f").await;
    for at in ["f", "g"] {
        stage.memory.set_ctime(at, LONG_AGO + 1);
    }
    let cached = stage.mount(Mode::Immutable);
    assert_eq!(read(&cached, "f").await.unwrap(), b"content");
    assert_eq!(read(&cached, "g").await.unwrap(), b"another");
}

/// What was recorded over plain SFTP has no identity.
#[tokio::test]
async fn records_of_plain_sftp_stay_valid_where_size_and_mtime_are_all() {
    let plain = Stage::new();
    plain.put("f", "content");
    keep(&plain.mount(Mode::CloseToOpen), "f").await;
    keep(&plain.mount(Mode::Immutable), "f").await;
    let identified = Stage { dir: plain.dir, ..Stage::over(identifying_files()) };
    identified.put("f", "content");
    // Equal size and mtime prove too little now.
    let cached = identified.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    assert_eq!((cached.status().hits, cached.status().misses), (0, 1));
    let cached = identified.mount(Mode::Immutable);
    assert_eq!(read(&cached, "f").await.unwrap(), b"content");
    assert_eq!(cached.status().hits, 1);
    // And back, where they are all that there is.
    let plain = Stage { dir: identified.dir, ..Stage::new() };
    plain.put("f", "content");
    let cached = plain.mount(Mode::CloseToOpen);
    assert_eq!(read(&cached, "f").await.unwrap(), b"content");
    assert_eq!(cached.status().hits, 1);
}

/// As after an interrupted `sshoal warm`.
#[tokio::test]
async fn a_mount_continues_the_parts_of_another_one() {
    for mode in [Mode::CloseToOpen, Mode::Immutable] {
        continues_parts(mode).await;
    }
}

async fn continues_parts(mode: Mode) {
    let stage = Stage::over(identifying_files());
    let content = pattern(3, 5_000_000);
    stage.put("f", &content);
    let first = stage.mount(mode);
    let opened = first.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    for offset in (0..4_000_000).step_by(128 << 10) {
        first.read(opened.fh, offset, 128 << 10).await.unwrap();
    }
    first.close(opened.fh);
    first.shutdown().await;
    drop(first);
    if mode == Mode::Immutable {
        // By a link, for example.
        stage.memory.set_ctime("f", LONG_AGO + 1);
    }
    let second = stage.mount(mode);
    assert!(read(&second, "f").await.unwrap() == content);
    let status = second.status();
    assert!(status.read_there_bytes < 1_500_000, "{status:?}");
    second.wait_idle().await;
    assert_eq!(second.status().completed, 1);
}
