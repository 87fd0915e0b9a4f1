//! Directories, links, and what happens to names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, Dir, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::{Behaviour, Pair};
use crate::process::eventually;

pub(super) const ALL: &[(&str, Behaviour)] = &[
    ("readdir", readdir),
    ("readdir_of_many", readdir_of_many),
    ("readdir_again_and_again", readdir_again_and_again),
    ("rewinddir", rewinddir),
    ("create", create),
    ("passthrough", passthrough),
    ("mkdir", mkdir),
    ("mkdir_where_something_is", mkdir_where_something_is),
    ("rmdir", rmdir),
    ("unlink", unlink),
    ("rename", rename),
    ("rename_over", rename_over),
    ("rename_without_replacing", rename_without_replacing),
    ("rename_beside_a_longer_name", rename_beside_a_longer_name),
    ("rename_while_open", rename_while_open),
    ("symlinks", symlinks),
    ("names_of_all_sorts", names_of_all_sorts),
];

fn names(dir: &Path) -> BTreeSet<std::ffi::OsString> {
    let names: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name()).collect();
    let unique: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(unique.len(), names.len(), "a name is listed twice: {names:?}");
    unique
}

fn kind(error: std::io::Result<impl Sized>) -> ErrorKind {
    error.map(drop).unwrap_err().kind()
}

fn errno(error: std::io::Result<impl Sized>) -> Option<i32> {
    error.map(drop).unwrap_err().raw_os_error()
}

fn readdir(pair: &Pair) {
    let (here, there) = pair.dir("readdir");
    fs::create_dir(there.join("dir")).unwrap();
    fs::write(there.join("file"), b"x").unwrap();
    fs::write(there.join("dir/inner"), b"xy").unwrap();
    assert_eq!(names(&here), names(&there));
    assert_eq!(names(&here.join("dir")), [OsStr::new("inner").to_owned()].into());
    for entry in fs::read_dir(&here).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        assert_eq!(entry.file_type().unwrap().is_dir(), entry.file_name() == "dir");
        assert_eq!(meta.is_dir(), entry.file_name() == "dir");
        assert_eq!(rustix::fs::DirEntry::ino(&raw_entry(&here, &entry.file_name())), meta.ino());
    }
    fs::remove_dir_all(&here).unwrap();
    assert!(!there.exists());
}

/// The entry as the kernel gives it, with `d_ino`.
fn raw_entry(dir: &Path, name: &OsStr) -> rustix::fs::DirEntry {
    let dir = rustix::fs::Dir::read_from(File::open(dir).unwrap()).unwrap();
    let mut entries = dir.map(Result::unwrap);
    entries.find(|it| it.file_name().to_bytes() == name.as_encoded_bytes()).unwrap()
}

fn readdir_of_many(pair: &Pair) {
    let (here, there) = pair.dir("many");
    let expected: BTreeSet<_> = (0..1_234).map(|n| format!("file number {n}").into()).collect();
    for name in &expected {
        File::create(there.join::<&std::ffi::OsString>(name)).unwrap();
    }
    assert_eq!(names(&here), expected);
    fs::remove_dir_all(&here).unwrap();
    assert!(!there.exists());
}

fn readdir_again_and_again(pair: &Pair) {
    let (here, there) = pair.dir("again");
    let mut expected = BTreeSet::new();
    for n in 0..20 {
        let name = format!("name{n}");
        fs::write(here.join(&name), b"").unwrap();
        expected.insert(name.into());
        assert_eq!(names(&here), expected, "what was made here is seen at once");
    }
    for n in (0..20).step_by(2) {
        fs::remove_file(here.join(format!("name{n}"))).unwrap();
        expected.remove(OsStr::new(&format!("name{n}")));
        assert_eq!(names(&here), expected);
    }
    assert_eq!(names(&there), expected);
    fs::remove_dir_all(&here).unwrap();
}

