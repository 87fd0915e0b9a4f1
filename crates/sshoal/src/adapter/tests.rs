use fuse::{CopyFileRange, Filesystem, Write};
use testkit::{Call, FaultyRemote, MemRemote};

use super::*;

const CALLER: Context = Context { uid: 0, gid: 0, pid: 0, unique: 1 };
const ROOT: u64 = 1;

struct Stage {
    faulty: Arc<FaultyRemote<MemRemote>>,
    adapter: Adapter,
}

impl Stage {
    fn new() -> Stage {
        let faulty = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
        let vfs = Arc::new(Vfs::new(faulty.clone(), vfs::Config::default()));
        let attributes = Attributes::new(false, None);
        let silence: Silence = Box::new(|_| Duration::ZERO);
        let adapter = Adapter::new(vfs, attributes, false, false, false, None, silence);
        Stage { faulty, adapter }
    }

    /// Creates a file, and returns its inode and its handle.
    async fn create(&self, name: &str) -> Result<(u64, u64)> {
        let flags = libc::O_RDWR | libc::O_EXCL;
        let create = Create { flags, mode: 0o644, umask: 0, kill_suidgid: false };
        let (entry, opened) = self.adapter.create(ROOT, name.as_bytes(), &create).await?;
        Ok((entry.ino.0, opened.fh))
    }

    /// The error of a write to the server with this error, as the close returns it.
    async fn close_after_failed_write(&self, name: &str, errno: Errno) -> Result<()> {
        let (ino, fh) = self.create(name).await?;
        self.faulty.fail(Call::Write, 1, errno);
        let write = Write { fh, offset: 0, flags: 0, cached: false, kill_suidgid: false };
        self.adapter.write(ino, &write, Bytes::from_static(b"content")).await?;
        self.adapter.flush(&CALLER, fh, 0).await
    }
}

/// The kernel makes `ENOSYS` of these requests a success, or ends the request for all files.
#[tokio::test]
async fn an_enosys_of_the_server_never_reaches_the_kernel() {
    let stage = Stage::new();
    let adapter = &stage.adapter;
    let closed = stage.close_after_failed_write("written", Errno::ENOSYS).await;
    assert_eq!(closed, Err(Errno::EOPNOTSUPP));
    let closed = stage.close_after_failed_write("other", Errno::ENOSPC).await;
    assert_eq!(closed, Err(Errno::ENOSPC));

    let (ino, fh) = stage.create("f").await.unwrap();
    let (to_ino, to) = stage.create("to").await.unwrap();
    let refused = |call| stage.faulty.fail_always(call, Errno::ENOSYS);
    let all = [Call::Open, Call::Fsync, Call::Fsyncdir, Call::Opendir, Call::Copy, Call::Rename];
    all.into_iter().for_each(refused);
    refused(Call::Link);
    let not_supported = Some(Errno::EOPNOTSUPP);
    let open = Open { flags: libc::O_RDWR, kill_suidgid: false };
    assert_eq!(adapter.open(&CALLER, ino, &open).await.err(), not_supported);
    assert_eq!(stage.create("new").await.err(), not_supported);
    assert_eq!(adapter.fsync(fh).await.err(), not_supported);
    assert_eq!(adapter.fsyncdir(ROOT).await.err(), not_supported);
    assert_eq!(adapter.opendir(ROOT).await.err(), not_supported);
    let copy = CopyFileRange {
        fh_in: fh,
        offset_in: 0,
        ino_out: to_ino,
        fh_out: to,
        offset_out: 0,
        len: 1,
    };
    assert_eq!(adapter.copy_file_range(&CALLER, &copy).await.err(), not_supported);
    assert_eq!(adapter.rename(&CALLER, ROOT, b"f", ROOT, b"g", 0).await.err(), not_supported);
    assert_eq!(adapter.link(ino, ROOT, b"g").await.err(), Some(Errno::EPERM));
}

#[test]
fn a_file_that_may_be_a_mount_point_is_known_by_its_name() {
    let table = b"36 35 0:31 / / rw - ext4 /dev/sda rw\n\
        37 36 0:32 /a/b /mnt/dir/re\\040solv.conf rw - fuse.sshoal h:d rw\n";
    let mounts = mountinfo::parse(table);
    assert_eq!(mounts.len(), 2);
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let mut mounted = MountedNames::of(&mounts);
    assert!(mounted.contain(&name("re solv.conf")));
    assert!(!mounted.contain(&name("dir")));
}
