//! Rules of names and paths.

use base::{AttrChange, Create, Errno, Name, RemotePath, RenameMode, Result};

use super::ground::{Ground, mtime_change, ok, read_write};
use crate::path;

/// Every byte but `/` and NUL is part of a name, and comes back as it went.
pub async fn names_are_bytes(ground: &Ground) {
    let every_byte: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let longest = vec![b'n'; ground.expect().name_max];
    let odd: [&[u8]; 14] = [
        b" ",
        b"-rf",
        b"*",
        b"a\nb",
        b"\xff\xfe",
        b"\xc3\xbc",
        b"\x1b[2J",
        b"\\",
        b"...",
        b"\"'`$x",
        b"~",
        b"A",
        b"a",
        &longest,
    ];
    let names: Vec<&[u8]> =
        odd.into_iter().chain(every_byte.chunks(ground.expect().name_max)).collect();
    ground.dir("d").await;
    for bytes in &names {
        let at = path("d").join(&name(bytes));
        let opened =
            ok("create", &at, ground.open(&at, read_write(Create::Exclusive(0o644))).await);
        ground.put_at(opened.fh, 0, bytes).await;
        ground.close(opened.fh);
    }
    let mut expected: Vec<Vec<u8>> = names.iter().map(|bytes| bytes.to_vec()).collect();
    expected.sort();
    assert_eq!(ground.names("d").await, expected);
    for bytes in &names {
        let (at, moved) = (path("d").join(&name(bytes)), path("").join(&name(bytes)));
        assert_eq!(ok("lstat", &at, ground.lstat(&at).await).size, bytes.len() as u64);
        if *bytes == b"d" {
            continue;
        }
        ok("rename", &at, ground.rename(&at, &moved, RenameMode::Replace).await);
        ok("unlink", &moved, ground.unlink(&moved).await);
        ok("mkdir", &moved, ground.mkdir(&moved, 0o755).await);
        ok("rmdir", &moved, ground.rmdir(&moved).await);
        ok("symlink", &moved, ground.symlink(bytes, &moved).await);
        assert_eq!(ok("readlink", &moved, ground.readlink(&moved).await), *bytes);
        ok("unlink", &moved, ground.unlink(&moved).await);
    }
}

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).expect("a name without '/' and NUL")
}

/// A name of one byte more than the longest is `ENAMETOOLONG` everywhere.
pub async fn names_can_be_too_long(ground: &Ground) {
    ground.put("file", b"content").await;
    let long = path("").join(&name(&vec![b'n'; ground.expect().name_max + 1]));
    let too_long = Errno::ENAMETOOLONG;
    assert_eq!(ground.lstat(&long).await, Err(too_long));
    assert_eq!(ground.mkdir(&long, 0o755).await, Err(too_long));
    assert_eq!(ground.symlink(b"x", &long).await, Err(too_long));
    for create in [Create::Never, Create::IfAbsent(0o644), Create::Exclusive(0o644)] {
        let refused = ground.open(&long, read_write(create)).await.unwrap_err();
        assert_eq!(refused, too_long, "{create:?}");
    }
    let file = path("file");
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        assert_eq!(ground.rename(&file, &long, mode).await, Err(too_long), "{mode:?}");
    }
    if ground.expect().hard_links {
        assert_eq!(ground.link(&file, &long).await, Err(too_long));
    }
    assert_eq!(ground.names("").await, [b"file"]);
}

/// Forty directories deep, with long names, as far as a path may go.
pub async fn paths_can_be_deep(ground: &Ground) {
    let mut at = RemotePath::root();
    for depth in 0..40 {
        at = at.join(&name(format!("{depth:060}").as_bytes()));
        ok("mkdir", &at, ground.mkdir(&at, 0o755).await);
    }
    let file = at.join(&name(b"file"));
    let opened = ok("open", &file, ground.open(&file, read_write(Create::Exclusive(0o644))).await);
    ground.put_at(opened.fh, 0, b"content").await;
    ground.close(opened.fh);
    assert_eq!(ok("lstat", &file, ground.lstat(&file).await).size, 7);
    ok("rename", &file, ground.rename(&file, &path("up"), RenameMode::Replace).await);
    assert_eq!(ground.get("up").await, b"content");
    while !at.is_root() {
        ok("rmdir", &at, ground.rmdir(&at).await);
        at = at.parent().expect("it is not the root");
    }
    assert_eq!(ground.names("").await, [b"up"]);
}

