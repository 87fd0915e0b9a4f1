//! Extended attributes: which requests `ls -l` and `cp -a` of a directory cost.

use std::sync::Arc;
use std::time::Duration;

use base::{Errno, FileKind, RenameMode, SetXattr};
use bytes::Bytes;
use testkit::mem::Options;
use testkit::tree::{Follow, Limits};
use testkit::{Call, MemRemote, path};
use vfs::{Config, Ino, LookupResult, Vfs};

const ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

struct Mount {
    remote: Arc<MemRemote>,
    vfs: Vfs,
}

/// Ten files, of which `f3` has an attribute.
fn mounted(config: Config) -> Mount {
    let remote = Arc::new(MemRemote::new());
    for number in 0..10 {
        remote.put_file(&format!("d/f{number}"), "content");
    }
    let mount = Mount { remote: remote.clone(), vfs: Vfs::new(remote, config) };
    mount.set_there("d/f3");
    mount
}

impl Mount {
    /// Another client sets an attribute.
    fn set_there(&self, at: &str) {
        self.remote.edit(|tree| {
            let ino = tree.lookup(&path(at), Follow::No).unwrap();
            tree.set_xattr(ino, b"user.a", Bytes::from_static(b"value"), SetXattr::Either).unwrap();
        });
    }

    async fn ino(&self, at: &str) -> Ino {
        let mut ino = Ino::ROOT;
        for name in at.split('/') {
            ino = match self.vfs.lookup(ino, name.as_bytes()).await.unwrap() {
                LookupResult::Found(entry) => entry.ino,
                LookupResult::Absent(_) => panic!("{at} is absent"),
            };
        }
        ino
    }

    /// The number of attributes of each file, as by a program that lists one after the other.
    async fn counts(&self) -> String {
        let mut counts = String::new();
        for number in 0..10 {
            let ino = self.ino(&format!("d/f{number}")).await;
            let found = self.vfs.listxattr(ino).await.unwrap().len();
            let acl = self.vfs.getxattr(ino, ACL).await;
            assert_eq!(acl, Err(Errno::ENODATA));
            counts += &found.to_string();
        }
        counts
    }

    /// Requests for single files, and for directories.
    fn requests(&self) -> (u64, u64) {
        let calls = |call| self.remote.calls(call);
        (calls(Call::Listxattr) + calls(Call::Getxattr), calls(Call::EntriesWithXattrs))
    }
}

#[tokio::test(start_paused = true)]
async fn files_queried_in_sequence_cost_one_request_of_their_directory() {
    let mount = mounted(Config::default());
    assert_eq!(mount.counts().await, "0001000000");
    // Two for the first file, before the sequence is seen, and two for the one with an attribute.
    assert_eq!(mount.requests(), (4, 1));
    assert_eq!(mount.counts().await, "0001000000");
    assert_eq!(mount.requests(), (6, 1));
    // Another client's change is seen as soon as one of the mode would be.
    mount.set_there("d/f7");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(mount.counts().await, "0001000100");
}

