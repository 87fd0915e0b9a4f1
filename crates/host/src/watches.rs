//! Watches of directories, at servers with `watch@sshoal`.
//!
//! All are on the metadata session. When another session takes its place, the watches are lost.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use base::{
    Changes, Errno, Event, Mutex, Name, RemotePath, Result, WatchId, WatchedChange, Watches,
};
use sftp::Extension;
use sftp::codec::{WatchEvent, WatchEvents, WatchId as Number};

use crate::errno::from_sftp;
use crate::host::Host;
use crate::pool::Pool;
use crate::session::Session;

/// Bits of `inotify(7)`, which are those of the protocol.
mod bits {
    pub(super) const MODIFIED: u32 = 0x2;
    pub(super) const ATTRIBUTES: u32 = 0x4;
    pub(super) const WRITTEN: u32 = 0x8;
    pub(super) const MOVED_AWAY: u32 = 0x40;
    pub(super) const MOVED_HERE: u32 = 0x80;
    pub(super) const CREATED: u32 = 0x100;
    pub(super) const REMOVED: u32 = 0x200;
    /// Removed, renamed or unmounted, or the watch has ended.
    pub(super) const ENDED: u32 = 0x400 | 0x800 | 0x2000 | 0x8000;
    pub(super) const OVERFLOW: u32 = 0x4000;
    pub(super) const DIRECTORY: u32 = 0x4000_0000;
}

/// The watches of a host. See the [module](self).
pub(crate) struct HostWatches {
    pool: Arc<Pool>,
    /// The session that has the watches, and its number: 0 for none.
    watching: Mutex<(u64, Weak<Session>)>,
}

impl HostWatches {
    pub(crate) fn new(pool: Arc<Pool>) -> HostWatches {
        HostWatches { pool, watching: Mutex::default() }
    }

    /// The number of the metadata session.
    fn connection(&self, session: &Arc<Session>) -> u64 {
        let mut watching = self.watching.lock();
        if watching.1.as_ptr() != Arc::as_ptr(session) {
            *watching = (watching.0 + 1, Arc::downgrade(session));
        }
        watching.0
    }

    /// The session with this number, unless another one has taken its place.
    fn session(&self, connection: u64) -> Option<Arc<Session>> {
        let watching = self.watching.lock();
        watching.1.upgrade().filter(|_| watching.0 == connection)
    }
}

#[async_trait]
impl Watches for HostWatches {
    async fn watch(&self, dir: &RemotePath) -> Result<WatchId> {
        let session = self.pool.metadata().await?;
        if !session.offers(Extension::Watch) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut path = session.path(dir)?.to_vec();
        // The root may be a symbolic link; the directory is meant.
        if dir.is_root() {
            path.extend(if path.is_empty() { &b"."[..] } else { b"/." });
        }
        let watched = session.client.watch(&path).await;
        let Number(number) = watched.map_err(|error| from_sftp(&error))?;
        Ok(WatchId { connection: self.connection(&session), number })
    }

    async fn end(&self, watch: WatchId) {
        if let Some(session) = self.session(watch.connection) {
            // If it fails, the watch has ended already.
            let _ = session.client.end_watch(Number(watch.number)).await;
        }
    }

    async fn next(&self, connection: u64) -> Result<Changes> {
        let session = self.session(connection).ok_or(Errno::EHOSTDOWN)?;
        let next = session.client.next_events();
        // The wait does not keep the session.
        drop(session);
        let WatchEvents { events, .. } = next.await.map_err(|error| from_sftp(&error))?;
        if events.iter().any(|event| event.kind & bits::OVERFLOW != 0) {
            return Ok(Changes::Overflow);
        }
        let changes = events.into_iter().filter_map(|event| change(connection, event));
        Ok(Changes::Events(changes.collect()))
    }
}

/// `None` for an event that means nothing here. An entry whose name is invalid is not shown either.
fn change(connection: u64, event: WatchEvent) -> Option<WatchedChange> {
    let has = |bits: u32| event.kind & bits != 0;
    let kind = match () {
        () if has(bits::ENDED) => Event::Ended,
        () if has(bits::REMOVED) => Event::Removed,
        () if has(bits::MOVED_AWAY) => Event::MovedAway,
        () if has(bits::MOVED_HERE) => Event::MovedHere,
        () if has(bits::CREATED) => Event::Created,
        () if has(bits::MODIFIED) => Event::Modified,
        () if has(bits::ATTRIBUTES) => Event::Attributes,
        () if has(bits::WRITTEN) => Event::Written,
        () => return None,
    };
    let name = match event.name.as_ref() {
        b"" => None,
        name => Some(Name::new(name).ok()?),
    };
    let watch = WatchId { connection, number: event.id.0 };
    let (is_dir, cookie) = (has(bits::DIRECTORY), event.cookie);
    Some(WatchedChange { watch, event: kind, name, is_dir, cookie, source: 0 })
}

impl Host {
    pub(crate) fn watches_if_offered(&self) -> Option<Arc<dyn Watches>> {
        let offers = |session: &Arc<Session>| session.offers(Extension::Watch);
        self.pool.live(0).as_ref().is_some_and(offers).then(|| self.watches.clone() as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn changed(kind: u32, name: &'static [u8]) -> Option<WatchedChange> {
        let event = WatchEvent { id: Number(3), kind, cookie: 5, name: Bytes::from_static(name) };
        change(7, event)
    }

    #[test]
    fn each_event_has_its_meaning() {
        let kinds = [
            (0x2, Event::Modified),
            (0x4, Event::Attributes),
            (0x8, Event::Written),
            (0x40, Event::MovedAway),
            (0x80, Event::MovedHere),
            (0x100, Event::Created),
            (0x200, Event::Removed),
            (0x400, Event::Ended),
            (0x800, Event::Ended),
            (0x2000, Event::Ended),
            (0x8000, Event::Ended),
        ];
        for (kind, event) in kinds {
            let change = changed(kind, b"f").unwrap();
            assert_eq!(
                (change.event, change.is_dir, change.cookie),
                (event, false, 5),
                "{kind:#x}"
            );
            assert_eq!(change.watch, WatchId { connection: 7, number: 3 });
        }
        assert!(changed(0x4000_0100, b"d").unwrap().is_dir);
        assert_eq!(changed(0x4, b"").unwrap().name, None);
        assert_eq!(changed(0x1, b"f"), None, "a read");
        assert_eq!(changed(0x100, b"a/b"), None);
    }
}
