//! Several sources as one tree: what one source does is of no concern to the files of another.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use base::{Access, Errno, Name};
use bytes::Bytes;
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::time::timeout;
use union::{Branch, Mode, Policies, Presence, Union};
use vfs::{Caller, Config, Entry, Ino, LookupResult, OpenRequest, Vfs};

const LONG_AGO: i64 = 1_000_000_000;

struct Source {
    mem: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
}

/// Sources at `/a` and `/b`, both required, with a file `f` each.
fn mounted() -> ([Source; 2], Vfs) {
    let sources = ["a", "b"].map(|_| {
        let mem = Arc::new(MemRemote::new());
        mem.put_file("f", "content");
        mem.set_mtime("f", LONG_AGO);
        let faulty = Arc::new(FaultyRemote::new(mem.clone()));
        Source { mem, faulty }
    });
    let branches = sources.iter().zip(["a", "b"]).map(|(source, name)| Branch {
        name: name.to_owned(),
        host: name.to_owned(),
        place: vec![Name::new(name.as_bytes()).unwrap()],
        remote: source.faulty.clone(),
        mode: Mode::Rw,
        presence: Presence::Required,
    });
    let union = Union::new(branches.collect(), Policies::default()).unwrap();
    let login = Some((0, 0));
    let config = Config { is_union: true, serve_stale: true, login, ..Config::default() };
    (sources, Vfs::new(Arc::new(union), config))
}

async fn look(vfs: &Vfs, parent: Ino, name: &str) -> Result<Entry, Errno> {
    match vfs.lookup(parent, name.as_bytes()).await? {
        LookupResult::Found(entry) => Ok(entry),
        LookupResult::Absent(_) => Err(Errno::ENOENT),
    }
}

async fn read(vfs: &Vfs, ino: Ino) -> (bool, Bytes) {
    let opened = vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
    let data = vfs.read(opened.handle, 0, 100).await.unwrap();
    vfs.release(opened.handle);
    (opened.keep_cache, Bytes::from(data.to_vec()))
}

#[tokio::test(start_paused = true)]
async fn changes_are_seen_while_another_source_is_away() {
    let ([a, b], vfs) = mounted();
    let mut files = Vec::new();
    for name in ["a", "b"] {
        let dir = look(&vfs, Ino::ROOT, name).await.unwrap().ino;
        files.push((dir, look(&vfs, dir, "f").await.unwrap().ino));
        assert_eq!(read(&vfs, files[files.len() - 1].1).await.1, "content");
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    a.faulty.cut();
    a.mem.put_file("f", "not seen");
    b.mem.put_file("f", "other content");
    // What is known of the source that is away is still shown.
    let [(dir_a, file_a), (dir_b, file_b)] = files[..] else { panic!() };
    let stale = look(&vfs, dir_a, "f").await.unwrap();
    assert_eq!((stale.ino, stale.stat.attr.size), (file_a, 7));
    assert_eq!(vfs.getattr(file_a).await.unwrap().attr.size, 7);
    assert_eq!(vfs.getattr(file_b).await.unwrap().attr.size, 13);
    let found = look(&vfs, dir_b, "f").await.unwrap();
    assert_eq!((found.ino, found.stat.attr.size), (file_b, 13));
    assert_eq!(read(&vfs, file_b).await, (false, Bytes::from("other content")));
    tokio::time::advance(Duration::from_secs(60)).await;
    b.mem.put_file("f", "a third content");
    assert_eq!(read(&vfs, file_b).await, (false, Bytes::from("a third content")));
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_its_own_source() {
    let ([a, b], vfs) = mounted();
    let dir = look(&vfs, Ino::ROOT, "b").await.unwrap().ino;
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(dir, b"new", 0o644, true, request).await.unwrap();
    a.faulty.cut();
    let gate = b.faulty.hold(Call::Write, 1);
    vfs.write(opened.handle, 0, Bytes::from("content")).await.unwrap();
    gate.arrived().await;
    let mut flush = Box::pin(vfs.flush_and_unlock(opened.handle, None, || ready(Caller::Exiting)));
    let moment = Duration::from_millis(400);
    assert!(timeout(moment, &mut flush).await.is_err(), "the server answers soon");
    gate.release();
    assert_eq!(flush.await, Ok(()));
    vfs.release(opened.handle);
}

/// The server reports an exceeded quota at the close, which is in flight at the end of the mount.
#[tokio::test(start_paused = true)]
async fn the_end_waits_for_the_closes_of_reachable_sources() {
    let ([a, b], vfs) = mounted();
    let dir = look(&vfs, Ino::ROOT, "b").await.unwrap().ino;
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(dir, b"new", 0o644, true, request).await.unwrap();
    vfs.write(opened.handle, 0, Bytes::from("content")).await.unwrap();
    let gate = b.faulty.hold(Call::Finish, 1);
    b.faulty.fail_after(Call::Finish, 1, Errno::EDQUOT);
    vfs.release(opened.handle);
    gate.arrived().await;
    a.faulty.cut();
    let mut drained = Box::pin(vfs.drain());
    assert!(timeout(Duration::from_secs(60), &mut drained).await.is_err());
    gate.release();
    drained.await;
    assert_eq!(vfs.lost_write(), Some(Errno::EDQUOT));
}