/// `ls -l` asks for the label of each file until it learns that there are none.
#[tokio::test(start_paused = true)]
async fn a_file_without_attributes_has_no_labels() {
    let mount = mounted(Config::default());
    assert_eq!(mount.counts().await, "0001000000");
    let label = async |at| mount.vfs.getxattr(mount.ino(at).await, b"security.selinux").await;
    assert_eq!(label("d/f5").await, Err(Errno::EOPNOTSUPP));
    assert_eq!(label("d/f3").await, Err(Errno::ENODATA));
    assert_eq!(mount.requests(), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn own_changes_are_seen_at_once() {
    let mount = mounted(Config::default());
    assert_eq!(mount.counts().await, "0001000000");
    let ino = mount.ino("d/f5").await;
    let value = Bytes::from_static(b"value");
    mount.vfs.setxattr(ino, b"user.b", value.clone(), SetXattr::Create).await.unwrap();
    assert_eq!(mount.vfs.getxattr(ino, b"user.b").await, Ok(value));
    assert_eq!(mount.counts().await, "0001010000");
    // The file with an attribute takes a name that had none.
    let dir = mount.ino("d").await;
    mount.vfs.rename((dir, b"f3"), (dir, b"f0"), RenameMode::Exchange).await.unwrap();
    assert_eq!(mount.counts().await, "1000010000");
    mount.vfs.removexattr(ino, b"user.b").await.unwrap();
    assert_eq!(mount.counts().await, "1000000000");
    // A new file may get a list of its directory.
    assert_eq!(mount.counts().await, "1000000000");
    mount.vfs.unlink(dir, b"f9").await.unwrap();
    mount.vfs.mknod(dir, b"f9", base::FileKind::Regular, 0o644, (0, 0)).await.unwrap();
    mount.set_there("d/f9");
    assert_eq!(mount.counts().await, "1000000001");
}

#[tokio::test(start_paused = true)]
async fn a_strict_mount_queries_each_file() {
    let config = Config { consistency: vfs::Consistency::Strict, ..Config::default() };
    let mount = mounted(config);
    assert_eq!(mount.counts().await, "0001000000");
    mount.set_there("d/f4");
    assert_eq!(mount.counts().await, "0001100000");
    assert_eq!(mount.requests(), (40, 0));
}

/// Each new file needs the answer, so one is valid for many.
#[tokio::test(start_paused = true)]
async fn a_default_access_list_replaces_the_umask_and_is_requested_seldom() {
    let mount = mounted(Config::default());
    let dir = mount.ino("d").await;
    let perm = async || mount.vfs.perm_of_new(dir, 0o666, 0o027).await;
    let requests = || mount.remote.calls(Call::Getxattr);
    let none = requests();
    assert_eq!(perm().await, 0o640);
    let once = requests();
    assert!(once <= none + 1);
    for _ in 0..10 {
        assert_eq!(perm().await, 0o640);
    }
    assert_eq!(mount.vfs.perm_of_new(dir, 0o640, 0o027).await, 0o640);
    assert_eq!(requests(), once);
    // Through this mount, it is known at once.
    let list = Bytes::from_static(b"a list");
    mount.vfs.setxattr(dir, DEFAULT_ACL, list, SetXattr::Either).await.unwrap();
    assert_eq!(perm().await, 0o666);
    mount.vfs.removexattr(dir, DEFAULT_ACL).await.unwrap();
    assert_eq!(perm().await, 0o640);
    // Elsewhere, when the attributes of the directory expire.
    mount.remote.edit(|tree| {
        let ino = tree.lookup(&path("d"), Follow::No).unwrap();
        tree.set_xattr(ino, DEFAULT_ACL, Bytes::from_static(b"a list"), SetXattr::Either).unwrap();
    });
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(perm().await, 0o666);
    // When it was removed elsewhere, the umask is valid at once.
    mount.remote.edit(|tree| {
        let ino = tree.lookup(&path("d"), Follow::No).unwrap();
        tree.remove_xattr(ino, DEFAULT_ACL).unwrap();
    });
    assert_eq!(perm().await, 0o640);
}

/// `sshoal refresh` and the end of `sshoal run` invalidate everything.
#[tokio::test(start_paused = true)]
async fn a_default_access_list_is_found_after_everything_was_invalidated() {
    let mount = mounted(Config::default());
    let dir = mount.ino("d").await;
    assert_eq!(mount.vfs.perm_of_new(dir, 0o666, 0o027).await, 0o640);
    mount.remote.edit(|tree| {
        let ino = tree.lookup(&path("d"), Follow::No).unwrap();
        tree.set_xattr(ino, DEFAULT_ACL, Bytes::from_static(b"a list"), SetXattr::Either).unwrap();
    });
    mount.vfs.invalidate_all();
    assert_eq!(mount.vfs.perm_of_new(dir, 0o666, 0o027).await, 0o666);
}

/// The attributes of a directory say that it has none, and are outdated by each new file.
#[tokio::test]
async fn new_files_of_a_directory_without_access_lists_cost_no_request() {
    let limits = Limits { shows_inodes: true, ..Limits::default() };
    let remote = Arc::new(MemRemote::with(Options { limits, ..Options::default() }));
    remote.put_dir("d");
    let vfs = Vfs::new(remote.clone(), Config::default());
    let LookupResult::Found(dir) = vfs.lookup(Ino::ROOT, b"d").await.unwrap() else { panic!() };
    assert_eq!(remote.attr("d").inode.unwrap().xattrs, Some(false));
    for name in [b"a", b"b", b"c"] {
        assert_eq!(vfs.perm_of_new(dir.ino, 0o666, 0o022).await, 0o644);
        vfs.mknod(dir.ino, name, FileKind::Regular, 0o644, (0, 0)).await.unwrap();
    }
    assert_eq!(remote.calls(Call::Getxattr), 0);
}
