//! Small files whose pages the kernel has are revalidated before they are opened again, and not
//! fetched, unless the kernel turns out to have dropped the pages.

use std::sync::Arc;
use std::time::Duration;

use base::Access;
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::time::{Instant, advance};
use vfs::{Config, Ino, LookupResult, OpenRequest, Prefetch, Vfs};

use super::stage::{Names, list};

const FILES: usize = 200;
const LONG_AGO: i64 = 1_000_000_000;
const TRIP: Duration = Duration::from_millis(1);

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    vfs: Vfs,
    /// In the order of the listing.
    names: Vec<Vec<u8>>,
}

/// All files were listed.
async fn listed(prefetch: Prefetch) -> Mount {
    let remote = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let config = Config { login: Some((0, 0)), prefetch, ..Config::default() };
    let vfs = Vfs::new(faulty.clone(), config);
    for number in 0..FILES {
        // So that the listing is not sorted by name.
        let name = format!("f{:03}", number * 77 % FILES);
        remote.put_file(&name, "content");
        remote.set_mtime(&name, LONG_AGO);
    }
    let names = list(&vfs, Ino::ROOT, false).await.into_iter().map(|(name, ..)| name).collect();
    Mount { remote, faulty, vfs, names }
}

/// All files were read, in the order of their listing, a second ago.
async fn read_before() -> Mount {
    let mount = listed(Prefetch::All).await;
    for name in &mount.names {
        assert!(!mount.read(name, false).await);
    }
    advance(Duration::from_secs(1)).await;
    mount.faulty.reset_calls();
    mount.remote.set_latency(Some(TRIP));
    mount
}

impl Mount {
    /// Opens a file, reads it unless the kernel still has its pages, and closes it. Returns whether
    /// the kernel may keep them.
    async fn read(&self, name: &[u8], dropped: bool) -> bool {
        let LookupResult::Found(entry) = self.vfs.lookup(Ino::ROOT, name).await.unwrap() else {
            panic!("absent");
        };
        let opened = self.vfs.open(entry.ino, OpenRequest::plain(Access::Read)).await.unwrap();
        if dropped || !opened.keep_cache {
            let data = self.vfs.read(opened.handle, 0, 4096).await.unwrap();
            assert_eq!(data.to_vec(), b"content");
        }
        self.vfs.release(opened.handle);
        opened.keep_cache
    }

    fn by_name(&self) -> Vec<Vec<u8>> {
        let mut names = self.names.clone();
        names.sort();
        assert_ne!(names, self.names);
        names
    }
}

/// C2, in the order of the last time and in another one.
#[tokio::test(start_paused = true)]
async fn c2_what_the_kernel_has_is_asked_about_and_not_fetched() {
    for other_order in [false, true] {
        let mount = read_before().await;
        let names = if other_order { mount.by_name() } else { mount.names.clone() };
        let begun = Instant::now();
        for name in &names {
            assert!(mount.read(name, false).await, "its pages are kept");
        }
        let waits = begun.elapsed().as_millis() / TRIP.as_millis();
        let calls = |call| mount.faulty.calls(call);
        let (opens, lstats) = (calls(Call::Open), calls(Call::Lstat));
        assert_eq!(calls(Call::Read), 0);
        assert!(opens <= FILES as u64 / 10, "{opens} opens");
        assert!(lstats <= 2 * FILES as u64, "{lstats} questions");
        assert!(waits <= FILES as u128 / 4, "{waits} waits");
    }
}

/// A kernel that is short of memory drops pages without a notification.
#[tokio::test(start_paused = true)]
async fn what_the_kernel_has_dropped_is_fetched_ahead_again() {
    let mount = read_before().await;
    let begun = Instant::now();
    for name in mount.by_name() {
        mount.read(&name, true).await;
    }
    let waits = begun.elapsed().as_millis() / TRIP.as_millis();
    assert!(waits <= FILES as u128 / 4, "{waits} waits");
}

/// C2: a file whose size has changed is fetched, whatever pages the kernel has.
#[tokio::test(start_paused = true)]
async fn c2_what_was_listed_with_another_size_is_fetched() {
    let mount = read_before().await;
    for name in &mount.names {
        let name = std::str::from_utf8(name).unwrap();
        mount.remote.put_file(name, "content of another size");
        mount.remote.set_mtime(name, LONG_AGO + 1);
    }
    // Until the old listing has expired.
    advance(Duration::from_secs(21)).await;
    let handle = mount.vfs.opendir(Ino::ROOT).await.unwrap();
    mount.vfs.readdir(handle, 0, false, &mut Names::default()).await.unwrap();
    mount.vfs.readdir(handle, FILES as u64 + 2, false, &mut Names::default()).await.unwrap();
    mount.vfs.releasedir(handle);
    let begun = Instant::now();
    for name in &mount.names {
        let LookupResult::Found(entry) = mount.vfs.lookup(Ino::ROOT, name).await.unwrap() else {
            panic!("absent");
        };
        let opened = mount.vfs.open(entry.ino, OpenRequest::plain(Access::Read)).await.unwrap();
        assert!(!opened.keep_cache);
        let data = mount.vfs.read(opened.handle, 0, 4096).await.unwrap();
        assert_eq!(data.to_vec(), b"content of another size");
        mount.vfs.release(opened.handle);
    }
    let waits = begun.elapsed().as_millis() / TRIP.as_millis();
    assert!(waits <= FILES as u128 / 4, "{waits} waits");
}

/// Each level requests ahead what it includes, and nothing else.
#[tokio::test(start_paused = true)]
async fn a_level_of_prefetching_includes_those_before_it() {
    for (level, validates, fetches) in [
        (Prefetch::None, false, false),
        (Prefetch::Listings, false, false),
        (Prefetch::Metadata, true, false),
        (Prefetch::All, true, true),
    ] {
        let mount = listed(level).await;
        mount.remote.set_latency(Some(TRIP));
        for ahead in [fetches, validates] {
            mount.faulty.reset_calls();
            let begun = Instant::now();
            for name in &mount.names {
                mount.read(name, false).await;
            }
            let waits = begun.elapsed().as_millis() / TRIP.as_millis();
            assert_eq!(waits < FILES as u128 / 2, ahead, "{level:?}: {waits} waits");
            advance(Duration::from_secs(1)).await;
        }
    }
}

/// The directories of a walk.
#[tokio::test(start_paused = true)]
async fn directories_are_listed_ahead_only_if_that_is_wanted() {
    const DIRS: u128 = 50;
    for level in [Prefetch::None, Prefetch::Listings] {
        let remote = Arc::new(MemRemote::new());
        for number in 0..DIRS {
            remote.put_file(&format!("d{number:02}/e/f"), "");
        }
        let vfs = Vfs::new(remote.clone(), Config { prefetch: level, ..Config::default() });
        remote.set_latency(Some(TRIP));
        let begun = Instant::now();
        let mut stack = vec![Ino::ROOT];
        while let Some(dir) = stack.pop() {
            for (name, ..) in list(&vfs, dir, false).await.iter().rev() {
                let LookupResult::Found(entry) = vfs.lookup(dir, name).await.unwrap() else {
                    panic!("absent");
                };
                if entry.stat.attr.is_dir() {
                    stack.push(entry.ino);
                }
            }
        }
        let waits = begun.elapsed().as_millis() / TRIP.as_millis();
        assert_eq!(waits < DIRS * 3 / 2, level == Prefetch::Listings, "{level:?}: {waits} waits");
    }
}
