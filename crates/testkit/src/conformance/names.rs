//! Rules for names and paths.

use base::{AttrChange, Create, Errno, Name, RemotePath, RenameMode, Result};

use super::fixture::{Fixture, mtime_change, ok, read_write};
use crate::path;

/// Every byte except `/` and NUL is part of a name, and is returned unchanged.
pub async fn names_are_bytes(fixture: &Fixture) {
    let every_byte: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let longest = vec![b'n'; fixture.expect().name_max];
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
        odd.into_iter().chain(every_byte.chunks(fixture.expect().name_max)).collect();
    fixture.dir("d").await;
    for bytes in &names {
        let at = path("d").join(&name(bytes));
        let opened =
            ok("create", &at, fixture.open(&at, read_write(Create::Exclusive(0o644))).await);
        fixture.put_at(opened.fh, 0, bytes).await;
        fixture.close(opened.fh);
    }
    let mut expected: Vec<Vec<u8>> = names.iter().map(|bytes| bytes.to_vec()).collect();
    expected.sort();
    assert_eq!(fixture.names("d").await, expected);
    for bytes in &names {
        let (at, moved) = (path("d").join(&name(bytes)), path("").join(&name(bytes)));
        assert_eq!(ok("lstat", &at, fixture.lstat(&at).await).size, bytes.len() as u64);
        if *bytes == b"d" {
            continue;
        }
        ok("rename", &at, fixture.rename(&at, &moved, RenameMode::Replace).await);
        ok("unlink", &moved, fixture.unlink(&moved).await);
        ok("mkdir", &moved, fixture.mkdir(&moved, 0o755).await);
        ok("rmdir", &moved, fixture.rmdir(&moved).await);
        ok("symlink", &moved, fixture.symlink(bytes, &moved).await);
        assert_eq!(ok("readlink", &moved, fixture.readlink(&moved).await), *bytes);
        ok("unlink", &moved, fixture.unlink(&moved).await);
    }
}

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).expect("a name without '/' and NUL")
}

/// A name one byte longer than the maximum is `ENAMETOOLONG` in every call.
pub async fn names_can_be_too_long(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    let long = path("").join(&name(&vec![b'n'; fixture.expect().name_max + 1]));
    let too_long = Errno::ENAMETOOLONG;
    assert_eq!(fixture.lstat(&long).await, Err(too_long));
    assert_eq!(fixture.mkdir(&long, 0o755).await, Err(too_long));
    assert_eq!(fixture.symlink(b"x", &long).await, Err(too_long));
    for create in [Create::Never, Create::IfAbsent(0o644), Create::Exclusive(0o644)] {
        let refused = fixture.open(&long, read_write(create)).await.unwrap_err();
        assert_eq!(refused, too_long, "{create:?}");
    }
    let file = path("file");
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        assert_eq!(fixture.rename(&file, &long, mode).await, Err(too_long), "{mode:?}");
    }
    if fixture.expect().hard_links {
        assert_eq!(fixture.link(&file, &long).await, Err(too_long));
    }
    assert_eq!(fixture.names("").await, [b"file"]);
}

/// Forty nested directories with long names, up to the maximum length of a path.
pub async fn paths_can_be_deep(fixture: &Fixture) {
    let mut at = RemotePath::root();
    for depth in 0..40 {
        at = at.join(&name(format!("{depth:060}").as_bytes()));
        ok("mkdir", &at, fixture.mkdir(&at, 0o755).await);
    }
    let file = at.join(&name(b"file"));
    let opened = ok("open", &file, fixture.open(&file, read_write(Create::Exclusive(0o644))).await);
    fixture.put_at(opened.fh, 0, b"content").await;
    fixture.close(opened.fh);
    assert_eq!(ok("lstat", &file, fixture.lstat(&file).await).size, 7);
    ok("rename", &file, fixture.rename(&file, &path("up"), RenameMode::Replace).await);
    assert_eq!(fixture.get("up").await, b"content");
    while !at.is_root() {
        ok("rmdir", &at, fixture.rmdir(&at).await);
        at = at.parent().expect("it is not the root");
    }
    assert_eq!(fixture.names("").await, [b"up"]);
}

