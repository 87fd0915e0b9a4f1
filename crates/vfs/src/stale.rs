//! Cached data of any age while the remote is unreachable (`stale=ok`).
//!
//! Attributes, names, listings, and opens for reading whose content is in the kernel's pages are
//! answered from the caches while the remote that has them is unreachable. All other requests, and
//! all changes, wait or fail as they would otherwise. A call that was in flight when the connection
//! was lost is answered in the same way.
//!
//! Meanwhile the kernel caches nothing, so that changes are visible as soon as the remote is back.
//! Attributes from before a local change are not returned: the result of the change was never
//! known.
//!
//! Deliberately not here: the targets of links, and content that was never fetched.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Fh, Name, Remote, RemotePath, Result};

use crate::LookupResult;
use crate::dir_cache::{CachedListing, FullListing, Lookup};
use crate::inode::Inode;
use crate::shared::Shared;
use crate::tree::Tree;
use crate::{Ino, Vfs};

impl Shared {
    /// Whether cached data of any age is valid for `ino`.
    pub(crate) fn serves_stale(&self, ino: Ino) -> bool {
        self.may_serve_stale() && self.serves_stale_in(&self.tree(), ino)
    }

    /// Like [`Shared::serves_stale`], for a caller that has locked the tree.
    pub(crate) fn serves_stale_in(&self, tree: &Tree, ino: Ino) -> bool {
        self.may_serve_stale()
            && tree.path(ino).is_none_or(|path| self.remote.is_disconnected_at(&path))
    }

    /// Like [`Shared::serves_stale`], for the entry at `path`.
    pub(crate) fn serves_stale_at(&self, path: &RemotePath) -> bool {
        self.may_serve_stale() && self.remote.is_disconnected_at(path)
    }

    fn may_serve_stale(&self) -> bool {
        self.live(|it| it.serve_stale) && self.remote.is_disconnected()
    }

    /// The remote that has the open file.
    pub(crate) fn serving(&self, fh: Option<Fh>) -> Arc<dyn Remote> {
        fh.and_then(|fh| self.remote.serving(fh)).unwrap_or_else(|| self.remote.clone())
    }

    /// The result of `call` for `ino`, or, once its remote is unreachable, that of `known`, if it
    /// has one.
    pub(crate) async fn or_stale<T>(
        &self,
        ino: Ino,
        call: impl Future<Output = Result<T>>,
        known: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<T> {
        self.or_stale_at(|| self.tree().path(ino), call, known).await
    }

    /// Like [`Shared::or_stale`], for the entry at the path that `path` returns; `None`: for an
    /// orphan.
    pub(crate) async fn or_stale_at<T>(
        &self,
        path: impl FnOnce() -> Option<RemotePath>,
        call: impl Future<Output = Result<T>>,
        known: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<T> {
        if !self.live(|it| it.serve_stale) {
            return call.await;
        }
        let mut call = pin!(call);
        // Polled only if the call waits.
        let disconnected = async {
            match path() {
                Some(path) => self.remote.disconnected_at(&path).await,
                None => self.remote.disconnected().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = call.as_mut() => Some(answer),
            () = disconnected => None,
        };
        match answer {
            Some(Err(error)) if error.is_loss() => known()?.ok_or(error),
            Some(answer) => answer,
            None => match known()? {
                Some(known) => Ok(known),
                None => call.await,
            },
        }
    }
}

impl Vfs {
    /// The cached attributes of `inode`.
    pub(crate) fn stale_attr(&self, inode: &Inode) -> Option<Attr> {
        settled_attr(inode).filter(|_| self.serves_stale(inode.ino))
    }

    /// The cached result for `name` in `parent`. Counts one lookup if it exists.
    pub(crate) fn stale_lookup(&self, parent: Ino, name: &Name) -> Result<Option<LookupResult>> {
        if !self.may_serve_stale() {
            return Ok(None);
        }
        let mut tree = self.tree();
        let path = tree.path(parent).unwrap_or_default().join(name);
        if !self.serves_stale_at(&path) {
            return Ok(None);
        }
        if let Some(inode) = tree.child(parent, name)
            && let Some(attr) = settled_attr(&inode)
        {
            tree.note_used(inode.ino, parent, name);
            tree.add_lookup(inode.ino);
            drop(tree);
            return self.stale_entry(&inode, &attr).map(Some);
        }
        let (attr, received_at, stamp) = match tree.listing(parent).and_then(|it| it.lookup(name)) {
            Some(Lookup::Present { attr, received_at, stamp }) => (attr, received_at, stamp),
            Some(Lookup::Absent(_) | Lookup::NotListed(_)) => {
                return Ok(Some(LookupResult::Absent(Duration::ZERO)));
            }
            None => return Ok(None),
        };
        let found = self.lookup_from_listing(&mut tree, parent, name, &attr, received_at, stamp);
        drop(tree);
        found.map(|(inode, _)| self.stale_entry(&inode, &attr)).transpose()
    }

    /// An entry whose lookup has been counted.
    fn stale_entry(&self, inode: &Arc<Inode>, attr: &Attr) -> Result<LookupResult> {
        let mut entry = self.entry(inode, attr).inspect_err(|_| self.forget(inode.ino, 1))?;
        entry.ttl = Duration::ZERO;
        Ok(LookupResult::Found(entry))
    }

    /// The cached listing of `dir`, if it is full.
    pub(crate) fn stale_listing(&self, dir: Ino) -> Option<FullListing> {
        if !self.serves_stale(dir) {
            return None;
        }
        self.tree().listing(dir).and_then(CachedListing::full)
    }
}

/// The last attributes of an inode without a local change since.
fn settled_attr(inode: &Inode) -> Option<Attr> {
    let state = inode.state();
    state.last_attr().filter(|_| !state.is_invalidated() && state.changes_in_flight() == 0)
}
