//! Servers and neighbours that want out of the target.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base::*;
use bytes::Bytes;
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Fault, Finish, Job, Options, Sink, Source, Tree};

use crate::kit::{copy, local_dir, mem, run};

/// A server that lists `x` as a link to elsewhere and, a second time, as a directory, and that
/// lists `deep` within itself.
struct Liar {
    inner: MemRemote,
    elsewhere: Vec<u8>,
    /// Directories that were opened. The rest of a handle by three says what is listed.
    opened: AtomicU64,
    listed: Mutex<HashSet<Dh>>,
}

impl Liar {
    fn new(elsewhere: Vec<u8>) -> Arc<Liar> {
        let (opened, listed) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Liar { inner: MemRemote::new(), elsewhere, opened, listed })
    }

    fn attr(kind: FileKind) -> Attr {
        let time = Timestamp::from_secs(100);
        Attr { kind, perm: 0o755, size: 4, uid: 0, gid: 0, atime: time, mtime: time, inode: None }
    }

    fn kind(&self, path: &RemotePath) -> FileKind {
        match path.file_name() {
            Some(name) if name.as_bytes() == b"f" => FileKind::Regular,
            _ => FileKind::Directory,
        }
    }
}

#[async_trait]
impl Remote for Liar {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        Ok(Liar::attr(self.kind(path)))
    }

    async fn readlink(&self, _path: &RemotePath) -> Result<Vec<u8>> {
        Ok(self.elsewhere.clone())
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let deep = path.names().next_back() == Some(b"deep");
        let listing = if deep { 0 } else { 1 + u64::from(!path.is_root()) };
        Ok(Dh(3 * self.opened.fetch_add(1, Ordering::Relaxed) + listing))
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        // One batch, and the end.
        if !self.listed.lock().unwrap().insert(dh) {
            return Ok(None);
        }
        let entry = |name: &[u8], kind| DirEntry {
            name: Name::new(name).unwrap(),
            attr: Some(Liar::attr(kind)),
        };
        Ok(Some(match dh.0 % 3 {
            0 => vec![entry(b"deep", FileKind::Directory)],
            1 => vec![entry(b"x", FileKind::Symlink), entry(b"x", FileKind::Directory)],
            _ => vec![entry(b"f", FileKind::Regular)],
        }))
    }

    fn closedir(&self, _dh: Dh) {}

    async fn open(&self, _path: &RemotePath, _flags: OpenFlags) -> Result<Opened> {
        Ok(Opened { fh: Fh(1), attr: Liar::attr(FileKind::Regular) })
    }

    async fn fstat(&self, _fh: Fh) -> Result<Attr> {
        Ok(Liar::attr(FileKind::Regular))
    }

    async fn read(&self, _fh: Fh, _offset: u64, _len: u32) -> Result<Data> {
        Ok(Data::from(Bytes::from_static(b"evil")))
    }

    fn close(&self, _fh: Fh) {}

    async fn finish(&self, _fh: Fh) -> Result<()> {
        Ok(())
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.inner.write(fh, offset, data).await
    }
    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.inner.fsync(fh).await
    }
    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.inner.fsyncdir(path).await
    }
    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.inner.setattr(path, change).await
    }
    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.inner.fsetattr(fh, change).await
    }
    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.inner.mkdir(path, perm).await
    }
    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.inner.rmdir(path).await
    }
    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.inner.unlink(path).await
    }
    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.inner.symlink(target, path).await
    }
    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.inner.link(existing, new).await
    }
    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.inner.rename(from, to, mode).await
    }
    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.inner.statvfs(path).await
    }
    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.inner.copy(from, to, len).await
    }
}

#[tokio::test]
async fn cve_2024_12087_a_name_that_is_listed_as_a_link_and_as_a_directory_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    let elsewhere = outside.path().to_str().unwrap().as_bytes().to_vec();
    let liar = Liar::new(elsewhere);
    for by_sink in [false, true] {
        let (to, target) = local_dir();
        let target = match by_sink {
            true => Tree::local(target, to.path()),
            false => Tree::remote(target),
        };
        for _ in 0..3 {
            let source = Source { tree: Tree::remote(liar.clone()), to: path("") };
            let options = Options::default();
            run(Job { sources: vec![source], target: target.clone(), options }).await;
            assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        }
    }
}

#[tokio::test]
async fn cve_limits_a_directory_that_is_in_itself_has_an_end() {
    let source = Tree::remote(Liar::new(Vec::new())).at(path("deep"));
    let job = Job {
        sources: vec![Source { tree: source, to: path("deep") }],
        target: Tree::remote(Arc::new(MemRemote::new())),
        options: Options { dry_run: true, ..Options::default() },
    };
    let outcome = run(job).await;
    assert_eq!(outcome.problems_total, 1);
    assert!(matches!(outcome.problems[0].fault, Fault::Failed { errno: Errno::ENAMETOOLONG, .. }));
}

