//! The precise errno, where SFTP says FAILURE.

use std::os::unix::fs::{PermissionsExt, symlink};

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use host::Config;

use super::peer::{Real, Servers, path};

/// One operation, by name, on up to two paths.
async fn run(real: &Real, operation: &str, one: &str, two: &str) -> Result<(), Errno> {
    let (host, one, two) = (&real.host, &path(one), &path(two));
    let open = async |create, access| {
        let flags = OpenFlags { create, ..OpenFlags::existing(access) };
        let opened = host.open(one, flags).await?;
        host.close(opened.fh);
        Ok(())
    };
    let change = AttrChange::default();
    match operation {
        "lstat" => host.lstat(one).await.map(drop),
        "readlink" => host.readlink(one).await.map(drop),
        "opendir" => host.opendir(one).await.map(|dh| host.closedir(dh)),
        "read" => open(Create::Never, Access::Read).await,
        "write" => open(Create::Never, Access::Write).await,
        "create" => open(Create::IfAbsent(0o644), Access::Write).await,
        "exclusive" => open(Create::Exclusive(0o644), Access::Write).await,
        "chmod" => host.setattr(one, AttrChange { perm: Some(0o644), ..change }).await,
        "chown" => host.setattr(one, AttrChange { uid: Some(1), gid: Some(1), ..change }).await,
        "touch" => host.setattr(one, touch()).await,
        "truncate" => host.setattr(one, AttrChange { size: Some(1), ..change }).await,
        "mkdir" => host.mkdir(one, 0o755).await,
        "rmdir" => host.rmdir(one).await,
        "unlink" => host.unlink(one).await,
        "symlink" => host.symlink(b"target", one).await,
        "link" => host.link(one, two).await,
        "rename" => host.rename(one, two, RenameMode::Replace).await,
        "rename-new" => host.rename(one, two, RenameMode::NoReplace).await,
        "statvfs" => host.statvfs(one).await.map(drop),
        other => panic!("{other}"),
    }
}

/// As `touch(1)` sets times.
fn touch() -> AttrChange {
    let now = Some(base::Timestamp::now());
    AttrChange { atime: now, mtime: now, touch: true, ..AttrChange::default() }
}

async fn check(real: &Real, table: &[(&str, &str, Errno)]) {
    for (operation, names, errno) in table {
        let (one, two) = names.split_once(' ').unwrap_or((names, ""));
        let result = run(real, operation, one, two).await;
        assert_eq!(result, Err(*errno), "{operation} {names}");
    }
}

#[tokio::test]
async fn errnos_by_path() {
    let real = Real::new().await;
    std::fs::create_dir_all(real.local("full/inside")).unwrap();
    real.write_local("file", "x");
    symlink("file", real.local("link")).unwrap();
    symlink("loop", real.local("loop")).unwrap();
    let long = "n".repeat(256);
    let long_in_full = format!("full/{long}");
    let long_twice = format!("file {long}");
    let far = "deep/".repeat(1000) + "x";
    check(
        &real,
        &[
            ("lstat", "none", Errno::ENOENT),
            ("lstat", &long, Errno::ENAMETOOLONG),
            ("lstat", &far, Errno::ENAMETOOLONG),
            ("readlink", "file", Errno::EINVAL),
            ("readlink", "full", Errno::EINVAL),
            ("readlink", "none", Errno::ENOENT),
            ("readlink", "file/x", Errno::ENOTDIR),
            ("opendir", "file", Errno::ENOTDIR),
            ("opendir", &long, Errno::ENAMETOOLONG),
            ("read", "none", Errno::ENOENT),
            ("read", "file/x", Errno::ENOTDIR),
            ("read", "file/x/y", Errno::ENOTDIR),
            ("read", &long, Errno::ENAMETOOLONG),
            ("create", "none/x", Errno::ENOENT),
            ("create", "file/x", Errno::ENOTDIR),
            ("create", "file/x/y", Errno::ENOTDIR),
            ("create", &long_in_full, Errno::ENAMETOOLONG),
            ("exclusive", "file", Errno::EEXIST),
            ("exclusive", "link", Errno::EEXIST),
            ("exclusive", "full", Errno::EEXIST),
            ("chmod", "none", Errno::ENOENT),
            ("chmod", "file/x", Errno::ENOTDIR),
            ("truncate", "full", Errno::EISDIR),
            ("truncate", "none", Errno::ENOENT),
            ("mkdir", "file", Errno::EEXIST),
            ("mkdir", "full", Errno::EEXIST),
            ("mkdir", "link", Errno::EEXIST),
            ("mkdir", "", Errno::EEXIST),
            ("mkdir", "none/x", Errno::ENOENT),
            ("mkdir", "file/x", Errno::ENOTDIR),
            ("mkdir", &long, Errno::ENAMETOOLONG),
            ("rmdir", "file", Errno::ENOTDIR),
            ("rmdir", "link", Errno::ENOTDIR),
            ("rmdir", "full", Errno::ENOTEMPTY),
            ("rmdir", "none", Errno::ENOENT),
            ("rmdir", "file/x", Errno::ENOTDIR),
            ("rmdir", "", Errno::EBUSY),
            ("rmdir", &long, Errno::ENAMETOOLONG),
            ("unlink", "full", Errno::EISDIR),
            ("unlink", "none", Errno::ENOENT),
            ("unlink", "file/x", Errno::ENOTDIR),
            ("unlink", "", Errno::EISDIR),
            ("symlink", "file", Errno::EEXIST),
            ("symlink", "full", Errno::EEXIST),
            ("symlink", "", Errno::EEXIST),
            ("symlink", "none/x", Errno::ENOENT),
            ("symlink", &long, Errno::ENAMETOOLONG),
            ("link", "file link", Errno::EEXIST),
            ("link", "none new", Errno::ENOENT),
            ("link", "file none/x", Errno::ENOENT),
            ("link", "file file/x", Errno::ENOTDIR),
            ("link", "full new", Errno::EPERM),
            ("link", &long_twice, Errno::ENAMETOOLONG),
            ("rename", &long_twice, Errno::ENAMETOOLONG),
            ("rename-new", &long_twice, Errno::ENAMETOOLONG),
            ("statvfs", "file/x", Errno::ENOTDIR),
            ("read", "loop/x", Errno::ENOENT),
        ],
    )
    .await;
    assert_eq!(real.host.symlink(b"", &path("new")).await, Err(Errno::ENOENT));
    assert_eq!(real.host.symlink(&[b'x'; 4096], &path("new")).await, Err(Errno::ENAMETOOLONG));
}

