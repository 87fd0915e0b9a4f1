//! No call reaches anything outside the root.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{
    Access, AttrChange, Create, Errno, OpenFlags, Remote, RemotePath, RenameMode, Timestamp,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, openat, renameat_with};
use testkit::path;

use super::Real;

/// Bound on a call that must not block.
const PATIENCE: Duration = Duration::from_secs(20);

fn writing(create: Create) -> OpenFlags {
    OpenFlags { create, truncate: true, ..OpenFlags::existing(Access::ReadWrite) }
}

/// Every call, on a path through a link to a directory outside.
#[tokio::test]
async fn no_link_on_the_way_is_followed() {
    let real = Real::new();
    let local = &real.local;
    real.put("mine", "mine");
    let away = real.dir.path().join("away");
    std::fs::create_dir(&away).unwrap();
    std::fs::write(away.join("there"), "there").unwrap();
    let before = std::fs::metadata(away.join("there")).unwrap();
    std::fs::create_dir(real.at("inner")).unwrap();
    std::fs::write(real.at("inner/there"), "there").unwrap();
    let targets = [away.to_str().unwrap(), "../away", "/", "..", ".", "inner", "/proc/self/root"];
    for target in targets {
        let _ = std::fs::remove_file(real.at("link"));
        symlink(target, real.at("link")).unwrap();
        for at in ["link/there", "link/new", "link/etc/passwd", "link/root/mine"] {
            let (at, mine) = (path(at), path("mine"));
            let change = AttrChange { perm: Some(0o777), size: Some(0), ..AttrChange::default() };
            let answers = [
                ("lstat", local.lstat(&at).await.err()),
                ("locate", local.locate(&at).await.err()),
                ("readlink", local.readlink(&at).await.err()),
                ("opendir", local.opendir(&at).await.err()),
                ("open", local.open(&at, writing(Create::Never)).await.err()),
                ("create", local.open(&at, writing(Create::IfAbsent(0o600))).await.err()),
                ("create new", local.open(&at, writing(Create::Exclusive(0o600))).await.err()),
                ("fsyncdir", local.fsyncdir(&at).await.err()),
                ("setattr", local.setattr(&at, change).await.err()),
                ("mkdir", local.mkdir(&at, 0o700).await.err()),
                ("rmdir", local.rmdir(&at).await.err()),
                ("unlink", local.unlink(&at).await.err()),
                ("symlink", local.symlink(b"x", &at).await.err()),
                ("link from", local.link(&at, &path("got")).await.err()),
                ("link to", local.link(&mine, &at).await.err()),
                ("rename from", local.rename(&at, &path("got"), RenameMode::Replace).await.err()),
                ("rename to", local.rename(&mine, &at, RenameMode::Replace).await.err()),
                ("statvfs", local.statvfs(&at).await.err()),
            ];
            for (what, answer) in answers {
                // Which of the two depends on whether the link is the parent itself or further up.
                let refused = matches!(answer, Some(Errno::ELOOP | Errno::ENOTDIR));
                assert!(refused, "{what} {at} with {target}: {answer:?}");
            }
        }
    }
    let after = std::fs::metadata(away.join("there")).unwrap();
    assert_eq!(after.permissions(), before.permissions());
    assert_eq!(std::fs::read(away.join("there")).unwrap(), b"there");
    assert_eq!(std::fs::read(real.at("inner/there")).unwrap(), b"there");
    assert_eq!(std::fs::read(real.at("mine")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&away).unwrap().count(), 1);
}

/// A change of a link that leads out applies to the link, or is refused.
#[tokio::test]
async fn no_link_at_the_end_is_followed() {
    let real = Real::new();
    symlink("../outside", real.at("link")).unwrap();
    let before = std::fs::metadata(real.outside()).unwrap();
    let at = path("link");
    for flags in [OpenFlags::existing(Access::Read), writing(Create::IfAbsent(0o600))] {
        assert_eq!(real.local.open(&at, flags).await.err(), Some(Errno::ELOOP));
    }
    let old = Timestamp { secs: 1_000_000_000, nanos: 5 };
    let change = |change| real.local.setattr(&at, change);
    let none = AttrChange::default();
    let perm = change(AttrChange { perm: Some(0o777), mtime: Some(old), ..none }).await;
    assert_eq!(perm, Err(Errno::EOPNOTSUPP));
    assert_ne!(real.local.lstat(&at).await.unwrap().mtime, old, "half of it was done");
    assert_eq!(change(AttrChange { size: Some(0), ..none }).await, Err(Errno::EINVAL));
    change(AttrChange { mtime: Some(old), ..none }).await.unwrap();
    assert_eq!(real.local.lstat(&at).await.unwrap().mtime, old);
    if rustix::process::getuid().is_root() {
        change(AttrChange { uid: Some(12), gid: Some(34), ..none }).await.unwrap();
        let attr = real.local.lstat(&at).await.unwrap();
        assert_eq!((attr.uid, attr.gid), (12, 34));
    }
    let after = std::fs::metadata(real.outside()).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        (after.mode(), after.uid(), after.size()),
        (before.mode(), before.uid(), before.size())
    );
}

