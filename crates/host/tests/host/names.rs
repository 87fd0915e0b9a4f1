//! Creating, removing, renaming, linking.

use std::os::unix::fs::{MetadataExt, symlink};

use base::{Errno, FileKind, Name, Remote, RemotePath, RenameMode};
use host::Config;

use super::peer::{Real, path};

#[tokio::test]
async fn directories_files_and_links_are_created_and_removed() {
    let real = Real::new().await;
    let host = &real.host;
    host.mkdir(&path("d"), 0o750).await.unwrap();
    assert_eq!(host.lstat(&path("d")).await.unwrap().perm, 0o750);
    host.symlink(b"../\xff to", &path("d/l")).await.unwrap();
    assert_eq!(host.readlink(&path("d/l")).await.unwrap(), b"../\xff to");
    let attr = host.lstat(&path("d/l")).await.unwrap();
    assert_eq!((attr.kind, attr.size), (FileKind::Symlink, 7));
    real.write_local("f", "content");
    host.link(&path("f"), &path("d/second")).await.unwrap();
    assert_eq!(std::fs::metadata(real.local("f")).unwrap().nlink(), 2);
    host.link(&path("d/l"), &path("l2")).await.unwrap();
    assert_eq!(host.lstat(&path("l2")).await.unwrap().kind, FileKind::Symlink);
    for name in ["l2", "d/second", "d/l", "f"] {
        host.unlink(&path(name)).await.unwrap();
    }
    host.rmdir(&path("d")).await.unwrap();
    assert_eq!(std::fs::read_dir(real.dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn names_are_bytes() {
    let real = Real::new().await;
    let long = [b'x'; 255];
    for bytes in [&b"\xff\xfe"[..], b"line\nbreak", b"...", b" ", b"-rf", b"~", b"*", &long] {
        let name = RemotePath::root().join(&Name::new(bytes).unwrap());
        real.host.mkdir(&name, 0o755).await.unwrap();
        assert!(real.host.lstat(&name).await.unwrap().is_dir());
        let dh = real.host.opendir(&path("")).await.unwrap();
        let listed = real.host.readdir(dh).await.unwrap().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].name.as_bytes(), bytes);
        real.host.closedir(dh);
        real.host.rmdir(&name).await.unwrap();
    }
}

/// What may exist at a name.
const KINDS: [&str; 6] = ["absent", "file", "empty", "full", "link", "dangling"];

fn make(real: &Real, name: &str, kind: &str) {
    let local = real.local(name);
    match kind {
        "absent" => {}
        "file" => std::fs::write(&local, name).unwrap(),
        "empty" => std::fs::create_dir(&local).unwrap(),
        "full" => {
            std::fs::create_dir(&local).unwrap();
            std::fs::write(local.join("inside"), name).unwrap();
        }
        "link" => symlink("/", &local).unwrap(),
        _ => symlink(format!("nowhere-{name}"), &local).unwrap(),
    }
}

fn unmake(real: &Real, name: &str) {
    let local = real.local(name);
    if std::fs::remove_file(&local).is_err() {
        let _ = std::fs::remove_dir_all(&local);
    }
}

fn is_dir(kind: &str) -> bool {
    matches!(kind, "empty" | "full")
}

fn expected(from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
    match (from, to) {
        ("absent", _) => Err(Errno::ENOENT),
        (_, "absent") => Ok(()),
        _ if mode == RenameMode::NoReplace => Err(Errno::EEXIST),
        (from, to) if is_dir(from) && !is_dir(to) => Err(Errno::ENOTDIR),
        (from, to) if !is_dir(from) && is_dir(to) => Err(Errno::EISDIR),
        (_, "full") => Err(Errno::ENOTEMPTY),
        _ => Ok(()),
    }
}

/// Identity of the file at a name, read without the host.
fn look(real: &Real, name: &str) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(real.local(name)).ok().map(|meta| (meta.ino(), meta.len()))
}

#[tokio::test]
async fn every_type_is_renamed_over_every_type() {
    let real = Real::new().await;
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        for from in KINDS {
            for to in KINDS {
                make(&real, "from", from);
                make(&real, "to", to);
                let before = (look(&real, "from"), look(&real, "to"));
                let renamed = real.host.rename(&path("from"), &path("to"), mode).await;
                assert_eq!(renamed, expected(from, to, mode), "{from} to {to}, {mode:?}");
                let after = (look(&real, "from"), look(&real, "to"));
                match renamed {
                    Ok(()) => assert_eq!(after, (None, before.0), "{from} to {to}, {mode:?}"),
                    Err(_) => assert_eq!(after, before, "{from} to {to}, {mode:?}"),
                }
                unmake(&real, "from");
                unmake(&real, "to");
            }
        }
    }
}