#[tokio::test]
async fn errnos_by_file_system() {
    let dir = tempfile::tempdir().unwrap();
    // Two inodes: the root's and one more.
    let script = "
        mkdir ro full inodes
        mount -t tmpfs none ro; mkdir ro/d; echo x >ro/f; mount -o remount,ro ro
        mount -t tmpfs -o size=64k none full; head -c 65536 /dev/zero >full/f
        mount -t tmpfs -o nr_inodes=2 none inodes; echo x >inodes/f
        echo x >f
        exec \"$@\"";
    let servers = Servers::in_namespace(dir.path(), script);
    let real = Real::over(dir, servers, Config::default()).await;
    check(
        &real,
        &[
            ("write", "ro/f", Errno::EROFS),
            ("create", "ro/new", Errno::EROFS),
            ("exclusive", "ro/new", Errno::EROFS),
            ("mkdir", "ro/new", Errno::EROFS),
            ("rmdir", "ro/d", Errno::EROFS),
            ("unlink", "ro/f", Errno::EROFS),
            ("symlink", "ro/new", Errno::EROFS),
            ("link", "ro/f ro/new", Errno::EROFS),
            ("rename", "ro/f ro/new", Errno::EROFS),
            ("rename-new", "ro/f ro/new", Errno::EROFS),
            ("chmod", "ro/f", Errno::EROFS),
            ("truncate", "ro/f", Errno::EROFS),
            ("link", "f full/new", Errno::EXDEV),
            ("rename", "f full/new", Errno::EXDEV),
            ("rename", "full/f f", Errno::EXDEV),
            ("rename-new", "f full/new", Errno::EXDEV),
            ("create", "inodes/new", Errno::ENOSPC),
            ("mkdir", "inodes/new", Errno::ENOSPC),
            ("symlink", "inodes/new", Errno::ENOSPC),
        ],
    )
    .await;
    let fh = real.open("full/f", Access::Write).await;
    let written = real.host.write(fh, 65536, Bytes::from_static(b"x")).await;
    assert_eq!(written, Err(Errno::ENOSPC));
    assert!(real.host.statvfs(&path("ro")).await.unwrap().is_read_only());
    assert!(!real.host.statvfs(&path("full")).await.unwrap().is_read_only());
}

/// Writes requests of `len` bytes until one fails; returns the error.
async fn fill(real: &Real, name: &str, len: usize) -> Errno {
    let fh = real.create(name).await;
    let mut offset = 0;
    let errno = loop {
        match real.host.write(fh, offset, vec![7; len].into()).await {
            Ok(()) => offset += len as u64,
            Err(errno) => break errno,
        }
    };
    real.host.close(fh);
    errno
}