/// What was made since a directory was opened is listed, also by whoever has read nothing of it.
fn rewinddir(pair: &Pair) {
    let (here, _) = pair.dir("rewinddir");
    // Known to be empty.
    assert!(names(&here).is_empty());
    let mut open = Dir::new(File::open(&here).unwrap()).unwrap();
    for made in 1..=5 {
        fs::write(here.join(format!("name{made}")), b"").unwrap();
        open.rewind();
        assert_eq!(open.by_ref().count(), 2 + made, "the dots, and what was made");
    }
    fs::remove_dir_all(&here).unwrap();
}

fn create(pair: &Pair) {
    let (here, there) = pair.both("created");
    assert_eq!(kind(fs::metadata(&here)), ErrorKind::NotFound);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&here).unwrap();
    file.write_all(b"x").unwrap();
    let meta = fs::metadata(&here).unwrap();
    assert!(meta.is_file());
    assert_eq!((meta.nlink(), meta.size()), (1, 1));
    drop(file);
    assert!(there.is_file());
    let again = OpenOptions::new().write(true).create_new(true).open(&here);
    assert_eq!(kind(again), ErrorKind::AlreadyExists);
    fs::remove_file(&here).unwrap();
}

fn passthrough(pair: &Pair) {
    let limit = pair.staleness + std::time::Duration::from_secs(2);
    // What was made here is there.
    let (here, there) = pair.both("passed");
    assert_eq!(kind(fs::metadata(&here)), ErrorKind::NotFound);
    fs::write(&here, b"content").unwrap();
    let (ours, theirs) = (fs::metadata(&here).unwrap(), fs::metadata(&there).unwrap());
    assert_eq!((ours.uid(), ours.gid(), ours.mode()), (theirs.uid(), theirs.gid(), theirs.mode()));
    assert_eq!(ours.size(), theirs.size());
    assert!((ours.mtime() - theirs.mtime()).abs() <= 1);
    // What is changed there is seen here: new content, a removal, a new name.
    fs::write(&there, b"other content").unwrap();
    eventually(limit, "the new size", || fs::metadata(&here).unwrap().size() == 13);
    assert_eq!(fs::read(&here).unwrap(), b"other content");
    fs::remove_file(&there).unwrap();
    eventually(limit, "the removal", || fs::metadata(&here).is_err());
    fs::write(&there, b"back").unwrap();
    eventually(limit, "the new name", || fs::metadata(&here).is_ok());
    assert_eq!(fs::read(&here).unwrap(), b"back");
    fs::remove_file(&here).unwrap();
}

fn mkdir(pair: &Pair) {
    let (here, there) = pair.both("made");
    fs::create_dir(&here).unwrap();
    let meta = fs::metadata(&here).unwrap();
    assert!(meta.is_dir());
    assert!([1, 2].contains(&meta.nlink()), "1 stands for unknown");
    assert_eq!(names(&here), BTreeSet::new());
    assert!(there.is_dir());
    fs::create_dir_all(here.join("a/b/c")).unwrap();
    assert!(there.join("a/b/c").is_dir());
    fs::remove_dir_all(&here).unwrap();
}

fn mkdir_where_something_is(pair: &Pair) {
    let (here, there) = pair.dir("taken");
    assert_eq!(kind(fs::create_dir(&here)), ErrorKind::AlreadyExists);
    fs::write(there.join("file"), b"").unwrap();
    assert_eq!(kind(fs::create_dir(here.join("file"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs::create_dir(here.join("file/x"))), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::create_dir(here.join("no/x"))), ErrorKind::NotFound);
    fs::create_dir_all(&here).unwrap();
    fs::remove_dir_all(&here).unwrap();
}

fn rmdir(pair: &Pair) {
    let (here, there) = pair.dir("removed");
    fs::write(here.join("file"), b"").unwrap();
    assert_eq!(kind(fs::remove_dir(&here)), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs::remove_dir(here.join("file"))), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::remove_dir(here.join("no"))), ErrorKind::NotFound);
    fs::remove_file(here.join("file")).unwrap();
    fs::remove_dir(&here).unwrap();
    assert!(!there.exists());
    assert_eq!(kind(fs::metadata(&here)), ErrorKind::NotFound);
}