/// A link that is there before: replaced by a directory, as rsync does, and never gone through.
#[tokio::test]
async fn a_link_in_the_place_of_a_directory_is_replaced() {
    let source = mem(|remote| remote.put_file("d/f", "content"));
    let outside = tempfile::tempdir().unwrap();
    let (to, target) = local_dir();
    std::os::unix::fs::symlink(outside.path(), to.path().join("d")).unwrap();
    let outcome = copy(&source, &target).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read(to.path().join("d/f")).unwrap(), b"content");
}

/// A link that is planted while the copy goes on, in the place of a directory that was there.
#[tokio::test]
async fn cve_2024_12747_a_link_that_is_planted_meanwhile_is_not_gone_through() {
    for (by_sink, len) in [(true, 10), (false, 10), (true, 1 << 20)] {
        let inner = mem(|remote| remote.put_file("d/f", vec![1; len]));
        let source = Arc::new(FaultyRemote::new(inner));
        let outside = tempfile::tempdir().unwrap();
        let (to, target) = local_dir();
        let d = to.path().join("d");
        std::fs::create_dir(&d).unwrap();
        let gate = source.hold(Call::Open, 1);
        let target = match by_sink {
            true => Tree::local(target, to.path()),
            false => Tree::remote(target),
        };
        let source = Source { tree: Tree::remote(source), to: path("") };
        let job = Job { sources: vec![source], target, options: Options::default() };
        let (outcome, ()) = tokio::join!(run(job), async {
            gate.arrived().await;
            std::fs::rename(&d, to.path().join("moved")).unwrap();
            std::os::unix::fs::symlink(outside.path(), &d).unwrap();
            gate.release();
        });
        assert!(outcome.counts.failed >= 1, "{outcome:#?}");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}

#[test]
fn cve_2018_20685_the_sink_goes_through_no_link_and_upwards_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    let to = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("f"), "precious").unwrap();
    std::os::unix::fs::symlink(outside.path(), to.path().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("f"), to.path().join("to-file")).unwrap();
    let sink = Sink::open(to.path()).unwrap();
    let attr = Liar::attr(FileKind::Regular);
    let finish = Finish { perm: 0o644, ..Finish::default() };
    let pieces = [Bytes::from_static(b"evil")];
    assert!(sink.put(&path("link/f"), &attr, &pieces, &finish, false).is_err());
    assert!(sink.put(&path("link/new"), &attr, &pieces, &finish, false).is_err());
    assert!(sink.hard_link(&path("link/f"), &path("got"), &attr, true).is_err());
    assert!(sink.make_dir(&path("link")).is_err());
    assert!(sink.make_dir(&path("link/d")).is_err());
    assert!(sink.finish_dir(&path("link"), &finish).is_err());
    assert!(sink.make_link(&path("link/l"), b"x", &attr, &finish).is_err());
    // The link itself is replaced.
    sink.put(&path("to-file"), &attr, &pieces, &finish, false).unwrap();
    assert_eq!(std::fs::read(outside.path().join("f")).unwrap(), b"precious");
    assert_eq!(std::fs::read(to.path().join("to-file")).unwrap(), b"evil");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn what_is_not_finished_leaves_nothing_and_the_old_file_whole() {
    let to = tempfile::tempdir().unwrap();
    std::fs::write(to.path().join("f"), "old").unwrap();
    let sink = Sink::open(to.path()).unwrap();
    let incoming = sink.begin(&path("f"), &Liar::attr(FileKind::Regular)).unwrap();
    incoming.write_at(0, b"ne", false).unwrap();
    let names = || std::fs::read_dir(to.path()).unwrap().count();
    assert_eq!(names(), 2);
    drop(incoming);
    assert_eq!(names(), 1);
    assert_eq!(std::fs::read(to.path().join("f")).unwrap(), b"old");
}

/// What is on its way is nobody else's business, whatever mode it will have.
#[tokio::test]
async fn what_is_not_whole_can_be_read_by_its_owner_alone() {
    for len in [100, 1 << 20] {
        let source = mem(|remote| remote.put_file("f", vec![1; len]));
        let inner = Arc::new(MemRemote::new());
        let target = Arc::new(FaultyRemote::new(inner.clone()));
        let gate = target.hold(Call::Fsetattr, 1);
        let (outcome, ()) = tokio::join!(copy(&source, &target), async {
            gate.arrived().await;
            for (name, seen) in crate::kit::snapshot(&*inner).await {
                assert!(name.is_empty() || seen.perm == 0o600, "{name}: {:o}", seen.perm);
            }
            gate.release();
        });
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(inner.lstat(&path("f")).await.unwrap().perm, 0o644);
    }
}
