//! `consistency=watch`, W1 to W3 of `docs/semantics.md`, through a kernel that caches what it may.
//! The clock is paused, so that it advances only where a test or a time-out says so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, AttrChange, Errno, FileKind, Name, RenameMode};
use bytes::Bytes;
use testkit::clock::Clock;
use testkit::dice::Dice;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, MemRemote, path};
use tokio::time::Instant;
use vfs::{Config, Consistency, Ino, Invalidate, LookupResult, OpenRequest, Vfs};

use super::stage::{KernelMount, list};

/// Longer than all time-outs of close-to-open.
const LONG: Duration = Duration::from_secs(30);

/// How long after a change the promise begins.
const SOON: Duration = Duration::from_secs(1);

/// What the kernel has cached, and until when.
type Cached<K, V> = Mutex<HashMap<K, (V, Instant)>>;

/// The kernel's caches.
#[derive(Default)]
struct Kernel {
    names: Cached<(Ino, Vec<u8>), Option<Ino>>,
    attributes: Cached<Ino, vfs::Stat>,
    /// How often it had to drop attributes, and only those.
    invalidations: Mutex<HashMap<Ino, u32>>,
    /// Inodes whose pages it had to drop.
    dropped: Mutex<Vec<Ino>>,
    /// How often a lookup has led to each inode.
    lookups: Mutex<HashMap<Ino, u64>>,
}

impl Invalidate for Kernel {
    fn content(&self, ino: Ino) {
        self.dropped.lock().unwrap().push(ino);
        self.attributes.lock().unwrap().remove(&ino);
    }

    fn names(&self, _: &[Name]) {
        self.names.lock().unwrap().clear();
        self.attributes(Ino::ROOT);
    }

    fn name(&self, dir: Ino, name: &Name) -> bool {
        self.names.lock().unwrap().remove(&(dir, name.as_bytes().to_vec()));
        true
    }

    fn attributes(&self, ino: Ino) -> bool {
        self.attributes.lock().unwrap().remove(&ino);
        *self.invalidations.lock().unwrap().entry(ino).or_default() += 1;
        true
    }
}

impl Kernel {
    fn note(&self, ino: Ino, stat: vfs::Stat) {
        self.attributes.lock().unwrap().insert(ino, (stat, Instant::now() + stat.ttl));
    }
}

type Mount = KernelMount<Kernel>;

fn mounted() -> Mount {
    mounted_with(false)
}

fn mounted_with(hides_identities: bool) -> Mount {
    let limits = Limits { shows_inodes: true, hides_identities, ..Limits::default() };
    let remote = MemRemote::with(Options { clock: Clock::System, limits, ..Options::default() });
    remote.offer_watches();
    let consistency = Consistency::Watch;
    Mount::new(remote, Config { consistency, login: Some((0, 0)), ..Config::default() })
}

impl Mount {
    async fn look(&self, dir: Ino, name: &str) -> Result<Option<Ino>, Errno> {
        let key = (dir, name.as_bytes().to_vec());
        let cached = self.kernel.names.lock().unwrap().get(&key).copied();
        if let Some((found, until)) = cached
            && Instant::now() < until
        {
            return Ok(found);
        }
        let (found, ttl) = match self.vfs.lookup(dir, name.as_bytes()).await? {
            LookupResult::Absent(ttl) => (None, ttl),
            LookupResult::Found(entry) => {
                self.kernel.note(entry.ino, entry.stat);
                *self.kernel.lookups.lock().unwrap().entry(entry.ino).or_default() += 1;
                (Some(entry.ino), entry.ttl)
            }
        };
        self.kernel.names.lock().unwrap().insert(key, (found, Instant::now() + ttl));
        Ok(found)
    }

    async fn find(&self, at: &str) -> Option<Ino> {
        let mut ino = Ino::ROOT;
        for name in at.split('/').filter(|name| !name.is_empty()) {
            ino = self.look(ino, name).await.unwrap_or_else(|why| panic!("{at}: {why}"))?;
        }
        Some(ino)
    }

    /// The kernel evicts the inode of a file.
    async fn forget(&self, at: &str) {
        let ino = self.find(at).await.unwrap();
        let count = self.kernel.lookups.lock().unwrap().remove(&ino).unwrap();
        self.kernel.names.lock().unwrap().retain(|_, (found, _)| *found != Some(ino));
        self.vfs.forget(ino, count);
    }

    async fn stat(&self, ino: Ino) -> Result<vfs::Stat, Errno> {
        let cached = self.kernel.attributes.lock().unwrap().get(&ino).copied();
        if let Some((stat, until)) = cached
            && Instant::now() < until
        {
            return Ok(stat);
        }
        let stat = self.vfs.getattr(ino).await?;
        self.kernel.note(ino, stat);
        Ok(stat)
    }