/// All calls on `at` that need something there, or a directory above it.
async fn answers(ground: &Ground, at: &str) -> Vec<(&'static str, Result<()>)> {
    let there = path("there");
    let at = path(at);
    let change = AttrChange { perm: Some(0o700), ..AttrChange::default() };
    let mut answers = vec![
        ("lstat", ground.lstat(&at).await.map(drop)),
        ("readlink", ground.readlink(&at).await.map(drop)),
        ("opendir", ground.opendir(&at).await.map(drop)),
        ("open", ground.open(&at, read_write(Create::Never)).await.map(drop)),
        ("setattr perm", ground.setattr(&at, change).await),
        ("setattr mtime", ground.setattr(&at, mtime_change(1)).await),
        ("rmdir", ground.rmdir(&at).await),
        ("unlink", ground.unlink(&at).await),
        ("rename from", ground.rename(&at, &path("new"), RenameMode::Replace).await),
        ("rename from", ground.rename(&at, &path("new"), RenameMode::NoReplace).await),
        ("rename from", ground.rename(&at, &there, RenameMode::Replace).await),
        ("statvfs", ground.statvfs(&at).await.map(drop)),
    ];
    if ground.expect().hard_links {
        answers.push(("link from", ground.link(&at, &path("new")).await));
    }
    answers
}

/// All calls that would make `at`, whose parent is none.
async fn making(ground: &Ground, at: &str) -> Vec<(&'static str, Result<()>)> {
    let there = path("there");
    let at = path(at);
    let mut answers = vec![
        ("create", ground.open(&at, read_write(Create::IfAbsent(0o644))).await.map(drop)),
        ("create new", ground.open(&at, read_write(Create::Exclusive(0o644))).await.map(drop)),
        ("mkdir", ground.mkdir(&at, 0o755).await),
        ("symlink", ground.symlink(b"x", &at).await),
        ("rename to", ground.rename(&there, &at, RenameMode::Replace).await),
        ("rename to", ground.rename(&there, &at, RenameMode::NoReplace).await),
    ];
    if ground.expect().hard_links {
        answers.push(("link to", ground.link(&there, &at).await));
    }
    answers
}

/// A name that is not there, or below one that is not there.
pub async fn what_is_absent_is_enoent(ground: &Ground) {
    ground.put("there", b"content").await;
    ground.dir("dir").await;
    for at in ["absent", "dir/absent", "absent/x", "dir/absent/x/y"] {
        for (what, answer) in answers(ground, at).await {
            assert_eq!(answer, Err(Errno::ENOENT), "{what} {at}");
        }
    }
    for at in ["absent/x", "dir/absent/x"] {
        for (what, answer) in making(ground, at).await {
            assert_eq!(answer, Err(Errno::ENOENT), "{what} {at}");
        }
    }
    assert_eq!(ground.names("").await, [&b"dir"[..], b"there"]);
    assert_eq!(ground.get("there").await, b"content");
}

/// A name below a file.
pub async fn a_file_is_no_directory(ground: &Ground) {
    ground.put("there", b"content").await;
    ground.put("file", b"content").await;
    for at in ["file/x", "file/x/y"] {
        for (what, answer) in answers(ground, at).await {
            let vague = what == "lstat" && !ground.expect().lstat_tells_enotdir;
            if vague && answer == Err(Errno::ENOENT) {
                continue;
            }
            assert_eq!(answer, Err(Errno::ENOTDIR), "{what} {at}");
        }
        for (what, answer) in making(ground, at).await {
            assert_eq!(answer, Err(Errno::ENOTDIR), "{what} {at}");
        }
    }
    assert_eq!(ground.names("").await, [&b"file"[..], b"there"]);
}

/// `unlink` takes everything but directories, a link and not what it leads to.
pub async fn names_are_removed_by_their_kind(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.dir("dir").await;
    ground.dir("full").await;
    ground.put("full/x", b"").await;
    ground.put_link("file", "link").await;
    ground.put_link("dir", "dirlink").await;
    ground.put_link("nowhere", "dangling").await;
    for at in ["dir", "full"] {
        assert_eq!(ground.unlink(&path(at)).await, Err(Errno::EISDIR), "{at}");
    }
    for at in ["link", "dirlink", "dangling"] {
        ok("unlink", at, ground.unlink(&path(at)).await);
    }
    assert_eq!(ground.names("").await, [&b"dir"[..], b"file", b"full"]);
    ok("unlink", "file", ground.unlink(&path("file")).await);
    assert_eq!(ground.unlink(&path("file")).await, Err(Errno::ENOENT));
}