#[tokio::test]
async fn impossible_renames() {
    let real = Real::new().await;
    std::fs::create_dir_all(real.local("d/e")).unwrap();
    real.write_local("f", "");
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        for (from, to, errno) in [
            ("d", "d/e/x", Errno::EINVAL),
            ("d", "d/x", Errno::EINVAL),
            ("f", "none/x", Errno::ENOENT),
            ("f", "f/x", Errno::ENOTDIR),
            ("none/x", "f2", Errno::ENOENT),
            ("", "x", Errno::EBUSY),
            ("f", "", Errno::EBUSY),
        ] {
            let renamed = real.host.rename(&path(from), &path(to), mode).await;
            assert_eq!(renamed, Err(errno), "{from} to {to}, {mode:?}");
        }
    }
    assert_eq!(
        real.host.rename(&path("d/e"), &path("d"), RenameMode::Replace).await,
        Err(Errno::ENOTEMPTY)
    );
    real.host.rename(&path("f"), &path("f"), RenameMode::Replace).await.unwrap();
}

#[tokio::test]
async fn a_server_without_posix_rename() {
    let refused = ["-P", "posix-rename"];
    let real = Real::with_server(Config::default(), &refused).await;
    real.write_local("a", "a");
    real.write_local("b", "b");
    let rename = async |real: &Real, from, to| {
        real.host.rename(&path(from), &path(to), RenameMode::Replace).await
    };
    assert_eq!(rename(&real, "a", "b").await, Err(Errno::EPERM), "it cannot replace");
    rename(&real, "a", "c").await.unwrap();

    let config = Config { renamexdev_workaround: true, ..Config::default() };
    let real = Real::with_server(config, &refused).await;
    real.write_local("a", "a");
    real.write_local("b", "b");
    assert_eq!(rename(&real, "a", "b").await, Err(Errno::EXDEV));

    let config = Config { rename_workaround: true, ..Config::default() };
    let real = Real::with_server(config, &refused).await;
    for name in ["a", "b", "full/inside", "dir/entry"] {
        std::fs::create_dir_all(real.local(name).parent().unwrap()).unwrap();
        real.write_local(name, name);
    }
    std::fs::create_dir(real.local("empty")).unwrap();
    for (from, to, errno) in [
        ("dir", "full", Errno::ENOTEMPTY),
        ("dir", "b", Errno::ENOTDIR),
        ("b", "empty", Errno::EISDIR),
    ] {
        assert_eq!(rename(&real, from, to).await, Err(errno), "{from} to {to}");
    }
    assert!(real.local("dir/entry").exists() && real.local("full/inside").exists());
    rename(&real, "dir", "empty").await.unwrap();
    assert!(real.local("empty/entry").exists());
    rename(&real, "a", "b").await.unwrap();
    assert_eq!(std::fs::read(real.local("b")).unwrap(), b"a");
    assert_eq!(rename(&real, "none", "b").await, Err(Errno::ENOENT));
    assert_eq!(std::fs::read(real.local("b")).unwrap(), b"a", "moved back");
    assert_eq!(std::fs::read_dir(real.dir.path()).unwrap().count(), 3, "nothing is left behind");
}

#[tokio::test]
async fn hard_links_can_be_disabled_or_missing() {
    let real = Real::with(Config { disable_hardlink: true, ..Config::default() }).await;
    real.write_local("f", "");
    assert_eq!(real.host.link(&path("f"), &path("g")).await, Err(Errno::ENOSYS));
    let real = Real::with_server(Config::default(), &["-P", "hardlink"]).await;
    real.write_local("f", "");
    assert_eq!(real.host.link(&path("f"), &path("g")).await, Err(Errno::ENOSYS));
}

#[tokio::test]
async fn statvfs_of_the_file_system() {
    let real = Real::new().await;
    let figures = real.host.statvfs(&path("")).await.unwrap();
    let local = rustix::fs::statvfs(real.dir.path()).unwrap();
    assert_eq!((figures.blocks, figures.fragment_size), (local.f_blocks, local.f_frsize));
    assert_eq!(real.host.statvfs(&path("none")).await, Err(Errno::ENOENT));
    let real = Real::with_server(Config::default(), &["-P", "statvfs"]).await;
    assert_eq!(real.host.statvfs(&path("")).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(real.host.statvfs(&path("none")).await, Err(Errno::ENOENT));
}
