//! Lookups and attributes that are answered from the directory cache.

use std::sync::Arc;

use base::{Attr, Name, Result};
use tokio::time::Instant;

use crate::LookupResult;
use crate::cover::MAX_AGE;
use crate::dir_cache::Lookup;
use crate::directory::differs;
use crate::inode::Inode;
use crate::tree::{RequestStamp, Tree};
use crate::{Ino, Vfs};

/// Longest name of any common file system, in bytes.
const NAME_MAX: usize = 255;

impl Vfs {
    /// The answer to a lookup of `name` by a valid listing of `parent`. Counts one lookup if the
    /// name exists.
    pub(crate) fn lookup_cached(&self, parent: Ino, name: &Name) -> Result<Option<LookupResult>> {
        let now = Instant::now();
        let mut tree = self.tree();
        if tree.validates_names_since(now).is_some() {
            return Ok(None);
        }
        let answer = tree.listing(parent).and_then(|listing| listing.lookup(name));
        // The server has an error of its own for a name that is too long.
        let answer = answer.filter(|_| name.as_bytes().len() <= NAME_MAX);
        match answer {
            None => Ok(None),
            Some(Lookup::Absent(since) | Lookup::NotListed(since)) => {
                let unlisted = matches!(answer, Some(Lookup::NotListed(_)));
                let negative = self.live(|it| it.negative);
                let left = match unlisted {
                    true => tree.absence_lifetime(parent, negative, now),
                    false => negative.saturating_sub(now.saturating_duration_since(since)),
                };
                let known = tree.child(parent, name);
                // Another machine may have created it since, and an answer has shown that.
                let is_newer = known.is_some_and(|known| known.state().received_at() > since);
                if left.is_zero() || is_newer {
                    return Ok(None);
                }
                tree.unbind(parent, name);
                let refreshes = unlisted && tree.note_search(parent, left, negative);
                drop(tree);
                if refreshes {
                    self.prefetch.refresh_listing(&self.shared, parent);
                }
                Ok(Some(LookupResult::Absent(
                    self.live(|it| it.kernel_entry).map_or(left, |cap| cap.min(left)),
                )))
            }
            Some(Lookup::Present { attr, received_at, stamp }) => {
                if !self.is_fresh(&tree, parent, name, &attr, (received_at, stamp)) {
                    return Ok(None);
                }
                let Some((inode, until)) =
                    self.lookup_from_listing(&mut tree, parent, name, &attr, received_at, stamp)
                else {
                    return Ok(None);
                };
                drop(tree);
                let entry = self.entry_until(&inode, &attr, until).inspect_err(|_| {
                    self.forget(inode.ino, 1);
                })?;
                Ok(Some(LookupResult::Found(entry)))
            }
        }
    }

    /// The attributes of `inode` in a valid listing of its directory.
    pub(crate) fn cached_listing_attr(&self, inode: &Arc<Inode>) -> Option<Attr> {
        let mut tree = self.tree();
        let (parent, name) = tree.used_name(inode.ino)?;
        let answer = tree.listing(parent)?.lookup(&name)?;
        let Lookup::Present { attr, received_at, stamp } = answer else { return None };
        if !self.is_fresh(&tree, parent, &name, &attr, (received_at, stamp)) {
            return None;
        }
        let (found_inode, _) =
            self.lookup_from_listing(&mut tree, parent, &name, &attr, received_at, stamp)?;
        // The kernel has not looked it up, so the lookup counted above is dropped.
        tree.forget(found_inode.ino, 1);
        (found_inode.ino == inode.ino).then_some(attr)
    }

    /// Whether attributes of `name` that were requested at `stamp` and received at `received_at`
    /// are fresh.
    fn is_fresh(
        &self,
        tree: &Tree,
        parent: Ino,
        name: &Name,
        attr: &Attr,
        (received_at, stamp): (Instant, RequestStamp),
    ) -> bool {
        let timeout = self.timeout(attr.kind);
        let lifetime = match tree.child(parent, name) {
            Some(known) => known.state().lifetime(attr, received_at, stamp.at, timeout),
            None if tree.covers_entry(parent, attr, stamp.at) => MAX_AGE,
            None => timeout.at_age(attr.mtime.secs),
        };
        Instant::now() < received_at + lifetime
    }

    /// Looks `name` up by its entry in a listing, unless newer information is known. Counts one
    /// lookup. Also returns until when the name is valid.
    pub(crate) fn lookup_from_listing(
        &self,
        tree: &mut Tree,
        dir: Ino,
        name: &Name,
        attr: &Attr,
        received_at: Instant,
        stamp: RequestStamp,
    ) -> Option<(Arc<Inode>, Instant)> {
        let seq = stamp.seq;
        let known = tree.child_since(dir, name);
        let trusted = match &known {
            Some((known, since)) => {
                let state = known.state();
                let differs = differs(state.last_attr(), attr);
                let is_older = !state.unchanged_since(seq)
                    || differs && state.last_attr().is_some() && state.received_at() > received_at;
                let may_be_other =
                    differs && state.open.iter().any(|open| open.remote.opened().is_some());
                // A listing that began before the name was bound may contain another file.
                let same = known.kind == attr.kind
                    && known.is_same_file(&state, attr) != Some(false)
                    && *since <= seq;
                same && !is_older && !may_be_other
            }
            None => true,
        };
        if !trusted || !tree.name_unchanged_since(dir, name, seq) {
            return None;
        }
        let inode = match known {
            // A lookup finds the node of the other names.
            Some((known, _)) if tree.is_duplicate(&known, attr) => return None,
            Some((known, _)) => {
                tree.note_linked(known.ino, attr);
                known
            }
            None => {
                let inode = tree.record_lookup(dir, name, attr, received_at);
                if !inode.state().unchanged_since(seq) {
                    // Changed by another of its names since.
                    tree.forget(inode.ino, 1);
                    return None;
                }
                self.record_attr_at(&inode, attr, stamp, received_at);
                let until = inode.state().valid_until();
                tree.renew_name(dir, name, until);
                return Some((inode, until));
            }
        };
        let newer = {
            let state = inode.state();
            state.last_attr().is_none()
                || state.received_at() <= received_at
                || state.is_invalidated()
        };
        if newer {
            self.record_attr_at(&inode, attr, stamp, received_at);
        }
        let until = {
            let state = inode.state();
            // Newer attributes do not make the name newer.
            let lifetime = state.lifetime(attr, received_at, stamp.at, self.timeout(attr.kind));
            state.valid_until().min(received_at + lifetime)
        };
        let until = tree.renew_lookup(&inode, dir, name, until);
        Some((inode, until))
    }
}
