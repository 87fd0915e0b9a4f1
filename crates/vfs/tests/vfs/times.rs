//! mtimes of files written through a mount: whole seconds at the server, fractions here.
//!
//! `make` and similar programs rebuild a file that is older than its sources, by the nanosecond.
//! The server's clock is stopped here: everything happens within one of its seconds.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, RenameMode, Timestamp};
use bytes::Bytes;
use testkit::mem::Options;
use testkit::{Call, FaultyRemote, ManualClock, MemRemote};
use vfs::{Config, Entry, EntrySink, Handle, Ino, ListedEntry, LookupResult, OpenRequest, Vfs};

const SECOND: i64 = 1_700_000_000;

struct World {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    clock: ManualClock,
    vfs: Vfs,
}

#[derive(Default)]
struct Entries(Vec<(Vec<u8>, Entry)>);

impl EntrySink for Entries {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        self.0.extend(entry.entry.map(|found| (entry.name.to_vec(), found)));
    }
}

impl World {
    fn new() -> World {
        let clock = ManualClock::at(SECOND);
        let options = Options { clock: clock.clone().into(), ..Options::default() };
        let remote = Arc::new(MemRemote::with(options));
        let faulty = Arc::new(FaultyRemote::new(remote.clone()));
        let vfs = Vfs::new(faulty.clone(), Config::default());
        World { remote, faulty, clock, vfs }
    }

    async fn look_up(&self, name: &str) -> Option<Entry> {
        match self.vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
            LookupResult::Found(entry) => Some(entry),
            LookupResult::Absent(_) => None,
        }
    }

    async fn found(&self, name: &str) -> Entry {
        self.look_up(name).await.expect(name)
    }

    /// Writes `content` as the whole file, and closes it.
    async fn write(&self, name: &str, content: &str) {
        let handle = self.open_cut(name).await;
        let content = Bytes::copy_from_slice(content.as_bytes());
        self.vfs.write(handle, 0, content).await.unwrap();
        self.close(handle).await;
    }

    async fn open_cut(&self, name: &str) -> Handle {
        let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
        let opened = match self.look_up(name).await {
            Some(entry) => self.vfs.open(entry.ino, request).await.unwrap(),
            None => {
                let made = self.vfs.create(Ino::ROOT, name.as_bytes(), 0o644, true, request).await;
                made.unwrap().1
            }
        };
        opened.handle
    }

    async fn close(&self, handle: Handle) {
        self.vfs.flush(handle).await.unwrap();
        self.vfs.release(handle);
    }

    /// The mtime of a file, which is the same in each kind of reply.
    async fn time(&self, name: &str) -> Timestamp {
        let entry = self.found(name).await;
        let stat = self.vfs.getattr(entry.ino).await.unwrap();
        assert_eq!(entry.stat.attr.mtime, stat.attr.mtime, "{name}: look-up and stat");
        assert!(stat.ctime >= stat.attr.mtime, "{name}: {stat:?}");
        let dir = self.vfs.opendir(Ino::ROOT).await.unwrap();
        for _ in 0..2 {
            // The second one is listed by the server.
            let mut entries = Entries::default();
            self.vfs.readdir(dir, 0, true, &mut entries).await.unwrap();
            let listed = entries.0.iter().find(|(listed, _)| listed == name.as_bytes());
            if let Some((_, listed)) = listed {
                assert_eq!(listed.stat.attr.mtime, stat.attr.mtime, "{name}: listing and stat");
            }
        }
        self.vfs.releasedir(dir);
        stat.attr.mtime
    }

    /// Builds `object` if it is absent or older than `source`. Returns whether it did.
    async fn make(&self, source: &str, object: &str) -> bool {
        let stale = match self.look_up(object).await {
            Some(_) => self.time(object).await < self.time(source).await,
            None => true,
        };
        if stale {
            self.write(object, "object").await;
        }
        stale
    }
}

