//! Which reports are repeated for local watchers, W4 of `docs/semantics.md`, and what is known
//! without a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, Errno, Event, RenameMode};
use testkit::clock::Clock;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, MemRemote};
use vfs::{Config, Consistency, ForeignChange, Ino, Invalidate, LookupResult, OpenRequest, Repeat};

use super::stage::{KernelMount, list};

/// Longer than the time in which reports may be about local changes.
const LATER: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Kernel;

impl Invalidate for Kernel {
    fn content(&self, _: Ino) {}
}

/// What would be repeated, and the only inode that a process watches.
#[derive(Default)]
struct Repeated {
    changes: Mutex<Vec<ForeignChange>>,
    watched: AtomicU64,
}

impl Repeat for Repeated {
    fn repeat(&self, changes: Vec<ForeignChange>) {
        self.changes.lock().unwrap().extend(changes);
    }

    fn is_watched(&self, number: u64) -> bool {
        self.watched.load(Ordering::Relaxed) == number
    }

    fn find_watchers(&self) {}
}

impl Repeated {
    async fn take(&self) -> Vec<(Event, String)> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let changes = std::mem::take(&mut *self.changes.lock().unwrap());
        let text =
            |change: ForeignChange| (change.event, change.path.join(&change.name).to_string());
        changes.into_iter().map(text).collect()
    }
}

type Mount = KernelMount<Kernel>;

async fn find(mount: &Mount, dir: Ino, name: &str) -> Ino {
    match mount.vfs.lookup(dir, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry.ino,
        LookupResult::Absent(_) => panic!("{name} is there"),
    }
}

/// A mount whose directory `d`, with the file `f`, is watched at the server.
async fn mounted() -> (Mount, Arc<Repeated>, Ino) {
    let limits = Limits { shows_inodes: true, ..Limits::default() };
    let remote = MemRemote::with(Options { clock: Clock::System, limits, ..Options::default() });
    remote.offer_watches();
    remote.put_dir("d");
    remote.put_file("d/f", "content");
    let config = Config { consistency: Consistency::Watch, ..Config::default() };
    let mount = Mount::new(remote, Config { login: Some((0, 0)), ..config });
    let repeated = Arc::<Repeated>::default();
    mount.vfs.set_repeat(repeated.clone());
    let dir = find(&mount, Ino::ROOT, "d").await;
    // It is looked up and not used.
    assert_eq!(repeated.take().await, []);
    assert_eq!(mount.vfs.watch_status().directories, 2);
    (mount, repeated, dir)
}

#[tokio::test(start_paused = true)]
async fn w4_only_changes_of_others_are_repeated() {
    let (mount, repeated, dir) = mounted().await;
    let (vfs, remote) = (&mount.vfs, &mount.remote);
    let change = |event, name: &str| (event, name.to_owned());
    remote.put_file("d/theirs", "1");
    assert_eq!(repeated.take().await, [change(Event::Created, "d/theirs")]);

    let request = OpenRequest::plain(Access::Write);
    let (own, opened) = vfs.create(dir, b"own", 0o644, true, request).await.unwrap();
    vfs.write(opened.handle, 0, "own".into()).await.unwrap();
    vfs.release(opened.handle);
    vfs.mkdir(dir, b"sub", 0o755).await.unwrap();
    vfs.rename((dir, b"own"), (dir, b"moved"), RenameMode::Replace).await.unwrap();
    assert_eq!(repeated.take().await, []);
    // Right after own changes.
    remote.remove("d/moved");
    remote.put_file("d/own", "theirs");
    let theirs = [change(Event::Removed, "d/moved"), change(Event::Created, "d/own")];
    assert_eq!(repeated.take().await, theirs);
    vfs.rmdir(dir, b"sub").await.unwrap();
    vfs.unlink(dir, b"theirs").await.unwrap();
    assert_eq!(repeated.take().await, []);
    // One that fails is none.
    assert!(vfs.mkdir(dir, b"f", 0o755).await.is_err());
    remote.remove("d/f");
    remote.put_file("d/f", "theirs");
    let theirs = [change(Event::Removed, "d/f"), change(Event::Created, "d/f")];
    assert_eq!(repeated.take().await, theirs);
    vfs.forget(own.ino, 1);
}

