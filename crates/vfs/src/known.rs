//! Look-ups and attributes from snapshots of whole directories, while they count.

use std::sync::Arc;

use base::{Attr, Name, Result};
use tokio::time::Instant;

use crate::directory::differs;
use crate::inode::Inode;
use crate::lookup::Looked;
use crate::snapshot::Told;
use crate::tree::{Asked, Tree};
use crate::{Ino, Vfs};

/// Longest name of any common file system, in bytes.
const NAME_MAX: usize = 255;

impl Vfs {
    /// What a snapshot of `parent` tells of `name`, if it counts still. A look-up of what is there
    /// is counted.
    pub(crate) fn listed(&self, parent: Ino, name: &Name) -> Result<Option<Looked>> {
        let now = Instant::now();
        let mut tree = self.tree();
        let told = tree.snapshot(parent).and_then(|snapshot| snapshot.told(name));
        // The server has an error of its own for a name that is too long.
        let told = told.filter(|_| name.as_bytes().len() <= NAME_MAX);
        match told {
            None => Ok(None),
            Some(Told::Absent(since) | Told::Unlisted(since)) => {
                let unlisted = matches!(told, Some(Told::Unlisted(_)));
                let negative = self.config.negative;
                let left = match unlisted {
                    true => tree.absent_for(parent, negative, now),
                    false => negative.saturating_sub(now.saturating_duration_since(since)),
                };
                let known = tree.child(parent, name);
                // Somebody else may have made it since, and we have seen that.
                let seen = known.is_some_and(|known| known.state().learned_at() > since);
                if left.is_zero() || seen {
                    return Ok(None);
                }
                tree.unbind(parent, name);
                let renews = unlisted && tree.search(parent, left, negative);
                drop(tree);
                if renews {
                    self.shared.list_again(parent);
                }
                Ok(Some(Looked::Absent(self.config.kernel_entry.map_or(left, |cap| cap.min(left)))))
            }
            Some(Told::Present { attr, seen_at, asked }) => {
                if !self.counts(&tree, parent, name, &attr, seen_at, now) {
                    return Ok(None);
                }
                let Some((inode, until)) =
                    self.see_listed(&mut tree, parent, name, &attr, seen_at, asked)
                else {
                    return Ok(None);
                };
                drop(tree);
                let entry = self.entry_until(&inode, &attr, until).inspect_err(|_| {
                    self.forget(inode.ino, 1);
                })?;
                Ok(Some(Looked::Found(entry)))
            }
        }
    }

    /// What a snapshot tells of the attributes of `inode`, if it counts still.
    pub(crate) fn listed_attr(&self, inode: &Arc<Inode>) -> Option<Attr> {
        let now = Instant::now();
        let mut tree = self.tree();
        let (parent, name) = tree.name(inode.ino)?;
        let told = tree.snapshot(parent)?.told(&name)?;
        let Told::Present { attr, seen_at, asked } = told else { return None };
        if !self.counts(&tree, parent, &name, &attr, seen_at, now) {
            return None;
        }
        let (seen, _) = self.see_listed(&mut tree, parent, &name, &attr, seen_at, asked)?;
        // Counted by that; nobody has looked it up.
        tree.forget(seen.ino, 1);
        (seen.ino == inode.ino).then_some(attr)
    }

    /// Whether attributes of `name` that were told at `seen_at` count still.
    fn counts(
        &self,
        tree: &Tree,
        parent: Ino,
        name: &Name,
        attr: &Attr,
        seen_at: Instant,
        now: Instant,
    ) -> bool {
        let timeout = self.timeout(attr.kind);
        let lifetime = match tree.child(parent, name) {
            Some(known) => known.state().lifetime(attr, seen_at, timeout),
            None => timeout.at_age(attr.mtime.secs),
        };
        now < seen_at + lifetime
    }

    /// Looks up a name by what a listing tells of it, unless something newer is known. One look-up
    /// is counted. Returns too until when the name is valid.
    pub(crate) fn see_listed(
        &self,
        tree: &mut Tree,
        dir: Ino,
        name: &Name,
        attr: &Attr,
        seen_at: Instant,
        asked: Asked,
    ) -> Option<(Arc<Inode>, Instant)> {
        let tick = asked.tick;
        let known = tree.child_since(dir, name);
        let trusted = match &known {
            Some((known, since)) => {
                let state = known.state();
                let differs = differs(state.last_attr(), attr);
                let outdated = !state.unchanged_since(tick)
                    || differs && state.last_attr().is_some() && state.learned_at() > seen_at;
                let doubtful =
                    differs && state.open.iter().any(|open| open.remote.opened().is_some());
                // A listing that began before the name was bound may tell of another file.
                let same = known.kind == attr.kind && *since <= tick;
                same && !outdated && !doubtful
            }
            None => tree.name_unchanged_since(dir, name, tick),
        };
        if !trusted {
            return None;
        }
        let inode = match known {
            Some((known, _)) => known,
            None => {
                let inode = tree.see(dir, name, attr, seen_at).inode();
                self.learn_from(&inode, attr, asked, seen_at);
                let until = inode.state().valid_until();
                tree.rebind(dir, name, until);
                return Some((inode, until));
            }
        };
        let newer = {
            let state = inode.state();
            state.last_attr().is_none() || state.learned_at() <= seen_at || state.is_outdated()
        };
        if newer {
            self.learn_from(&inode, attr, asked, seen_at);
        }
        let until = {
            let state = inode.state();
            // Newer attributes do not make the name newer.
            let lifetime = state.lifetime(attr, seen_at, self.timeout(attr.kind));
            state.valid_until().min(seen_at + lifetime)
        };
        let until = tree.see_again(&inode, dir, name, until);
        Some((inode, until))
    }
}