#[tokio::test]
async fn what_is_edited_after_it_was_built_is_built_anew_within_a_second() {
    let world = World::new();
    for round in 0..8 {
        match round % 3 {
            0 => world.write("c", "source").await,
            // As editors save.
            1 => {
                world.write("c.new", "source").await;
                let (from, to) = ((Ino::ROOT, &b"c.new"[..]), (Ino::ROOT, &b"c"[..]));
                world.vfs.rename(from, to, RenameMode::Replace).await.unwrap();
            }
            // In place, with the same size.
            _ => {
                let ino = world.found("c").await.ino;
                let request = OpenRequest::plain(Access::ReadWrite);
                let handle = world.vfs.open(ino, request).await.unwrap().handle;
                world.vfs.write(handle, 0, Bytes::from_static(b"S")).await.unwrap();
                world.close(handle).await;
            }
        }
        assert!(world.make("c", "o").await, "round {round}: the object is stale");
        assert!(!world.make("c", "o").await, "round {round}: nothing has changed");
    }
    assert_eq!(world.remote.attr("c").mtime, world.remote.attr("o").mtime);
    assert_eq!(world.time("c").await.secs, SECOND, "within the server's second");
}

#[tokio::test(start_paused = true)]
async fn a_fraction_stays_until_the_file_changes() {
    let world = World::new();
    world.write("f", "content").await;
    let time = world.time("f").await;
    assert!(time.secs == SECOND && time.nanos > 0, "{time:?}");
    let ino = world.found("f").await.ino;
    let chmod = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    world.vfs.setattr(ino, chmod, None).await.unwrap();
    assert_eq!(world.time("f").await, time, "chmod");
    world.vfs.rename((Ino::ROOT, b"f"), (Ino::ROOT, b"g"), RenameMode::Replace).await.unwrap();
    assert_eq!(world.time("g").await, time, "rename");
    world.clock.advance(60);
    tokio::time::advance(Duration::from_secs(60)).await;
    let read = world.vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
    world.vfs.release(read.handle);
    assert_eq!(world.time("g").await, time, "time");
    let cut = AttrChange { size: Some(2), ..AttrChange::default() };
    world.vfs.setattr(ino, cut, None).await.unwrap();
    let cut = world.time("g").await;
    assert!(cut.secs == SECOND + 60 && cut.nanos > 0, "{cut:?}");

    // By another machine, in the same second, with another size; then in another second.
    world.remote.put_file("g", "longer");
    tokio::time::advance(Duration::from_secs(60)).await;
    let changed = world.time("g").await;
    assert!(changed.secs == cut.secs && changed > cut, "{changed:?} {cut:?}");
    assert_eq!(world.time("g").await, changed);
    world.clock.advance(1);
    world.remote.put_file("g", "and longer");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(world.time("g").await, Timestamp::from_secs(cut.secs + 1));
}

#[tokio::test]
async fn what_is_made_and_cut_has_a_time_like_what_is_written() {
    let world = World::new();
    let mut last = Timestamp::from_secs(SECOND);
    let later = |name: &'static str, last: &mut Timestamp, now: Timestamp| {
        assert!(now > *last && now.secs == SECOND, "{name}: {now:?} {last:?}");
        *last = now;
    };
    for name in ["new", "new", "other", "new"] {
        let handle = world.open_cut(name).await;
        world.close(handle).await;
        later(name, &mut last, world.time(name).await);
    }
    let dir = world.vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    later("d", &mut last, world.time("d").await);
    world.vfs.symlink(dir.ino, b"link", b"target").await.unwrap();
    later("d with a name in it", &mut last, world.time("d").await);
    world.vfs.unlink(dir.ino, b"link").await.unwrap();
    later("d without it", &mut last, world.time("d").await);
}

