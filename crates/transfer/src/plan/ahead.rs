//! Listings that are made before they are requested: of a local tree during a login, which takes
//! longer than listing some thousand entries; of a tree at the server by one answer.
//!
//! Invariants:
//! 1. A listing is returned once, and only while it is recent: it differs from a new listing only
//!    by what others have changed within seconds.
//! 2. Memory is bounded, and nothing more is listed when no caller can get it.
//!
//! Only for trees that the run has not begun to change; the caller ensures that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Mutex, Remote, RemotePath};
use tokio::task::JoinSet;

use super::{Entries, list};
use crate::task::AbortOnDrop;

/// Entries that are held, at most: some 8 MB.
const HELD: usize = 1 << 15;

/// Directories that are listed at once. Slow disks answer several in less time than one after
/// another.
const AT_ONCE: usize = 4;

/// Listings that are older are made again. A login takes less, unless the user types a password;
/// comparing a large tree takes more.
const OLD: Duration = Duration::from_secs(5);

/// Requests for directories that were not listed yet, after which listing ahead stops: the caller
/// is faster.
const MISSED: usize = 1024;

/// Listings of a tree that are made before they are requested, for trees that the run has not begun
/// to change. Each is returned once, and only while it is recent. Dropping this ends the listing.
pub struct Ahead {
    listings: Arc<Mutex<Listings>>,
    _walk: Option<AbortOnDrop<()>>,
}

#[derive(Default)]
struct Listings {
    made: HashMap<RemotePath, (Instant, Entries)>,
    /// Directories that were requested and not listed.
    missed: HashSet<RemotePath>,
    held: usize,
    over: bool,
}

impl Ahead {
    /// Begins to list all below `top`. To be called within a tokio runtime.
    pub fn begin(remote: Arc<dyn Remote>, top: RemotePath) -> Ahead {
        let listings: Arc<Mutex<Listings>> = Arc::default();
        let walk = tokio::spawn(walk(remote, top, listings.clone()));
        Ahead { listings, _walk: Some(AbortOnDrop(walk)) }
    }

    /// These listings, each in the order of names, made at that time. The caller bounds their
    /// number.
    pub(crate) fn of(when: Instant, made: impl Iterator<Item = (RemotePath, Entries)>) -> Ahead {
        let made = made.map(|(path, entries)| (path, (when, entries)));
        let mut listings = Listings { made: made.collect(), over: true, ..Listings::default() };
        listings.held = listings.made.values().map(|(_, entries)| entries.len()).sum();
        Ahead { listings: Arc::new(Mutex::new(listings)), _walk: None }
    }

    /// The listing of the directory, if there is one. It is not made again.
    pub(crate) fn take(&self, path: &RemotePath) -> Option<Entries> {
        let mut listings = self.listings.lock();
        match listings.made.remove(path) {
            Some((when, entries)) => {
                listings.held -= entries.len();
                (when.elapsed() < OLD).then_some(entries)
            }
            None => {
                if !listings.over {
                    listings.missed.insert(path.clone());
                    listings.over = listings.missed.len() > MISSED;
                }
                None
            }
        }
    }

    /// Returns when all is listed that will be.
    #[cfg(test)]
    async fn ended(&mut self) {
        (&mut self._walk.as_mut().unwrap().0).await.unwrap();
    }
}

async fn walk(remote: Arc<dyn Remote>, top: RemotePath, listings: Arc<Mutex<Listings>>) {
    let mut stack = vec![top];
    let mut listing = JoinSet::new();
    loop {
        while listing.len() < AT_ONCE
            && let Some(path) = stack.pop()
        {
            if listings.lock().missed.contains(&path) {
                continue;
            }
            let remote = remote.clone();
            listing.spawn(async move {
                let entries = list(&remote, &path).await;
                (path, entries)
            });
        }
        let (path, entries) = match listing.join_next().await {
            Some(Ok((path, Ok(entries)))) => (path, entries),
            // The caller that lists it gets the error.
            Some(Ok((_, Err(_)))) => continue,
            Some(Err(_)) | None => break,
        };
        let directories = entries.iter().filter(|(_, attr)| attr.is_dir());
        stack.extend(directories.map(|(name, _)| path.join(name)));
        let mut listings = listings.lock();
        if listings.over || listings.held + entries.len() > HELD {
            break;
        }
        if !listings.missed.contains(&path) {
            listings.held += entries.len();
            listings.made.insert(path, (Instant::now(), entries));
        }
    }
    let mut listings = listings.lock();
    listings.over = true;
    listings.missed = HashSet::new();
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Create;
    use testkit::{MemRemote, path};

    async fn tree() -> Arc<MemRemote> {
        let remote = Arc::new(MemRemote::new());
        for name in ["top", "top/one", "top/one/two", "beside"] {
            remote.mkdir(&path(name), 0o755).await.unwrap();
        }
        let flags = base::OpenFlags {
            create: Create::Exclusive(0o644),
            ..base::OpenFlags::existing(base::Access::Write)
        };
        remote.close(remote.open(&path("top/one/file"), flags).await.unwrap().fh);
        remote
    }

    fn names(entries: &Entries) -> Vec<String> {
        entries.iter().map(|(name, _)| name.to_string()).collect()
    }

    #[tokio::test]
    async fn a_tree_is_listed_before_it_is_asked_for_and_given_out_once() {
        let mut ahead = Ahead::begin(tree().await, path("top"));
        ahead.ended().await;
        assert_eq!(names(&ahead.take(&path("top/one")).unwrap()), ["file", "two"]);
        assert!(ahead.take(&path("top/one")).is_none());
        assert_eq!(names(&ahead.take(&path("top")).unwrap()), ["one"]);
        assert_eq!(ahead.take(&path("top/one/two")), Some(Vec::new()));
        assert!(ahead.take(&path("beside")).is_none());
        assert_eq!(ahead.listings.lock().held, 0);
    }

    #[tokio::test]
    async fn what_was_asked_for_before_is_not_listed() {
        // On one thread nothing is listed before the test waits.
        let mut ahead = Ahead::begin(tree().await, path("top"));
        assert!(ahead.take(&path("top/one")).is_none());
        ahead.ended().await;
        assert!(ahead.take(&path("top/one")).is_none());
        assert!(ahead.take(&path("top/one/two")).is_none(), "who asks for it is there first");
        assert_eq!(names(&ahead.take(&path("top")).unwrap()), ["one"]);
    }

    #[tokio::test]
    async fn what_is_old_is_not_given_out() {
        let mut ahead = Ahead::begin(tree().await, path("top"));
        ahead.ended().await;
        let long_ago = Instant::now().checked_sub(OLD).unwrap();
        for (when, _) in ahead.listings.lock().made.values_mut() {
            *when = long_ago;
        }
        assert!(ahead.take(&path("top")).is_none());
        assert!(ahead.take(&path("top/one")).is_none());
    }

    #[tokio::test]
    async fn whoever_is_faster_ends_it() {
        let mut ahead = Ahead::begin(tree().await, path("top"));
        for number in 0..=MISSED {
            assert!(ahead.take(&path(&format!("top/{number}"))).is_none());
        }
        ahead.ended().await;
        assert!(ahead.listings.lock().made.is_empty());
        assert!(ahead.listings.lock().missed.is_empty());
    }
}
