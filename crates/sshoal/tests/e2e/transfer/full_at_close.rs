//! A target on this machine whose file system reports a full disk or an exceeded quota at close(2),
//! as NFS does: the copy has failed then, and the file does not get its name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base::{Attr, Data, Entry, Errno, FileKind, Ino, LookupResult, Result, Stat, Timestamp};
use bytes::Bytes;
use fuse::{
    Context, Create, DirSink, Filesystem, Mount, MountOptions, Open, Opened, Read, Session,
    SetAttr, SetTime, Write,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{ends, far};
use crate::faults::close;
use crate::world::World;

const ROOT: u64 = Ino::ROOT.0;

/// More than one piece of a copy.
const LARGE: usize = 3 << 20;

#[derive(Clone)]
struct File {
    data: Vec<u8>,
    perm: u32,
    owner: (u32, u32),
    mtime: Timestamp,
    is_written: bool,
}

#[derive(Default)]
struct State {
    names: BTreeMap<Vec<u8>, u64>,
    files: HashMap<u64, File>,
    /// What a close of a file that was written reports.
    at_close: Option<Errno>,
}

/// A directory of files in memory.
#[derive(Default)]
struct Quota(Mutex<State>);

impl Quota {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let state = self.state();
        state.names.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }
}

impl State {
    fn file(&mut self, ino: u64) -> Result<&mut File> {
        self.files.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn stat(&mut self, ino: u64) -> Result<Stat> {
        let (atime, ttl) = (Timestamp::default(), Duration::ZERO);
        let (kind, perm, size, (uid, gid), mtime) = match ino {
            ROOT => (FileKind::Directory, 0o755, 0, (0, 0), atime),
            _ => {
                let file = self.file(ino)?;
                let size = file.data.len() as u64;
                (FileKind::Regular, file.perm, size, file.owner, file.mtime)
            }
        };
        let attr = Attr { kind, perm, size, uid, gid, atime, mtime, inode: None };
        Ok(Stat { number: ino, attr, nlink: 1, ctime: mtime, ttl })
    }

    fn entry(&mut self, ino: u64) -> Result<Entry> {
        Ok(Entry { ino: Ino(ino), stat: self.stat(ino)?, ttl: Duration::ZERO })
    }
}

impl Filesystem for Quota {
    async fn lookup(&self, _: &Context, _: u64, name: &[u8]) -> Result<LookupResult> {
        let mut state = self.state();
        let ino = state.names.get(name).copied().ok_or(Errno::ENOENT)?;
        state.entry(ino).map(LookupResult::Found)
    }

    async fn getattr(&self, _: &Context, ino: u64) -> Result<Stat> {
        self.state().stat(ino)
    }

    async fn setattr(&self, _: &Context, ino: u64, change: &SetAttr) -> Result<Stat> {
        let mut state = self.state();
        if ino != ROOT {
            let file = state.file(ino)?;
            file.perm = change.mode.map_or(file.perm, |mode| mode & 0o7777);
            file.owner = (change.uid.unwrap_or(file.owner.0), change.gid.unwrap_or(file.owner.1));
            if let Some(size) = change.size {
                file.data.resize(size as usize, 0);
            }
            if let Some(SetTime::At(mtime)) = change.mtime {
                file.mtime = mtime;
            }
        }
        state.stat(ino)
    }

    async fn create(&self, _: u64, name: &[u8], create: &Create) -> Result<(Entry, Opened)> {
        let mut state = self.state();
        let ino = ROOT + 1 + state.files.len() as u64;
        let (data, mtime) = (Vec::new(), Timestamp::now());
        let perm = create.mode & !create.umask & 0o7777;
        let file = File { data, perm, owner: (0, 0), mtime, is_written: false };
        state.files.insert(ino, file);
        state.names.insert(name.to_vec(), ino);
        Ok((state.entry(ino)?, Opened::new(ino)))
    }

    async fn open(&self, _: &Context, ino: u64, _: &Open) -> Result<Opened> {
        Ok(Opened::new(ino))
    }

    async fn read(&self, ino: u64, read: &Read) -> Result<Data> {
        let mut state = self.state();
        let data = &state.file(ino)?.data;
        let start = data.len().min(read.offset as usize);
        let end = data.len().min(start + read.size as usize);
        Ok(Data::from(Bytes::copy_from_slice(&data[start..end])))
    }

    async fn write(&self, ino: u64, write: &Write, data: Bytes) -> Result<u32> {
        let mut state = self.state();
        let file = state.file(ino)?;
        let (start, end) = (write.offset as usize, write.offset as usize + data.len());
        file.data.resize(file.data.len().max(end), 0);
        file.data[start..end].copy_from_slice(&data);
        file.is_written = true;
        Ok(data.len() as u32)
    }