/// `touch`, `cp -p`, and cargo, which gives its outputs the time of a file created at the start.
#[tokio::test]
async fn times_that_are_set_are_shown_as_they_are_and_are_in_order_with_others() {
    let world = World::new();
    let set = async |name: &str, mtime| {
        let change = AttrChange { mtime: Some(mtime), ..AttrChange::default() };
        world.vfs.setattr(world.found(name).await.ino, change, None).await.unwrap();
        assert_eq!(world.time(name).await, mtime, "{name}");
    };
    world.write("begun", "").await;
    let begun = world.time("begun").await;
    world.write("source", "1").await;
    world.write("object", "1").await;
    set("object", begun).await;
    assert!(world.time("source").await > begun, "edited while it was compiled");
    // Written again, in the second that was set.
    world.write("object", "2").await;
    assert!(world.time("object").await > world.time("source").await);

    // A time stamp, then an edit, by the local clock, which the server uses here.
    let stamp = world.vfs.now(Ino::ROOT);
    world.clock.set(stamp.secs);
    set("object", stamp).await;
    world.write("source", "2").await;
    assert!(world.time("source").await > stamp);
    let late = Timestamp { secs: stamp.secs, nanos: 850_000_000 };
    set("object", late).await;
    world.write("source", "3").await;
    assert!(world.time("source").await > late);

    // Times set while the file was open for writing, as an archiver does.
    let handle = world.open_cut("copy").await;
    world.vfs.write(handle, 0, Bytes::from_static(b"copied")).await.unwrap();
    let old = Timestamp { secs: stamp.secs, nanos: 7 };
    let change = AttrChange { mtime: Some(old), ..AttrChange::default() };
    world.vfs.setattr(world.found("copy").await.ino, change, Some(handle)).await.unwrap();
    world.close(handle).await;
    assert_eq!(world.time("copy").await, old);
}

/// `cp -p` onto an existing file, `tar x --overwrite`: the time is set while the server has not yet
/// answered the last write.
#[tokio::test]
async fn a_time_set_behind_a_write_is_shown_as_it_is() {
    let overwrite = OpenRequest::plain(Access::Write);
    let truncate = OpenRequest { truncate: true, ..overwrite };
    let append = OpenRequest { append: true, ..overwrite };
    for request in [overwrite, truncate, append] {
        // Through the descriptor of the write, through another one, and by path.
        for (through, nanos) in [(0, 0), (0, 123), (1, 0), (1, 123), (2, 0), (2, 123)] {
            let case = format!("{request:?} {through} {nanos}");
            let world = World::new();
            world.write("f", "content").await;
            world.time("f").await;
            let ino = world.found("f").await.ino;
            let writer = world.vfs.open(ino, request).await.unwrap().handle;
            let other = world.vfs.open(ino, overwrite).await.unwrap().handle;
            let answer = world.faulty.hold_answer(Call::Write, 1);
            world.vfs.write(writer, 0, Bytes::from_static(b"new")).await.unwrap();
            answer.arrived().await;
            let set = Timestamp { secs: SECOND, nanos };
            let change = AttrChange { atime: Some(set), mtime: Some(set), ..AttrChange::default() };
            let handle = [Some(writer), Some(other), None][through];
            let (stat, ()) = tokio::join!(world.vfs.setattr(ino, change, handle), async {
                tokio::task::yield_now().await;
                answer.release();
            });
            let stat = stat.unwrap();
            assert_eq!((stat.attr.mtime, stat.attr.atime), (set, set), "{case}");
            world.close(other).await;
            assert_eq!(world.time("f").await, set, "{case}: one descriptor is closed");
            if nanos == 0 {
                world.close(writer).await;
                assert_eq!(world.time("f").await, set, "{case}: closed");
                continue;
            }
            // The server chooses the time of what is written after that.
            world.vfs.write(writer, 0, Bytes::from_static(b"more")).await.unwrap();
            world.close(writer).await;
            assert!(world.time("f").await > set, "{case}: written again");
            // Size and time in one request.
            let change = AttrChange { size: Some(2), ..change };
            world.vfs.setattr(ino, change, None).await.unwrap();
            assert_eq!(world.time("f").await, set, "{case}: cut");
        }
    }
}

/// A write that begins before the server has answered the change of the time, as of two threads.
#[tokio::test]
async fn a_write_behind_a_time_that_is_being_set_has_its_own_time() {
    let world = World::new();
    world.write("f", "content").await;
    world.time("f").await;
    let ino = world.found("f").await.ino;
    let writer = world.vfs.open(ino, OpenRequest::plain(Access::Write)).await.unwrap().handle;
    let answer = world.faulty.hold_answer(Call::Fsetattr, 1);
    let set = Timestamp { secs: SECOND, nanos: 0 };
    let change = AttrChange { mtime: Some(set), ..AttrChange::default() };
    let (stat, ()) = tokio::join!(world.vfs.setattr(ino, change, Some(writer)), async {
        answer.arrived().await;
        world.vfs.write(writer, 0, Bytes::from_static(b"more")).await.unwrap();
        answer.release();
    });
    stat.unwrap();
    world.close(writer).await;
    assert!(world.time("f").await > set);
}