/// ext4 refuses while some blocks are available; SFTP reports FAILURE.
#[tokio::test]
async fn a_disk_with_a_few_blocks_left_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    // A loop device needs root, and is missing in some containers.
    let script = "mkfs.ext4 -q -m0 -O ^has_journal image && mount -o loop image mnt";
    std::fs::create_dir(dir.path().join("mnt")).unwrap();
    let probe = sandbox::namespace::command()
        .current_dir(dir.path())
        .args(["sh", "-ec", script])
        .stderr(std::process::Stdio::null())
        .status();
    if !probe.unwrap().success() {
        eprintln!("skipped: a_disk_with_a_few_blocks_left_is_full: no ext4 on a loop device here");
        return;
    }
    let servers = Servers::in_namespace(
        dir.path(),
        "mount -o loop image mnt; chmod 777 mnt; cd mnt; exec \"$@\"",
    );
    let real = Real::over(dir, servers, Config::default()).await;
    // Fills the file to the last possible block, with ever smaller writes.
    for (number, len) in [256 << 10, 32 << 10, 4096].into_iter().enumerate() {
        assert_eq!(fill(&real, &format!("f{number}"), len).await, Errno::ENOSPC, "{len}");
    }
    // A symbolic link whose target has no room in the inode needs a block.
    let long = [b'l'; 200];
    let mut seen = std::collections::HashSet::new();
    for number in 0..3000 {
        let name = path(&format!("{number:0>200}"));
        for made in [
            real.host.mkdir(&name, 0o755).await,
            real.host.symlink(&long, &name).await,
            run(&real, "create", &format!("{number:0>200}c"), "").await,
        ] {
            seen.extend(made.err().filter(|errno| *errno != Errno::EEXIST));
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [Errno::ENOSPC]);
}

#[tokio::test]
async fn errnos_by_permission() {
    let dir = tempfile::tempdir().unwrap();
    let open_to_all = PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open_to_all).unwrap();
    for name in LIMITED {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("f"), "x").unwrap();
    }
    std::fs::create_dir(dir.path().join("readable/d")).unwrap();
    std::fs::create_dir(dir.path().join("moved")).unwrap();
    std::fs::write(dir.path().join("secret"), "x").unwrap();
    let set = |name: &str, mode| {
        std::fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    std::fs::write(dir.path().join("shared"), "x").unwrap();
    set("secret", 0);
    set("shared", 0o666);
    set("closed", 0);
    set("readable", 0o555);
    set("listable", 0o444);
    set("searchable", 0o111);
    // Root has all permissions, so the server runs as another user; a test without root owns these
    // files.
    let as_root = rustix::process::getuid().is_root();
    let servers = if as_root {
        let script = "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
        Servers::in_namespace(dir.path(), script)
    } else {
        Servers::new(dir.path(), &[])
    };
    let real = Real::over(dir, servers, Config::default()).await;
    check(
        &real,
        &[
            ("read", "secret", Errno::EACCES),
            ("opendir", "closed", Errno::EACCES),
            ("lstat", "closed/f", Errno::EACCES),
            ("create", "readable/new", Errno::EACCES),
            ("mkdir", "readable/new", Errno::EACCES),
            ("rmdir", "readable/d", Errno::EACCES),
            // The login cannot see what is in them.
            ("rmdir", "closed", Errno::ENOTEMPTY),
            ("rmdir", "listable", Errno::ENOTEMPTY),
            ("rmdir", "searchable", Errno::ENOTEMPTY),
            ("rename", "moved closed", Errno::ENOTEMPTY),
            ("rename", "moved listable", Errno::ENOTEMPTY),
            ("unlink", "readable/f", Errno::EACCES),
            ("unlink", "readable/d", Errno::EISDIR),
            ("rename", "readable/f readable/g", Errno::EACCES),
            ("truncate", "secret", Errno::EACCES),
            ("chown", "readable/f", Errno::EPERM),
        ],
    )
    .await;
    if as_root {
        check(
            &real,
            &[
                ("chmod", "readable/f", Errno::EPERM),
                ("touch", "readable/f", Errno::EACCES),
                // Only the owner may set the times that SFTP sends.
                ("touch", "shared", Errno::EPERM),
            ],
        )
        .await;
    }
    set_back(&real);
}

/// Directories that a login may not use fully.
const LIMITED: [&str; 4] = ["closed", "readable", "listable", "searchable"];

/// Restores permissions, so that the directory can be removed.
fn set_back(real: &Real) {
    for name in LIMITED {
        std::fs::set_permissions(real.local(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
}

#[tokio::test]
async fn a_read_only_server_refuses() {
    let real = Real::with_server(Config::default(), &["-R"]).await;
    real.write_local("f", "x");
    check(
        &real,
        &[
            ("write", "f", Errno::EACCES),
            ("create", "new", Errno::EACCES),
            ("mkdir", "new", Errno::EACCES),
            ("unlink", "f", Errno::EACCES),
            ("rename", "f g", Errno::EACCES),
        ],
    )
    .await;
    let fh = real.open("f", Access::Read).await;
    assert_eq!(real.host.read(fh, 0, 9).await.unwrap().to_vec(), b"x");
}

#[tokio::test]
async fn a_server_out_of_handles_is_emfile() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::in_namespace(dir.path(), "ulimit -n 20; exec \"$@\"");
    let real = Real::over(dir, servers, Config::default()).await;
    real.write_local("f", "x");
    let mut open = Vec::new();
    let errno = loop {
        match real.host.open(&path("f"), OpenFlags::existing(Access::Read)).await {
            Ok(opened) => open.push(opened.fh),
            Err(errno) => break errno,
        }
        assert!(open.len() < 30);
    };
    assert_eq!(errno, Errno::EMFILE);
    let flags = OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::Write) };
    assert_eq!(real.host.open(&path("new"), flags).await.err(), Some(Errno::EMFILE));
    real.host.close(open.remove(0));
    real.host.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
}