fn unlink(pair: &Pair) {
    let (here, there) = pair.both("gone");
    pair.put(&there, b"x");
    fs::metadata(&here).unwrap();
    fs::remove_file(&here).unwrap();
    assert_eq!(kind(fs::metadata(&here)), ErrorKind::NotFound);
    assert_eq!(kind(File::open(&here)), ErrorKind::NotFound);
    assert!(!there.exists());
    assert_eq!(kind(fs::remove_file(&here)), ErrorKind::NotFound);
    fs::create_dir(&here).unwrap();
    assert_eq!(errno(fs::remove_file(&here)), Some(Errno::ISDIR.raw_os_error()));
    fs::remove_dir(&here).unwrap();
}

fn rename(pair: &Pair) {
    let (here, there) = pair.dir("renamed");
    fs::write(here.join("old"), b"content").unwrap();
    let number = fs::metadata(here.join("old")).unwrap().ino();
    fs::rename(here.join("old"), here.join("new")).unwrap();
    assert_eq!(kind(fs::metadata(here.join("old"))), ErrorKind::NotFound);
    assert_eq!(fs::metadata(here.join("new")).unwrap().ino(), number);
    assert_eq!(fs::read(here.join("new")).unwrap(), b"content");
    assert_eq!(names(&there), [OsStr::new("new").to_owned()].into());
    // A directory takes along what is in it.
    fs::create_dir_all(here.join("dir/sub")).unwrap();
    fs::write(here.join("dir/sub/file"), b"deep").unwrap();
    fs::create_dir(here.join("other")).unwrap();
    fs::rename(here.join("dir"), here.join("other/moved")).unwrap();
    assert_eq!(fs::read(here.join("other/moved/sub/file")).unwrap(), b"deep");
    assert_eq!(fs::read(there.join("other/moved/sub/file")).unwrap(), b"deep");
    assert_eq!(kind(fs::metadata(here.join("dir"))), ErrorKind::NotFound);
    assert_eq!(kind(fs::rename(here.join("no"), here.join("x"))), ErrorKind::NotFound);
    let into_itself = fs::rename(here.join("other"), here.join("other/moved/x"));
    assert_eq!(kind(into_itself), ErrorKind::InvalidInput);
    fs::remove_dir_all(&here).unwrap();
}

fn rename_over(pair: &Pair) {
    let (here, there) = pair.dir("over");
    for name in ["a", "b"] {
        fs::write(here.join(name), name).unwrap();
    }
    let held = File::open(here.join("b")).unwrap();
    fs::rename(here.join("a"), here.join("b")).unwrap();
    assert_eq!(fs::read(here.join("b")).unwrap(), b"a");
    assert_eq!(names(&here), [OsStr::new("b").to_owned()].into());
    assert_eq!(fs::read(there.join("b")).unwrap(), b"a");
    let mut text = String::new();
    (&held).read_to_string(&mut text).unwrap();
    assert_eq!(text, "b", "what was open is still what it was");
    // Directories only over empty directories.
    fs::create_dir_all(here.join("full/x")).unwrap();
    fs::create_dir(here.join("empty")).unwrap();
    fs::create_dir(here.join("dir")).unwrap();
    assert_eq!(kind(fs::rename(here.join("dir"), here.join("full"))), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs::rename(here.join("dir"), here.join("b"))), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::rename(here.join("b"), here.join("dir"))), ErrorKind::IsADirectory);
    fs::rename(here.join("dir"), here.join("empty")).unwrap();
    assert!(!there.join("dir").exists() && there.join("empty").is_dir());
    fs::remove_dir_all(&here).unwrap();
}

fn rename_without_replacing(pair: &Pair) {
    let (here, there) = pair.dir("noreplace");
    for name in ["a", "b"] {
        fs::write(here.join(name), name).unwrap();
    }
    let rename =
        |to: &str| renameat_with(CWD, here.join("a"), CWD, here.join(to), RenameFlags::NOREPLACE);
    assert_eq!(rename("b"), Err(Errno::EXIST));
    assert_eq!(fs::read(there.join("b")).unwrap(), b"b");
    assert_eq!(rename("c"), Ok(()));
    assert_eq!(fs::read(there.join("c")).unwrap(), b"a");
    assert!(!there.join("a").exists());
    fs::remove_dir_all(&here).unwrap();
}