/// The local change fails because the other one was first, and is reported while it is in flight.
#[tokio::test(start_paused = true)]
async fn w4_a_change_that_anticipates_a_local_one_is_repeated() {
    let (mount, repeated, dir) = mounted().await;
    let (vfs, remote) = (&mount.vfs, &mount.remote);
    let held = mount.faulty.hold(Call::Mkdir, 1);
    let changing = async {
        held.arrived().await;
        remote.put_dir("d/x");
        let before = repeated.take().await;
        held.release();
        before
    };
    let (made, before) = tokio::join!(vfs.mkdir(dir, b"x", 0o755), changing);
    assert_eq!((made.err(), before), (Some(Errno::EEXIST), Vec::new()));
    assert_eq!(repeated.take().await, [(Event::Created, "d/x".to_owned())]);

    find(&mount, dir, "f").await;
    let held = mount.faulty.hold(Call::Unlink, 1);
    let changing = async {
        held.arrived().await;
        remote.remove("d/f");
        let before = repeated.take().await;
        held.release();
        before
    };
    let (removed, before) = tokio::join!(vfs.unlink(dir, b"f"), changing);
    assert_eq!((removed, before), (Err(Errno::ENOENT), Vec::new()));
    assert_eq!(repeated.take().await, [(Event::Removed, "d/f".to_owned())]);
}

/// Both in one reply of the server, and more than the watch of an unused directory outlives.
#[tokio::test(start_paused = true)]
async fn w4_a_directory_that_a_process_watches_is_in_use() {
    for is_watched in [true, false] {
        let (mount, repeated, dir) = mounted().await;
        if is_watched {
            let number = mount.vfs.getattr(dir).await.unwrap().number;
            repeated.watched.store(number, Ordering::Relaxed);
        }
        mount.remote.hold_reports(true);
        for number in 0..1500 {
            mount.remote.put_file("d/f", number.to_string());
        }
        mount.remote.hold_reports(false);
        let count = repeated.take().await.len();
        assert!(if is_watched { count == 1500 } else { count < 1500 }, "{count}");
    }
}

/// Its own watch depends on those of the directories above it.
#[tokio::test(start_paused = true)]
async fn w4_a_noisy_parent_does_not_end_the_watch_of_a_directory() {
    for is_watched in [true, false] {
        let (mount, repeated, dir) = mounted().await;
        let number = mount.vfs.getattr(dir).await.unwrap().number;
        repeated.watched.store(if is_watched { number } else { 0 }, Ordering::Relaxed);
        for number in 0..5000 {
            mount.remote.put_file("noise", number.to_string());
            if number % 100 == 0 {
                repeated.take().await;
            }
        }
        repeated.take().await;
        mount.remote.put_file("d/new", "");
        let expected = [(Event::Created, "d/new".to_owned())];
        assert_eq!(repeated.take().await, expected[usize::from(!is_watched)..]);
    }
}