    async fn flush(&self, _: &Context, fh: u64, _: u64) -> Result<()> {
        let mut state = self.state();
        match (state.at_close, state.file(fh)?.is_written) {
            (Some(errno), true) => Err(errno),
            _ => Ok(()),
        }
    }

    async fn unlink(&self, _: &Context, _: u64, name: &[u8]) -> Result<()> {
        self.state().names.remove(name).map(drop).ok_or(Errno::ENOENT)
    }

    async fn rename(
        &self,
        _: &Context,
        _: u64,
        name: &[u8],
        _: u64,
        new_name: &[u8],
        _: u32,
    ) -> Result<()> {
        let mut state = self.state();
        let ino = state.names.remove(name).ok_or(Errno::ENOENT)?;
        state.names.insert(new_name.to_vec(), ino);
        Ok(())
    }

    async fn readdir(&self, _: u64, _: u64, offset: u64, sink: &mut DirSink) -> Result<()> {
        let state = self.state();
        for (next, (name, ino)) in (1..).zip(&state.names).skip(offset as usize) {
            if !sink.push_name(*ino, next, FileKind::Regular, name) {
                break;
            }
        }
        Ok(())
    }
}

/// [`Quota`], mounted.
struct Mounted {
    quota: Arc<Quota>,
    dir: TempDir,
    _runtime: Runtime,
}

impl Mounted {
    fn new() -> Mounted {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
        let quota = Arc::<Quota>::default();
        let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        let config = fuse::Config { readdirplus: false, ..fuse::Config::default() };
        let session = runtime.block_on(Session::start(mount, quota.clone(), config)).unwrap();
        runtime.spawn(session.run());
        Mounted { quota, dir, _runtime: runtime }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = fuse::unmount(self.dir.path(), true);
    }
}

/// Some small files, more than a stream by names needs, and a large one.
fn make_files(source: &Path) {
    fs::create_dir(source).unwrap();
    for number in 0..300 {
        fs::write(source.join(format!("small{number}")), "content").unwrap();
    }
    fs::write(source.join("large"), vec![7; LARGE]).unwrap();
}

#[test]
fn a_pull_fails_where_close_reports_a_full_disk() {
    let world = World::new();
    let source = world.served("source");
    make_files(&source);
    let far = far(&world, &source) + "/";
    let near = format!("local:{}/", source.display());
    let runs = [(&far, "auto"), (&far, "tar"), (&far, "sftp"), (&near, "auto")];
    for (index, (from, engine)) in runs.into_iter().enumerate() {
        let mounted = Mounted::new();
        let to = mounted.path().to_str().unwrap();
        let words = [from, to, "--engine", engine];
        let errno = [Errno::ENOSPC, Errno::EDQUOT][index % 2];
        mounted.quota.state().at_close = Some(errno);
        let failed = ends(&world, "pull", &words, 1);
        assert!(failed.stderr.contains(&errno.to_string()), "{from} {engine}: {failed:?}");
        let named = mounted.quota.names();
        assert!(named.iter().all(|name| name.contains(".sshoal-")), "{from} {engine}: {named:?}");
        // With room again.
        mounted.quota.state().at_close = None;
        ends(&world, "pull", &words, 0);
        assert_eq!(mounted.quota.names().len(), 301, "{from} {engine}");
        assert!(fs::read(mounted.path().join("large")).unwrap() == vec![7; LARGE]);
    }
}

const EXCEEDED: std::result::Result<(), Option<i32>> = Err(Some(libc::EDQUOT));

/// A3, through a mount: close(2) reports it, for the first descriptor that is closed after a write.
#[test]
fn a_close_in_a_mount_reports_an_exceeded_quota() {
    let world = World::new();
    let mounted = Mounted::new();
    let mount = world.mount_of(&format!("local:{}", mounted.path().display()), &[]);
    let mount = mount.with_errors();
    let written = |name: &str| {
        let file = fs::File::create(mount.at(name)).unwrap();
        (&file).write_all(b"content").unwrap();
        close(file).map_err(|error| error.raw_os_error())
    };
    assert_eq!(written("before"), Ok(()));
    mounted.quota.state().at_close = Some(Errno::EDQUOT);
    assert_eq!(written("refused"), EXCEEDED);
    // The other descriptor goes on.
    let file = fs::File::create(mount.at("shared")).unwrap();
    (&file).write_all(b"content").unwrap();
    let other = file.try_clone().unwrap();
    assert_eq!(close(other).map_err(|error| error.raw_os_error()), EXCEEDED);
    mounted.quota.state().at_close = None;
    (&file).write_all(b", and more").unwrap();
    close(file).unwrap();
    assert_eq!(fs::read(mounted.path().join("shared")).unwrap(), b"content, and more");
}