fn rename_beside_a_longer_name(pair: &Pair) {
    // sshfs once dropped from its cache all names that begin with the renamed one.
    let (here, _) = pair.dir("sibling");
    for name in ["dir", "dirX", "dir.old"] {
        fs::create_dir(here.join(name)).unwrap();
        fs::write(here.join(name).join("file"), name).unwrap();
    }
    fs::rename(here.join("dir"), here.join("moved")).unwrap();
    assert_eq!(fs::read(here.join("dirX/file")).unwrap(), b"dirX");
    assert_eq!(fs::read(here.join("dir.old/file")).unwrap(), b"dir.old");
    assert_eq!(fs::read(here.join("moved/file")).unwrap(), b"dir");
    assert_eq!(kind(fs::metadata(here.join("dir/file"))), ErrorKind::NotFound);
    fs::remove_dir_all(&here).unwrap();
}

fn rename_while_open(pair: &Pair) {
    let (here, there) = pair.dir("held");
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(here.join("a")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::rename(here.join("a"), here.join("b")).unwrap();
    file.write_all_at(b" after", 6).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 12);
    drop(file);
    assert_eq!(fs::read(there.join("b")).unwrap(), b"before after");
    assert_eq!(fs::read(here.join("b")).unwrap(), b"before after");
    fs::remove_dir_all(&here).unwrap();
}

fn symlinks(pair: &Pair) {
    let (here, there) = pair.dir("links");
    symlink("/imaginary/dest", here.join("away")).unwrap();
    assert_eq!(fs::read_link(there.join("away")).unwrap(), Path::new("/imaginary/dest"));
    let meta = fs::symlink_metadata(here.join("away")).unwrap();
    assert!(meta.is_symlink());
    assert_eq!(meta.nlink(), 1);
    assert_eq!(names(&here), [OsStr::new("away").to_owned()].into());
    // Ours: links that lead out of the mount are there, but cannot be followed.
    assert_eq!(kind(fs::read_link(here.join("away"))), ErrorKind::PermissionDenied);
    fs::write(here.join("file"), b"content").unwrap();
    symlink("file", here.join("near")).unwrap();
    symlink(here.join("file").strip_prefix(pair.mount.place()).unwrap(), here.join("nowhere"))
        .unwrap();
    symlink("../links/file", here.join("around")).unwrap();
    assert_eq!(fs::read_link(here.join("near")).unwrap(), Path::new("file"));
    assert_eq!(fs::read(here.join("near")).unwrap(), b"content");
    assert_eq!(fs::read(here.join("around")).unwrap(), b"content");
    assert_eq!(kind(fs::metadata(here.join("nowhere"))), ErrorKind::NotFound);
    fs::remove_dir_all(&here).unwrap();
}

fn names_of_all_sorts(pair: &Pair) {
    use std::os::unix::ffi::OsStrExt;
    let (here, there) = pair.dir("sorts");
    let longest = "n".repeat(255);
    let sorts: [&[u8]; 9] = [
        b"plain",
        b" ",
        b"new\nline",
        b"\x1b[31m",
        b"gr\xc3\xbcn",
        b"\xff\xfe",
        b"*?[\\]\"'",
        b"-rf",
        longest.as_bytes(),
    ];
    for name in sorts {
        fs::write(here.join(OsStr::from_bytes(name)), name).unwrap();
        assert_eq!(fs::read(there.join(OsStr::from_bytes(name))).unwrap(), name);
        assert_eq!(fs::read(here.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    assert_eq!(names(&here), names(&there));
    assert_eq!(names(&here).len(), sorts.len());
    let too_long = File::create(here.join(format!("{longest}n")));
    assert_eq!(errno(too_long), Some(Errno::NAMETOOLONG.raw_os_error()));
    fs::remove_dir_all(&here).unwrap();
}