/// All calls on `at` that need it, or its parent, to exist.
async fn answers(fixture: &Fixture, at: &str) -> Vec<(&'static str, Result<()>)> {
    let there = path("there");
    let at = path(at);
    let change = AttrChange { perm: Some(0o700), ..AttrChange::default() };
    let mut answers = vec![
        ("lstat", fixture.lstat(&at).await.map(drop)),
        ("readlink", fixture.readlink(&at).await.map(drop)),
        ("opendir", fixture.opendir(&at).await.map(drop)),
        ("open", fixture.open(&at, read_write(Create::Never)).await.map(drop)),
        ("setattr perm", fixture.setattr(&at, change).await),
        ("setattr mtime", fixture.setattr(&at, mtime_change(1)).await),
        ("rmdir", fixture.rmdir(&at).await),
        ("unlink", fixture.unlink(&at).await),
        ("rename from", fixture.rename(&at, &path("new"), RenameMode::Replace).await),
        ("rename from", fixture.rename(&at, &path("new"), RenameMode::NoReplace).await),
        ("rename from", fixture.rename(&at, &there, RenameMode::Replace).await),
        ("statvfs", fixture.statvfs(&at).await.map(drop)),
    ];
    if fixture.expect().hard_links {
        answers.push(("link from", fixture.link(&at, &path("new")).await));
    }
    answers
}

/// All calls that would create `at`, whose parent does not exist.
async fn making(fixture: &Fixture, at: &str) -> Vec<(&'static str, Result<()>)> {
    let there = path("there");
    let at = path(at);
    let mut answers = vec![
        ("create", fixture.open(&at, read_write(Create::IfAbsent(0o644))).await.map(drop)),
        ("create new", fixture.open(&at, read_write(Create::Exclusive(0o644))).await.map(drop)),
        ("mkdir", fixture.mkdir(&at, 0o755).await),
        ("symlink", fixture.symlink(b"x", &at).await),
        ("rename to", fixture.rename(&there, &at, RenameMode::Replace).await),
        ("rename to", fixture.rename(&there, &at, RenameMode::NoReplace).await),
    ];
    if fixture.expect().hard_links {
        answers.push(("link to", fixture.link(&there, &at).await));
    }
    answers
}

/// A name that does not exist, or whose parent does not exist.
pub async fn an_absent_name_is_enoent(fixture: &Fixture) {
    fixture.put("there", b"content").await;
    fixture.dir("dir").await;
    for at in ["absent", "dir/absent", "absent/x", "dir/absent/x/y"] {
        for (what, answer) in answers(fixture, at).await {
            assert_eq!(answer, Err(Errno::ENOENT), "{what} {at}");
        }
    }
    for at in ["absent/x", "dir/absent/x"] {
        for (what, answer) in making(fixture, at).await {
            assert_eq!(answer, Err(Errno::ENOENT), "{what} {at}");
        }
    }
    assert_eq!(fixture.names("").await, [&b"dir"[..], b"there"]);
    assert_eq!(fixture.get("there").await, b"content");
}

/// A name below a file.
pub async fn a_file_is_no_directory(fixture: &Fixture) {
    fixture.put("there", b"content").await;
    fixture.put("file", b"content").await;
    for at in ["file/x", "file/x/y"] {
        for (what, answer) in answers(fixture, at).await {
            let vague = what == "lstat" && !fixture.expect().lstat_returns_enotdir;
            if vague && answer == Err(Errno::ENOENT) {
                continue;
            }
            assert_eq!(answer, Err(Errno::ENOTDIR), "{what} {at}");
        }
        for (what, answer) in making(fixture, at).await {
            assert_eq!(answer, Err(Errno::ENOTDIR), "{what} {at}");
        }
    }
    assert_eq!(fixture.names("").await, [&b"file"[..], b"there"]);
}

/// `unlink` removes anything but directories; of a link, the link itself.
pub async fn names_are_removed_by_their_type(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.dir("dir").await;
    fixture.dir("full").await;
    fixture.put("full/x", b"").await;
    fixture.put_link("file", "link").await;
    fixture.put_link("dir", "dirlink").await;
    fixture.put_link("nowhere", "dangling").await;
    for at in ["dir", "full"] {
        assert_eq!(fixture.unlink(&path(at)).await, Err(Errno::EISDIR), "{at}");
    }
    for at in ["link", "dirlink", "dangling"] {
        ok("unlink", at, fixture.unlink(&path(at)).await);
    }
    assert_eq!(fixture.names("").await, [&b"dir"[..], b"file", b"full"]);
    ok("unlink", "file", fixture.unlink(&path("file")).await);
    assert_eq!(fixture.unlink(&path("file")).await, Err(Errno::ENOENT));
}
