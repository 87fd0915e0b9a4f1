//! `stale=ok`: cached data is served while the remote is unreachable, and nothing else changes.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Errno};
use testkit::{Call, FaultyRemote, MemRemote};
use vfs::{
    Config, DirHandle, Entry, EntrySink, Ino, ListedEntry, LookupResult, OpenRequest, Opened, Vfs,
};

const LONG_AGO: i64 = 1_000_000_000;

/// Longer than any time-out.
const LONG: Duration = Duration::from_secs(3600);

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    vfs: Vfs,
}

fn mounted(serve_stale: bool) -> Mount {
    let remote = Arc::new(MemRemote::new());
    for name in ["f", "g"] {
        remote.put_file(name, "content");
        remote.set_mtime(name, LONG_AGO);
    }
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let config = Config { serve_stale, login: Some((0, 0)), ..Config::default() };
    Mount { remote, faulty: faulty.clone(), vfs: Vfs::new(faulty, config) }
}

async fn look(vfs: &Vfs, name: &str) -> Result<Entry, Errno> {
    match vfs.lookup(Ino::ROOT, name.as_bytes()).await? {
        LookupResult::Found(entry) => Ok(entry),
        LookupResult::Absent(_) => Err(Errno::ENOENT),
    }
}

async fn open(vfs: &Vfs, ino: Ino) -> Result<Opened, Errno> {
    vfs.open(ino, OpenRequest::plain(Access::Read)).await
}

#[derive(Default)]
struct Names(Vec<String>);

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }

    fn push(&mut self, entry: ListedEntry<'_>) {
        self.0.push(String::from_utf8(entry.name.to_vec()).unwrap());
    }
}

async fn list(vfs: &Vfs) -> Result<Vec<String>, Errno> {
    let dir = vfs.opendir(Ino::ROOT).await?;
    let names = read_all(vfs, dir).await;
    vfs.releasedir(dir);
    names
}

async fn read_all(vfs: &Vfs, dir: DirHandle) -> Result<Vec<String>, Errno> {
    let mut names = Names::default();
    loop {
        let offset = names.0.len() as u64;
        vfs.readdir(dir, offset, false, &mut names).await?;
        if names.0.len() as u64 == offset {
            names.0.retain(|name| name != "." && name != "..");
            names.0.sort();
            return Ok(names.0);
        }
    }
}

/// Everything is cached; then the remote becomes unreachable, for a long time.
async fn known_and_gone(mount: &Mount) -> Ino {
    let file = look(&mount.vfs, "f").await.unwrap();
    mount.vfs.release(open(&mount.vfs, file.ino).await.unwrap().handle);
    assert_eq!(list(&mount.vfs).await.unwrap(), ["f", "g"]);
    tokio::time::advance(LONG).await;
    mount.faulty.cut();
    file.ino
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_shown_while_the_remote_is_away() {
    let mount = mounted(true);
    let ino = known_and_gone(&mount).await;
    for _ in 0..2 {
        let file = look(&mount.vfs, "f").await.unwrap();
        assert_eq!((file.ino, file.ttl), (ino, Duration::ZERO), "asked again when it is back");
        assert_eq!(look(&mount.vfs, "g").await.unwrap().stat.attr.size, 7, "only listed so far");
        assert_eq!(look(&mount.vfs, "absent").await, Err(Errno::ENOENT));
        let stat = mount.vfs.getattr(ino).await.unwrap();
        assert_eq!((stat.attr.size, stat.ttl), (7, Duration::ZERO));
        assert_eq!(list(&mount.vfs).await.unwrap(), ["f", "g"]);
        let opened = open(&mount.vfs, ino).await.unwrap();
        assert!(opened.keep_cache, "what the kernel has is all that there is");
        mount.vfs.release(opened.handle);
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_changed_is_seen_when_it_is_back() {
    let mount = mounted(true);
    let ino = known_and_gone(&mount).await;
    assert_eq!(mount.vfs.getattr(ino).await.unwrap().attr.size, 7);
    mount.remote.put_file("f", "longer content");
    mount.remote.put_file("new", "");
    mount.faulty.restore();
    assert_eq!(look(&mount.vfs, "f").await.unwrap().stat.attr.size, 14);
    assert!(look(&mount.vfs, "new").await.is_ok());
    assert_eq!(list(&mount.vfs).await.unwrap(), ["f", "g", "new"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_and_what_changes_something_fails_as_before() {
    let mount = mounted(true);
    mount.remote.put_dir("dir");
    let dir = look(&mount.vfs, "dir").await.unwrap();
    tokio::time::advance(LONG).await;
    mount.faulty.cut();
    assert_eq!(look(&mount.vfs, "f").await, Err(Errno::EHOSTDOWN));
    assert_eq!(mount.vfs.opendir(dir.ino).await.map(drop), Err(Errno::EHOSTDOWN));
    assert_eq!(mount.vfs.mkdir(Ino::ROOT, b"made", 0o755).await.map(drop), Err(Errno::EHOSTDOWN));
    assert_eq!(mount.vfs.unlink(Ino::ROOT, b"dir").await, Err(Errno::EHOSTDOWN));
}

#[tokio::test(start_paused = true)]
async fn without_it_nothing_old_is_shown() {
    let mount = mounted(false);
    let ino = known_and_gone(&mount).await;
    assert_eq!(look(&mount.vfs, "f").await, Err(Errno::EHOSTDOWN));
    assert_eq!(mount.vfs.getattr(ino).await.map(drop), Err(Errno::EHOSTDOWN));
    assert_eq!(open(&mount.vfs, ino).await.map(drop), Err(Errno::EHOSTDOWN));
    assert_eq!(list(&mount.vfs).await, Err(Errno::EHOSTDOWN));
}

/// Calls in flight when the connection is lost are answered like later ones.
#[tokio::test(start_paused = true)]
async fn calls_on_their_way_are_answered_when_the_remote_goes() {
    let mount = mounted(true);
    let ino = look(&mount.vfs, "f").await.unwrap().ino;
    assert_eq!(list(&mount.vfs).await.unwrap(), ["f", "g"]);
    tokio::time::advance(LONG).await;
    let vfs = Arc::new(mount.vfs);
    let held = mount.faulty.hold(Call::Lstat, 1);
    let looking = tokio::spawn({
        let vfs = vfs.clone();
        async move { vfs.getattr(ino).await }
    });
    held.arrived().await;
    assert!(!looking.is_finished());
    mount.faulty.cut();
    assert_eq!(looking.await.unwrap().unwrap().attr.size, 7);
    mount.faulty.restore();
    let held = mount.faulty.hold(Call::Opendir, 1);
    let listing = tokio::spawn({
        let vfs = vfs.clone();
        async move { list(&vfs).await }
    });
    held.arrived().await;
    mount.faulty.cut();
    assert_eq!(listing.await.unwrap().unwrap(), ["f", "g"]);
}

/// Attributes from before a local change are not served.
#[tokio::test(start_paused = true)]
async fn what_was_changed_here_is_not_shown_as_it_was() {
    let mount = mounted(true);
    look(&mount.vfs, "g").await.unwrap();
    assert_eq!(list(&mount.vfs).await.unwrap(), ["f", "g"]);
    mount.vfs.unlink(Ino::ROOT, b"g").await.unwrap();
    tokio::time::advance(LONG).await;
    mount.faulty.cut();
    assert_eq!(look(&mount.vfs, "g").await, Err(Errno::ENOENT));
    assert_eq!(list(&mount.vfs).await.unwrap(), ["f"]);
}
