//! What is known is shown while the remote is away, however old it is (`stale=ok`).
//!
//! Attributes, names, listings and opens for reading whose content the kernel has in its pages are
//! answered without asking, for as long as the remote says that it is away. What is not known, and
//! whatever changes something, waits or fails as it would otherwise. A call that was on its way when
//! the remote went is answered in the same manner.
//!
//! The kernel is told nothing to take for true meanwhile, so that what has changed is seen as soon
//! as the remote is back. What was changed here after it was told is not shown: it was never known.
//!
//! Deliberately not here: the targets of links, and content that was never fetched.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Errno, Name, Result};

use crate::inode::Inode;
use crate::lookup::Looked;
use crate::shared::Shared;
use crate::snapshot::{Snapshot, Told, Whole};
use crate::{Ino, Vfs};

impl Shared {
    /// Whether what is known counts for as long as it is.
    pub(crate) fn serves_stale(&self) -> bool {
        self.config.serve_stale && self.remote.is_disconnected()
    }

    /// What `call` gives, or, once the remote is away, what `known` gives, if it is known.
    pub(crate) async fn or_stale<T>(
        &self,
        call: impl Future<Output = Result<T>>,
        known: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<T> {
        if !self.config.serve_stale {
            return call.await;
        }
        let mut call = pin!(call);
        let answer = tokio::select! {
            biased;
            answer = call.as_mut() => Some(answer),
            () = self.remote.disconnected() => None,
        };
        match answer {
            Some(Err(error @ (Errno::EHOSTDOWN | Errno::ETIMEDOUT))) => known()?.ok_or(error),
            Some(answer) => answer,
            None => match known()? {
                Some(known) => Ok(known),
                None => call.await,
            },
        }
    }
}

impl Vfs {
    /// What is known of the attributes of `inode`.
    pub(crate) fn stale_attr(&self, inode: &Inode) -> Option<Attr> {
        let attr = {
            let state = inode.state();
            state.last_attr().filter(|_| !state.is_outdated() && state.changing() == 0)
        };
        attr.filter(|_| self.serves_stale())
    }

    /// What is known of `name` in `parent`. A look-up of what is there is counted.
    pub(crate) fn stale_lookup(&self, parent: Ino, name: &Name) -> Result<Option<Looked>> {
        if !self.serves_stale() {
            return Ok(None);
        }
        let mut tree = self.tree();
        if let Some(inode) = tree.child(parent, name)
            && let Some(attr) = self.stale_attr(&inode)
        {
            tree.count(inode.ino);
            drop(tree);
            return self.stale_entry(&inode, &attr).map(Some);
        }
        let (attr, seen_at, asked) = match tree.snapshot(parent).and_then(|it| it.told(name)) {
            Some(Told::Present { attr, seen_at, asked }) => (attr, seen_at, asked),
            Some(Told::Absent(_) | Told::Unlisted(_)) => {
                return Ok(Some(Looked::Absent(Duration::ZERO)));
            }
            None => return Ok(None),
        };
        let seen = self.see_listed(&mut tree, parent, name, &attr, seen_at, asked);
        drop(tree);
        seen.map(|(inode, _)| self.stale_entry(&inode, &attr)).transpose()
    }

    /// An entry of what has been counted.
    fn stale_entry(&self, inode: &Arc<Inode>, attr: &Attr) -> Result<Looked> {
        let mut entry = self.entry(inode, attr).inspect_err(|_| self.forget(inode.ino, 1))?;
        entry.ttl = Duration::ZERO;
        Ok(Looked::Found(entry))
    }

    /// What is known of the names in `dir`, if all of them are.
    pub(crate) fn stale_listing(&self, dir: Ino) -> Option<Whole> {
        if !self.serves_stale() {
            return None;
        }
        self.tree().snapshot(dir).and_then(Snapshot::whole)
    }
}