    async fn read(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let opened = self.vfs.open(ino, OpenRequest::plain(Access::Read)).await?;
        let data = self.vfs.read(opened.handle, 0, 1 << 16).await;
        self.vfs.release(opened.handle);
        Ok(data?.to_vec())
    }

    /// The result of a call for a name. If it is `ESTALE`, the name is looked up again, as the
    /// kernel does.
    async fn by_name<T>(&self, at: &str, call: impl AsyncFn(Ino) -> Result<T, Errno>) -> Option<T> {
        loop {
            let ino = self.find(at).await?;
            match call(ino).await {
                Err(Errno::ESTALE) => {
                    self.kernel.names.lock().unwrap().clear();
                    self.kernel.attributes(ino);
                }
                result => return Some(result.unwrap_or_else(|why| panic!("{at}: {why}"))),
            }
        }
    }

    async fn content(&self, at: &str) -> Option<Vec<u8>> {
        self.by_name(at, async |ino| self.read(ino).await).await
    }

    async fn stat_at(&self, at: &str) -> Option<vfs::Stat> {
        self.by_name(at, async |ino| self.stat(ino).await).await
    }

    async fn names(&self, at: &str) -> Vec<String> {
        let dir = self.find(at).await.unwrap();
        let entries = list(&self.vfs, dir, true).await;
        let mut names = Vec::new();
        for (name, _, entry) in entries {
            if let Some(entry) = entry {
                self.vfs.forget(entry.ino, 1);
            }
            names.push(String::from_utf8(name).unwrap());
        }
        names.sort();
        names
    }

    /// Writes a file by its name; creates it.
    async fn write(&self, at: &str, content: &str) -> Result<(), Errno> {
        let (dir, name) = at.rsplit_once('/').unwrap_or(("", at));
        let Some(dir) = self.find(dir).await else { return Err(Errno::ENOENT) };
        let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
        let (entry, opened) = self.vfs.create(dir, name.as_bytes(), 0o644, false, request).await?;
        self.kernel.name(dir, &Name::new(name.as_bytes()).unwrap());
        self.kernel.attributes(entry.ino);
        let handle = opened.handle;
        self.vfs.write(handle, 0, Bytes::copy_from_slice(content.as_bytes())).await?;
        let flushed = self.vfs.flush(handle).await;
        self.vfs.release(handle);
        flushed
    }

    /// All of it is in use, and so watched; the last answers are from now.
    async fn use_all(&self, files: &[&str]) {
        for _ in 0..2 {
            tokio::time::sleep(2 * LONG + SOON).await;
            for at in files {
                self.names(at.rsplit_once('/').map_or("", |(dir, _)| dir)).await;
                if let Some(ino) = self.find(at).await {
                    self.stat(ino).await.unwrap();
                    if self.remote.attr(at).kind == FileKind::Regular {
                        self.content(at).await;
                    }
                }
            }
        }
    }

    /// The number of requests of `calls`.
    async fn requests<T>(&self, calls: impl Future<Output = T>) -> (T, u64) {
        let before = self.faulty.round_trips();
        let result = calls.await;
        (result, self.faulty.round_trips() - before)
    }

    /// Reports that wait are applied.
    async fn settle(&self) {
        tokio::time::sleep(SOON).await;
    }
}

const FILES: [&str; 3] = ["f", "d/g", "d/e/h"];

async fn with_files() -> Mount {
    with_files_in(mounted()).await
}

async fn with_files_in(mount: Mount) -> Mount {
    for at in FILES {
        mount.remote.put_file(at, format!("content of {at}"));
        mount.remote.set_mtime(at, 1_000_000_000);
    }
    mount.use_all(&FILES).await;
    assert_eq!((mount.vfs.watch_status().directories, mount.remote.watched()), (3, 3));
    mount
}