#[tokio::test(start_paused = true)]
async fn w4_an_exchange_is_no_removal() {
    let (mount, repeated, dir) = mounted().await;
    mount.remote.put_file("d/g", "other");
    assert_eq!(repeated.take().await, [(Event::Created, "d/g".to_owned())]);
    tokio::time::sleep(LATER).await;
    for name in ["f", "g"] {
        find(&mount, dir, name).await;
    }
    mount.vfs.rename((dir, b"f"), (dir, b"g"), RenameMode::Exchange).await.unwrap();
    assert_eq!(repeated.take().await, []);
    mount.remote.remove("d/f");
    assert_eq!(repeated.take().await, [(Event::Removed, "d/f".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn w4_what_a_process_watches_is_watched_again_after_a_loss() {
    let (mount, repeated, dir) = mounted().await;
    mount.remote.lose_watches();
    tokio::time::sleep(LATER).await;
    // Of the root, whose listing is in use by nothing, there is none.
    assert_eq!(mount.vfs.watch_status().directories, 0);
    let number = mount.vfs.getattr(dir).await.unwrap().number;
    repeated.watched.store(number, Ordering::Relaxed);
    find(&mount, dir, "f").await;
    tokio::time::sleep(LATER).await;
    mount.remote.lose_watches();
    tokio::time::sleep(LATER).await;
    assert_eq!(mount.vfs.watch_status().directories, 2);
    mount.remote.put_file("d/new", "");
    assert_eq!(repeated.take().await, [(Event::Created, "d/new".to_owned())]);
}

/// A process that watches a tree looks each directory up once.
#[tokio::test(start_paused = true)]
async fn w4_all_of_many_directories_that_are_looked_up_at_once_are_watched() {
    let (mount, repeated, dir) = mounted().await;
    let names: Vec<String> = (0..200).map(|number| format!("sub{number}")).collect();
    names.iter().for_each(|name| mount.remote.put_dir(&format!("d/{name}")));
    repeated.take().await;
    list(&mount.vfs, dir, true).await;
    mount.remote.delay_answers_of_watches(Duration::from_millis(50));
    for name in &names {
        find(&mount, dir, name).await;
    }
    tokio::time::sleep(LATER).await;
    assert_eq!(mount.vfs.watch_status().directories, 202);
    mount.remote.put_file("d/sub199/new", "");
    assert_eq!(repeated.take().await, [(Event::Created, "d/sub199/new".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn w4_a_directory_that_is_renamed_while_its_watch_begins_is_watched() {
    let (mount, repeated, dir) = mounted().await;
    mount.remote.put_dir("d/before");
    repeated.take().await;
    mount.remote.delay_answers_of_watches(Duration::from_millis(50));
    let below = find(&mount, dir, "before").await;
    let number = mount.vfs.getattr(below).await.unwrap().number;
    repeated.watched.store(number, Ordering::Relaxed);
    mount.vfs.rename((dir, b"before"), (dir, b"after"), RenameMode::Replace).await.unwrap();
    tokio::time::sleep(2 * LATER).await;
    assert_eq!(mount.vfs.watch_status().directories, 3);
    mount.remote.put_file("d/after/new", "");
    assert_eq!(repeated.take().await, [(Event::Created, "d/after/new".to_owned())]);
}

/// After an overflow the old watches are ended while those of what a process watches begin: an
/// answer that was sent before the end of its watch names one that is of no use.
#[tokio::test(start_paused = true)]
async fn w4_a_watch_that_is_being_ended_is_not_used_again() {
    let (mount, repeated, dir) = mounted().await;
    let number = mount.vfs.getattr(dir).await.unwrap().number;
    repeated.watched.store(number, Ordering::Relaxed);
    mount.remote.delay_ends_of_watches(Duration::from_millis(50));
    mount.remote.delay_answers_of_watches(Duration::from_millis(100));
    mount.remote.overflow_reports();
    tokio::time::sleep(2 * LATER).await;
    assert_eq!((mount.vfs.watch_status().directories, mount.remote.watched()), (2, 2));
    mount.remote.put_file("d/new", "");
    assert_eq!(repeated.take().await, [(Event::Created, "d/new".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_needs_no_request() {
    let (mount, _, dir) = mounted().await;
    let vfs = &mount.vfs;
    let known = |is_watched| vfs.known_file(dir, b"f", is_watched);
    assert_eq!(known(true), Ok(None));
    let file = find(&mount, dir, "f").await;
    list(vfs, dir, true).await;
    assert_eq!(known(false), Ok(None));
    let size = |known: Result<Option<vfs::Entry>, Errno>| {
        let entry = known.unwrap()?;
        assert!(entry.ino == file && entry.ttl.is_zero() && entry.stat.ttl.is_zero());
        Some(entry.stat.attr.size)
    };
    let before = mount.faulty.round_trips();
    assert_eq!(size(known(true)), Some(7));
    assert!(vfs.known_directory(dir, b"f").is_none() && vfs.known_directory(dir, b"no").is_none());
    let entry = vfs.known_directory(Ino::ROOT, b"d").unwrap();
    assert_eq!((entry.ino, vfs.known_stat(dir).unwrap().ttl), (dir, Duration::ZERO));
    vfs.forget(dir, 1);
    vfs.forget(file, 1);
    assert_eq!(mount.faulty.round_trips(), before);

    // A writer makes it busy, until the attributes are known again.
    let opened = vfs.open(file, OpenRequest::plain(Access::Write)).await.unwrap();
    assert_eq!((known(true), vfs.known_stat(file)), (Err(Errno::EBUSY), None));
    vfs.write(opened.handle, 0, "own and longer".into()).await.unwrap();
    vfs.release(opened.handle);
    assert_eq!(known(true), Err(Errno::EBUSY));
    tokio::time::sleep(LATER).await;
    vfs.getattr(file).await.unwrap();
    assert_eq!(size(known(true)), Some(14));
    let opened = vfs.open(file, OpenRequest::plain(Access::Read)).await.unwrap();
    assert_eq!(size(known(false)), Some(14));
    vfs.release(opened.handle);
}