/// Swaps two names of the root as fast as possible while they are used.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Swapper {
    fn start(real: &Real, one: &str, other: &str) -> Swapper {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, one, other) = (stop.clone(), real.at(one), real.at(other));
        let thread = std::thread::spawn(move || {
            let mut swaps = 0;
            while !stopped.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                swaps += 1;
            }
            swaps
        });
        Swapper { stop, thread: Some(thread) }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.take().unwrap().join().unwrap() > 0);
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// An entry that takes a name's place while it is used is neither followed nor waited for: a read
/// returns the content inside the root, or fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_replaced_during_use_is_not_followed() {
    let real = Real::new();
    std::fs::create_dir(real.at("dir")).unwrap();
    real.put("dir/file", "inside");
    real.put("file", "inside");
    let away = real.dir.path().join("away");
    std::fs::create_dir(&away).unwrap();
    std::fs::write(away.join("file"), "from outside").unwrap();
    symlink("../away", real.at("dirlink")).unwrap();
    symlink("../away/file", real.at("link")).unwrap();
    mknodat(CWD, real.at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for (name, decoy, used) in
        [("dir", "dirlink", "dir/file"), ("file", "link", "file"), ("file", "fifo", "file")]
    {
        let swapper = Swapper::start(&real, name, decoy);
        let used = path(used);
        let (mut got, mut refused) = (0, 0);
        for round in 0.. {
            let opened = real.local.open(&used, OpenFlags::existing(Access::Read));
            let opened = tokio::time::timeout(PATIENCE, opened).await;
            let opened = opened.unwrap_or_else(|_| {
                // Frees a blocked call: the runtime would wait for it at shutdown.
                let free = |at| {
                    let fifo = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW;
                    openat(CWD, real.at(at), fifo, Mode::empty())
                };
                let _free = (free(name), free(decoy));
                panic!("{decoy} is waited for")
            });
            match opened {
                Ok(opened) => {
                    let data = real.local.read(opened.fh, 0, 100).await.unwrap();
                    assert_eq!(data.to_vec(), b"inside", "{decoy}");
                    real.local.close(opened.fh);
                    got += 1;
                }
                Err(errno) => {
                    let errnos = [Errno::ELOOP, Errno::ENOTDIR, Errno::ENXIO];
                    assert!(errnos.contains(&errno), "{decoy}: {errno:?}");
                    refused += 1;
                }
            }
            let mtime = Some(Timestamp::from_secs(1_000));
            let change = AttrChange { mtime, size: Some(6), ..AttrChange::default() };
            let _ = real.local.setattr(&used, change).await;
            if round >= 2_000 && got > 0 && refused > 0 {
                break;
            }
        }
        swapper.end();
        // Unchanged, under either name.
        let file = std::fs::metadata(away.join("file")).unwrap();
        assert_eq!(file.len(), 12, "{decoy} was followed");
        if !std::fs::symlink_metadata(real.at(decoy)).unwrap().is_symlink()
            && decoy.ends_with("link")
        {
            let (one, other) = (real.at(name), real.at(decoy));
            renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
        }
    }
}

/// The remote stays the directory that was opened, whatever its name becomes.
#[tokio::test]
async fn the_root_may_be_renamed_and_its_name_given_to_another() {
    let real = Real::new();
    real.put("file", "content");
    std::fs::rename(real.at(""), real.dir.path().join("moved")).unwrap();
    std::fs::create_dir(real.at("")).unwrap();
    real.put("file", "of another directory");
    assert_eq!(real.local.lstat(&path("file")).await.unwrap().size, 7);
    real.local.mkdir(&path("new"), 0o755).await.unwrap();
    assert!(real.dir.path().join("moved/new").is_dir());
    assert!(!real.at("new").exists());
    let entries = list(&real, "").await;
    assert_eq!(entries, ["file", "new"]);
}

/// All names in a directory, sorted.
async fn list(real: &Real, at: &str) -> Vec<String> {
    let dh = real.local.opendir(&path(at)).await.unwrap();
    let mut names = Vec::new();
    while let Some(batch) = real.local.readdir(dh).await.unwrap() {
        names.extend(batch.iter().map(|entry| entry.name.to_string()));
    }
    real.local.closedir(dh);
    names.sort();
    names
}

/// The root has no name inside itself, so it cannot be created, renamed or removed.
#[tokio::test]
async fn the_root_stays() {
    let real = Real::new();
    real.put("file", "content");
    let (root, file, local) = (RemotePath::root(), path("file"), &real.local);
    assert!(local.lstat(&root).await.unwrap().is_dir());
    assert_eq!(local.rmdir(&root).await, Err(Errno::EBUSY));
    assert_eq!(local.unlink(&root).await, Err(Errno::EISDIR));
    assert_eq!(local.mkdir(&root, 0o755).await, Err(Errno::EEXIST));
    assert_eq!(local.symlink(b"x", &root).await, Err(Errno::EEXIST));
    assert_eq!(local.link(&root, &path("x")).await, Err(Errno::EPERM));
    assert_eq!(local.link(&file, &root).await, Err(Errno::EEXIST));
    assert_eq!(local.readlink(&root).await, Err(Errno::EINVAL));
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        assert_eq!(local.rename(&root, &path("x"), mode).await, Err(Errno::EBUSY));
        assert_eq!(local.rename(&file, &root, mode).await, Err(Errno::EBUSY));
    }
    for (create, errno) in [
        (Create::Never, Errno::EISDIR),
        (Create::IfAbsent(0o600), Errno::EISDIR),
        (Create::Exclusive(0o600), Errno::EEXIST),
    ] {
        let flags = OpenFlags { create, ..OpenFlags::existing(Access::Read) };
        assert_eq!(local.open(&root, flags).await.err(), Some(errno));
    }
    assert_eq!(list(&real, "").await, ["file"]);
}