#[tokio::test(start_paused = true)]
async fn w1_what_is_watched_needs_no_request() {
    for hides_identities in [false, true] {
        let mount = with_files_in(mounted_with(hides_identities)).await;
        tokio::time::sleep(LONG).await;
        let all = async {
            for at in FILES {
                let ino = mount.find(at).await.unwrap();
                mount.stat(ino).await.unwrap();
                assert_eq!(mount.find(&format!("{at}-absent")).await, None);
                let opened = mount.vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
                mount.vfs.release(opened.handle);
            }
            assert_eq!(mount.names("").await, ["d", "f"]);
            assert_eq!(mount.names("d").await, ["e", "g"]);
        };
        assert_eq!(mount.requests(all).await.1, 0, "{hides_identities}");
        // What the server does not see is not hidden for ever.
        tokio::time::sleep(2 * LONG).await;
        let (_, requests) = mount.requests(mount.find("f")).await;
        assert!(requests > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn w1_each_change_at_the_server_is_seen() {
    let mount = with_files().await;
    let remote = &mount.remote;
    remote.put_file("d/g", "another, longer content of d/g");
    mount.settle().await;
    assert_eq!(mount.content("d/g").await.unwrap(), b"another, longer content of d/g");
    let ino = mount.find("d/g").await.unwrap();
    assert_eq!(mount.stat(ino).await.unwrap().attr.size, 30);
    mount.use_all(&FILES).await;

    remote.set_perm("f", 0o600);
    mount.settle().await;
    let ino = mount.find("f").await.unwrap();
    assert_eq!(mount.stat(ino).await.unwrap().attr.perm, 0o600);
    mount.use_all(&FILES).await;

    assert_eq!(mount.find("d/new").await, None);
    remote.put_file("d/new", "new");
    mount.settle().await;
    assert_eq!(mount.names("d").await, ["e", "g", "new"]);
    assert_eq!(mount.content("d/new").await.unwrap(), b"new");
    mount.use_all(&["d/new"]).await;

    remote.move_to("d/new", "d/moved");
    mount.settle().await;
    assert_eq!(mount.find("d/new").await, None);
    assert_eq!(mount.content("d/moved").await.unwrap(), b"new");
    mount.use_all(&["d/moved"]).await;

    // An editor that saves.
    remote.put_file("d/saved", "saved");
    remote.move_to("d/saved", "d/moved");
    mount.settle().await;
    assert_eq!(mount.content("d/moved").await.unwrap(), b"saved");
    mount.use_all(&["d/moved"]).await;

    remote.remove("d/moved");
    mount.settle().await;
    assert_eq!(mount.find("d/moved").await, None);
    assert_eq!(mount.names("d").await, ["e", "g"]);
}

/// An invalidation of the kernel's attributes also discards the replies that are in flight.
#[tokio::test(start_paused = true)]
async fn w1_a_reader_sees_the_end_of_a_file_that_grows_all_the_time() {
    let mount = with_files().await;
    let ino = mount.find("f").await.unwrap();
    mount.stat(ino).await.unwrap();
    let opened = mount.vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
    for len in 1..=200 {
        mount.remote.put_file("f", "x".repeat(len));
        tokio::time::sleep(SOON / 100).await;
    }
    let invalidations = mount.kernel.invalidations.lock().unwrap().remove(&ino);
    let drops = mount.kernel.dropped.lock().unwrap().iter().filter(|it| **it == ino).count();
    assert!(invalidations == Some(1) && (1..=9).contains(&drops), "{invalidations:?} {drops}");
    assert_eq!(mount.stat(ino).await.unwrap().attr.size, 200);
    mount.settle().await;
    // It may have cached them.
    mount.remote.put_file("f", "x".repeat(300));
    mount.settle().await;
    assert_eq!(mount.stat(ino).await.unwrap().attr.size, 300);
    mount.vfs.release(opened.handle);
}

/// All within the second in which reports may be about local changes.
#[tokio::test(start_paused = true)]
async fn w1_a_name_that_others_remove_and_create_again_is_present() {
    let mount = with_files().await;
    let dir = mount.find("d").await.unwrap();
    mount.write("d/x", "1").await.unwrap();
    mount.vfs.mkdir(dir, b"y", 0o755).await.unwrap();
    mount.remote.remove("d/x");
    mount.remote.edit(|tree| tree.remove_all(&path("d/y"))).unwrap();
    tokio::time::sleep(SOON / 100).await;
    assert_eq!(mount.names("d").await, ["e", "g"]);
    mount.remote.put_file("d/x", "2");
    mount.remote.put_dir("d/y");
    mount.settle().await;
    assert_eq!(mount.names("d").await, ["e", "g", "x", "y"]);
    assert_eq!(mount.content("d/x").await.unwrap(), b"2");
    assert!(mount.find("d/y").await.is_some());
}

/// The server has returned the attributes for the close before the change, and is slow to close.
#[tokio::test(start_paused = true)]
async fn w1_a_change_that_is_reported_during_a_close_is_seen() {
    let mount = with_files().await;
    let ino = mount.find("d/g").await.unwrap();
    let opened = mount.vfs.open(ino, OpenRequest::plain(Access::Write)).await.unwrap();
    mount.vfs.write(opened.handle, 0, Bytes::from_static(b"x")).await.unwrap();
    tokio::time::sleep(3 * SOON).await;
    let answer = mount.faulty.hold_answer(Call::Flush, 1);
    let changing = async {
        answer.arrived().await;
        mount.remote.put_file("d/g", "another, longer content");
        tokio::time::sleep(Duration::from_millis(1)).await;
        answer.release();
    };
    let (flushed, ()) = tokio::join!(mount.vfs.flush(opened.handle), changing);
    flushed.unwrap();
    mount.vfs.release(opened.handle);
    mount.settle().await;
    assert_eq!(mount.stat_at("d/g").await.unwrap().attr.size, 23);
    assert_eq!(mount.content("d/g").await.unwrap(), b"another, longer content");
}

#[tokio::test(start_paused = true)]
async fn w1_a_directory_that_is_renamed_takes_its_watches_along() {
    let mount = with_files().await;
    mount.remote.move_to("d", "other");
    mount.settle().await;
    assert_eq!(mount.find("d").await, None);
    assert_eq!(mount.names("").await, ["f", "other"]);
    assert_eq!(mount.content("other/e/h").await.unwrap(), b"content of d/e/h");
    mount.remote.put_file("other/e/h", "changed in its new place");
    mount.settle().await;
    assert_eq!(mount.content("other/e/h").await.unwrap(), b"changed in its new place");
    mount.use_all(&["other/e/h"]).await;
    assert_eq!(mount.vfs.watch_status().directories, 3);
    // Another directory takes the name of one that is watched.
    mount.remote.move_to("other/e", "e");
    mount.remote.put_file("other/e/h", "of another directory");
    mount.settle().await;
    assert_eq!(mount.content("other/e/h").await.unwrap(), b"of another directory");
    assert_eq!(mount.content("e/h").await.unwrap(), b"changed in its new place");
}

/// There may be thousands of them.
#[tokio::test(start_paused = true)]
async fn w1_reports_do_not_wait_for_the_ends_of_watches() {
    let mount = with_files().await;
    mount.remote.delay_ends_of_watches(LONG);
    mount.remote.move_to("d/e", "d/renamed");
    tokio::time::sleep(Duration::from_millis(1)).await;
    mount.remote.put_file("f", "changed meanwhile");
    mount.settle().await;
    assert_eq!(mount.stat_at("f").await.unwrap().attr.size, 17);
    mount.remote.delay_ends_of_watches(Duration::ZERO);
    let moved = ["f", "d/g", "d/renamed/h"];
    mount.use_all(&moved).await;
    assert_eq!((mount.vfs.watch_status().directories, mount.remote.watched()), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn w1_a_file_that_was_opened_without_a_request_shows_the_change() {
    let mount = with_files().await;
    let opening = mount.by_name("d/g", async |ino| {
        let opened = mount.vfs.open(ino, OpenRequest::plain(Access::Read)).await;
        opened.map(|opened| (ino, opened.handle))
    });
    let (opened, requests) = mount.requests(opening).await;
    let (ino, handle) = opened.unwrap();
    assert_eq!(requests, 0);
    mount.kernel.dropped.lock().unwrap().clear();
    mount.remote.put_file("d/g", "changed in place, and longer");
    mount.settle().await;
    assert_eq!(*mount.kernel.dropped.lock().unwrap(), [ino]);
    let data = mount.vfs.read(handle, 0, 1 << 16).await.unwrap();
    assert_eq!(data.to_vec(), b"changed in place, and longer");
    mount.vfs.release(handle);
}

/// The report may be about the local change, and no other one comes.
#[tokio::test(start_paused = true)]
async fn w1_a_change_right_after_a_local_one_is_shown_by_an_open_descriptor() {
    let change = AttrChange { perm: Some(0o640), ..AttrChange::default() };
    for changes_there in [false, true] {
        for loses in [false, true] {
            let mount = with_files().await;
            let ino = mount.find("d/g").await.unwrap();
            let opened = mount.vfs.open(ino, OpenRequest::plain(Access::ReadWrite)).await.unwrap();
            // The second time, the pages are those that were read since.
            for content in ["CONTENT of d/g", "another content"] {
                mount.vfs.setattr(ino, change, None).await.unwrap();
                mount.kernel.dropped.lock().unwrap().clear();
                tokio::time::sleep(SOON / 10).await;
                mount.remote.hold_reports(loses);
                if changes_there {
                    mount.remote.put_file("d/g", content);
                }
                if loses {
                    mount.remote.lose_watches();
                    mount.remote.hold_reports(false);
                }
                tokio::time::sleep(3 * SOON).await;
                let dropped = std::mem::take(&mut *mount.kernel.dropped.lock().unwrap());
                let expected = if changes_there { vec![ino] } else { Vec::new() };
                assert_eq!(dropped, expected, "{changes_there}, {loses}, {content}");
                // The directory is watched again.
                mount.use_all(&["d/e"]).await;
            }
            mount.vfs.release(opened.handle);
        }
    }
}

/// Its pages are those that were written.
#[tokio::test(start_paused = true)]
async fn w3_the_pages_of_a_file_that_is_written_locally_are_kept() {
    let mount = with_files().await;
    let ino = mount.find("d/g").await.unwrap();
    let opened = mount.vfs.open(ino, OpenRequest::plain(Access::ReadWrite)).await.unwrap();
    mount.kernel.dropped.lock().unwrap().clear();
    for number in 0..50 {
        mount.vfs.write(opened.handle, number, Bytes::from_static(b"x")).await.unwrap();
        tokio::time::sleep(SOON / 10).await;
    }
    mount.settle().await;
    mount.settle().await;
    assert!(mount.kernel.dropped.lock().unwrap().is_empty());
    mount.vfs.release(opened.handle);
}

/// One that changes more often than a request takes: its attributes are cached for a short time,
/// else each path through it would cost a request.
#[tokio::test(start_paused = true)]
async fn w1_the_attributes_of_a_busy_directory_are_cached() {
    let mount = with_files().await;
    let dir = mount.find("d").await.unwrap();
    mount.remote.put_file("d/one", "");
    mount.settle().await;
    let answer = mount.faulty.hold_answer(Call::Lstat, 1);
    let asking = async {
        answer.arrived().await;
        mount.remote.put_file("d/two", "");
        tokio::time::sleep(Duration::from_millis(1)).await;
        answer.release();
    };
    let (known, ()) = tokio::join!(mount.vfs.getattr(dir), asking);
    let (again, requests) = mount.requests(mount.vfs.getattr(dir)).await;
    assert_eq!((again.unwrap().attr, requests), (known.unwrap().attr, 0));
    mount.settle().await;
    assert!(mount.requests(mount.vfs.getattr(dir)).await.1 > 0);
}

/// The record of the report is lost with the inode.
#[tokio::test(start_paused = true)]
async fn w1_a_listing_from_before_a_report_is_not_used_for_a_file_that_was_evicted() {
    let mount = with_files().await;
    tokio::time::sleep(3 * LONG).await;
    let answer = mount.faulty.hold_answer(Call::Readdir, 1);
    let changing = async {
        answer.arrived().await;
        mount.remote.put_file("d/g", "changed, and of another size");
        tokio::time::sleep(Duration::from_millis(1)).await;
        mount.forget("d/g").await;
        answer.release();
    };
    tokio::join!(mount.names("d"), changing);
    mount.settle().await;
    assert_eq!(mount.stat_at("d/g").await.unwrap().attr.size, 28);
}

#[tokio::test(start_paused = true)]
async fn w2_lost_reports_make_everything_be_requested_again() {
    for overflows in [false, true] {
        let mount = with_files().await;
        mount.remote.hold_reports(true);
        mount.remote.put_file("d/g", "changed without a report");
        mount.remote.remove("f");
        match overflows {
            true => mount.remote.overflow_reports(),
            false => mount.remote.lose_watches(),
        }
        mount.remote.hold_reports(false);
        // No time passes but that for a task.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(mount.vfs.watch_status().losses, 1);
        assert_eq!(mount.content("d/g").await.unwrap(), b"changed without a report");
        assert_eq!(mount.find("f").await, None);
        assert_eq!(mount.names("").await, ["d"]);
        // It is watched again, and trusted again.
        let left = ["d/g", "d/e/h"];
        mount.use_all(&left).await;
        assert_eq!(mount.vfs.watch_status().directories, 3);
        assert_eq!(mount.requests(mount.find("d/e/h")).await.1, 0);
        mount.remote.put_file("d/e/h", "reported");
        mount.settle().await;
        assert_eq!(mount.content("d/e/h").await.unwrap(), b"reported");
    }
}

/// What others do to an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unreported {
    Nothing,
    Change,
    Replacement,
}

#[tokio::test(start_paused = true)]
async fn w2_an_open_file_is_validated_after_a_loss() {
    use Unreported::{Change, Nothing, Replacement};
    for overflows in [false, true] {
        for (access, unreported) in [
            (Access::Read, Nothing),
            (Access::Read, Change),
            (Access::Read, Replacement),
            (Access::ReadWrite, Nothing),
            (Access::ReadWrite, Change),
        ] {
            let mount = with_files().await;
            let ino = mount.find("d/g").await.unwrap();
            let opening = mount.vfs.open(ino, OpenRequest::plain(access));
            let (opened, requests) = mount.requests(opening).await;
            let opened = opened.unwrap();
            // Only one for writing has a handle at the server.
            assert_eq!(requests > 0, access.writes());
            mount.kernel.dropped.lock().unwrap().clear();
            mount.remote.hold_reports(true);
            match unreported {
                Nothing => {}
                Change => mount.remote.put_file("d/g", "CONTENT of d/g"),
                Replacement => {
                    mount.remote.put_file("new", "another file");
                    mount.remote.move_to("new", "d/g");
                }
            }
            match overflows {
                true => mount.remote.overflow_reports(),
                false => mount.remote.lose_watches(),
            }
            mount.remote.hold_reports(false);
            tokio::time::sleep(SOON).await;
            let dropped = std::mem::take(&mut *mount.kernel.dropped.lock().unwrap());
            let expected = if unreported == Change { vec![ino] } else { Vec::new() };
            assert_eq!(dropped, expected, "{overflows}, {access:?}, {unreported:?}");
            mount.vfs.release(opened.handle);
        }
    }
}

/// The report of its change is one of those with which the watch of its directory ends.
#[tokio::test(start_paused = true)]
async fn w2_an_open_file_is_validated_when_its_watch_ends() {
    let mount = with_files().await;
    mount.remote.put_file("d/e/same", "content");
    mount.remote.set_mtime("d/e/same", 1_000_000_000);
    let files = ["d/e/h", "d/e/same"];
    mount.use_all(&files).await;
    let mut opened = Vec::new();
    for at in files {
        let ino = mount.find(at).await.unwrap();
        let request = OpenRequest::plain(Access::Read);
        opened.push((ino, mount.vfs.open(ino, request).await.unwrap()));
    }
    mount.kernel.dropped.lock().unwrap().clear();
    mount.remote.hold_reports(true);
    for number in 0..1100 {
        mount.remote.put_file("d/e/noise", number.to_string());
    }
    mount.remote.put_file("d/e/h", "CONTENT of d/e/h");
    mount.remote.hold_reports(false);
    mount.settle().await;
    assert_eq!(mount.vfs.watch_status().directories, 2);
    assert_eq!(*mount.kernel.dropped.lock().unwrap(), [opened[0].0]);
    opened.iter().for_each(|(_, opened)| mount.vfs.release(opened.handle));
}

#[tokio::test(start_paused = true)]
async fn w3_own_changes_do_not_outdate_own_caches() {
    let mount = with_files().await;
    mount.write("d/own", "mine").await.unwrap();
    mount.write("d/g", "also mine").await.unwrap();
    mount.settle().await;
    let ino = mount.find("d/own").await.unwrap();
    // One request each, when the reports of the change are over; then none.
    mount.use_all(&["d/own", "d/g"]).await;
    tokio::time::sleep(LONG).await;
    let again = async {
        assert_eq!(mount.find("d/own").await, Some(ino));
        assert_eq!(mount.stat(ino).await.unwrap().attr.size, 4);
        let opened = mount.vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
        assert!(opened.keep_cache);
        mount.vfs.release(opened.handle);
        assert_eq!(mount.names("d").await, ["e", "g", "own"]);
    };
    assert_eq!(mount.requests(again).await.1, 0);
    // The other names of the directory were valid all the time.
    mount.write("d/own2", "mine").await.unwrap();
    let other = async { mount.find("d/g").await.unwrap() };
    assert_eq!(mount.requests(other).await.1, 0);
    // A change by another client right after an own one is not taken for it.
    mount.write("d/own", "mine again").await.unwrap();
    mount.remote.put_file("d/own", "theirs, and later");
    tokio::time::sleep(SOON + Duration::from_millis(1)).await;
    assert_eq!(mount.content("d/own").await.unwrap(), b"theirs, and later");
}

#[tokio::test(start_paused = true)]
async fn a_file_with_several_names_is_not_watched() {
    for hides_identities in [false, true] {
        let mount = with_files_in(mounted_with(hides_identities)).await;
        mount.remote.edit(|tree| tree.link(&path("f"), &path("d/link"))).unwrap();
        mount.use_all(&["f", "d/link"]).await;
        // By a name that is not known here, in a directory that is not watched.
        mount.remote.put_dir("unseen");
        mount.remote.edit(|tree| tree.link(&path("f"), &path("unseen/f"))).unwrap();
        mount.use_all(&["f"]).await;
        let (_, requests) = mount.requests(mount.content("f")).await;
        assert!(requests > 0, "as with close-to-open");
    }
}

#[tokio::test(start_paused = true)]
async fn without_watches_all_is_as_with_close_to_open() {
    let remote = Arc::new(MemRemote::new());
    remote.put_file("f", "content");
    let vfs = Vfs::new(
        remote.clone(),
        Config { consistency: Consistency::Watch, login: Some((0, 0)), ..Config::default() },
    );
    assert!(matches!(vfs.lookup(Ino::ROOT, b"f").await, Ok(LookupResult::Found(_))));
    tokio::time::sleep(LONG).await;
    let before = remote.round_trips();
    assert!(matches!(vfs.lookup(Ino::ROOT, b"f").await, Ok(LookupResult::Found(_))));
    assert!(remote.round_trips() > before);
    assert_eq!(vfs.watch_status(), vfs::WatchStatus::default());
}

#[tokio::test(start_paused = true)]
async fn what_the_server_cannot_watch_is_as_with_close_to_open() {
    let mount = mounted();
    mount.remote.limit_watches(2);
    for at in FILES {
        mount.remote.put_file(at, at);
        mount.remote.set_mtime(at, 1_000_000_000);
    }
    mount.use_all(&FILES).await;
    let status = mount.vfs.watch_status();
    assert_eq!((status.directories, status.refused), (2, Some(Errno::ENOSPC)));
    tokio::time::sleep(LONG).await;
    assert_eq!(mount.requests(mount.find("d/g")).await.1, 0);
    // One request for what is not watched, in at most 20 s as always.
    mount.remote.put_file("d/e/h", "changed, without a report");
    assert_eq!(mount.content("d/e/h").await.unwrap(), b"changed, without a report");
    // There is room again.
    mount.remote.limit_watches(3);
    mount.use_all(&FILES).await;
    assert_eq!(mount.vfs.watch_status().directories, 3);
}

/// A log directory that was looked at once.
#[tokio::test(start_paused = true)]
async fn a_directory_that_nothing_uses_is_not_watched_for_ever() {
    let mount = with_files().await;
    for number in 0..1100 {
        mount.remote.put_file("d/e/h", format!("line {number}"));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((mount.vfs.watch_status().directories, mount.remote.watched()), (2, 2));
    // It is not watched again at once.
    assert_eq!(mount.content("d/e/h").await.unwrap(), b"line 1099");
    mount.settle().await;
    assert_eq!(mount.vfs.watch_status().directories, 2);
    mount.use_all(&FILES).await;
    assert_eq!(mount.vfs.watch_status().directories, 3);
    // One that is used is watched as long as it is.
    for number in 0..1100 {
        mount.remote.put_file("d/e/h", format!("line {number}"));
        if number % 100 == 0 {
            mount.settle().await;
            assert_eq!(mount.content("d/e/h").await.unwrap(), format!("line {number}").as_bytes());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(mount.vfs.watch_status().directories, 3);
}

const DIRS: [&str; 3] = ["", "d", "d/e"];
const NAMES: [&str; 3] = ["x", "y", "z"];

struct Play {
    mount: Mount,
    dice: Dice,
    written: u64,
}

impl Play {
    fn place(&mut self) -> String {
        let (dir, name) = (self.dice.pick(&DIRS), self.dice.pick(&NAMES));
        if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
    }

    /// Contents of the same and of different lengths.
    fn text(&mut self) -> String {
        self.written += 1;
        format!("{:04}{}", self.written, "+".repeat(self.dice.below(3) as usize))
    }

    fn is_file(&self, at: &str) -> bool {
        self.mount.remote.exists(at) && self.mount.remote.attr(at).kind == FileKind::Regular
    }

    /// A change by another client. The times of this remote are exact, so each has its own mtime.
    fn change_there(&mut self) {
        let (at, to) = (self.place(), self.place());
        let remote = &self.mount.remote.clone();
        let has_dir = |at: &str| at.rsplit_once('/').is_none_or(|(dir, _)| remote.exists(dir));
        match self.dice.below(8) {
            0..=3 if has_dir(&at) => remote.put_file(&at, self.text()),
            4 if self.is_file(&at) => remote.remove(&at),
            5 if self.is_file(&at) && has_dir(&to) && at != to => remote.move_to(&at, &to),
            6 if self.is_file(&at) => remote.set_perm(&at, 0o600 + self.dice.below(8) as u32),
            7 => match self.dice.below(4) {
                0 if remote.exists("d") => {
                    // Another directory, with other files of the same names.
                    let gone = format!("gone{}", self.written);
                    self.written += 1;
                    remote.move_to("d", &gone);
                    remote.put_file("d/x", self.text());
                    remote.put_file("d/e/x", self.text());
                }
                1 if remote.exists("d/e") => {
                    remote.edit(|tree| tree.remove_all(&path("d/e"))).unwrap();
                }
                _ => remote.put_dir("d/e"),
            },
            _ => {}
        }
    }

    /// A change through the mount, which may fail where something was changed at the server.
    async fn change_here(&mut self) {
        let (at, to) = (self.place(), self.place());
        let text = self.text();
        let split = |at: &str| {
            let (dir, name) = at.rsplit_once('/').unwrap_or(("", at));
            (dir.to_owned(), name.to_owned())
        };
        let ((dir, name), (to_dir, to_name)) = (split(&at), split(&to));
        let mount = &self.mount;
        let (Some(dir), Some(to_dir)) = (mount.find(&dir).await, mount.find(&to_dir).await) else {
            return;
        };
        let (kernel, vfs) = (&mount.kernel, &mount.vfs);
        match self.dice.below(5) {
            0 | 1 => drop(mount.write(&at, &text).await),
            2 => {
                if matches!(vfs.unlink(dir, name.as_bytes()).await, Ok(()) | Err(Errno::ENOENT)) {
                    kernel.name(dir, &Name::new(name.as_bytes()).unwrap());
                }
            }
            3 => {
                let renamed = vfs.rename(
                    (dir, name.as_bytes()),
                    (to_dir, to_name.as_bytes()),
                    RenameMode::Replace,
                );
                if renamed.await.is_ok() {
                    // The entry of the kernel moves, with its time-out.
                    let mut names = kernel.names.lock().unwrap();
                    let moved = names.remove(&(dir, name.into_bytes()));
                    names.remove(&(to_dir, to_name.clone().into_bytes()));
                    if let Some(moved) = moved {
                        moved.0.into_iter().for_each(|ino| {
                            kernel.attributes(ino);
                        });
                        names.insert((to_dir, to_name.into_bytes()), moved);
                    }
                }
            }
            _ => {
                if let Some(ino) = mount.find(&at).await {
                    let change = AttrChange { perm: Some(0o640), ..AttrChange::default() };
                    let changed = vfs.setattr(ino, change, None).await;
                    if let Ok(stat) = changed {
                        kernel.note(ino, stat);
                    }
                }
            }
        }
    }

    /// The mount shows what is at the server.
    async fn compare(&self, seed: u64) {
        let (mount, remote) = (&self.mount, &self.mount.remote);
        for dir in DIRS {
            let found = mount.find(dir).await;
            assert_eq!(found.is_some(), dir.is_empty() || remote.exists(dir), "{seed}: {dir}");
            if found.is_none() {
                continue;
            }
            let mut names = remote.names(dir);
            names.sort();
            assert_eq!(mount.names(dir).await, names, "seed {seed}: {dir:?}");
            for name in NAMES {
                let at = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
                let Some(here) = mount.stat_at(&at).await else {
                    assert!(!remote.exists(&at), "seed {seed}: {at} is absent here");
                    continue;
                };
                assert!(remote.exists(&at), "seed {seed}: {at} is present here");
                let there = remote.attr(&at);
                let shown = (here.attr.size, here.attr.perm);
                assert_eq!(shown, (there.size, there.perm), "seed {seed}: {at}");
                assert_eq!(mount.content(&at).await.unwrap(), remote.content(&at), "{seed}: {at}");
            }
        }
    }
}

async fn play(seed: u64) -> u64 {
    let mount = mounted_with(seed / 2 % 2 == 1);
    // On every other seed reports and replies overlap.
    mount.remote.set_latency((seed % 2 == 1).then_some(Duration::from_millis(2)));
    for at in ["x", "d/x", "d/e/x"] {
        mount.remote.put_file(at, "start");
    }
    let mut play = Play { mount, dice: Dice::of_part(seed, "watched", 0), written: 0 };
    let mut watched = 0;
    for _ in 0..40 {
        play.mount.remote.hold_reports(play.dice.below(2) == 0);
        for _ in 0..play.dice.below(4) {
            match play.dice.below(8) {
                0..=3 => play.change_there(),
                4..=5 => play.change_here().await,
                6 => {
                    let at = play.place();
                    if let Some(ino) = play.mount.find(&at).await {
                        let _ = play.mount.stat(ino).await;
                    }
                }
                _ => {
                    let pause = Duration::from_millis(play.dice.below(1500));
                    tokio::time::sleep(pause).await;
                }
            }
        }
        match play.dice.below(24) {
            0 => play.mount.remote.lose_watches(),
            1 => play.mount.remote.overflow_reports(),
            _ => {}
        }
        play.mount.remote.hold_reports(false);
        tokio::time::sleep(SOON + Duration::from_millis(1)).await;
        play.compare(seed).await;
        tokio::time::sleep(Duration::from_secs(play.dice.below(2) * 25)).await;
        watched += play.mount.vfs.watch_status().directories as u64;
    }
    watched
}

/// The view of a mount, against what is at the server, after any changes on both sides.
#[test]
fn w1_the_mount_shows_the_server_after_any_changes() {
    let mut watched = 0;
    for seed in testkit::interleave::seeds(100, 5000) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        watched += runtime.block_on(play(seed));
    }
    assert!(watched > 0, "nothing was watched");
}
