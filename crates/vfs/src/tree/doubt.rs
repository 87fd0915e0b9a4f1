//! All that is known of the remote, as a whole: how much it is, and letting go of it.

use base::Name;
use tokio::time::Instant;

use super::Tree;
use crate::Ino;
use crate::snapshot::Snapshots;

impl Tree {
    /// Names and bytes that snapshots keep.
    pub(crate) fn listed(&self) -> (usize, usize) {
        self.snapshots.size()
    }

    /// Nothing that the remote has told so far counts any longer, nor what it was asked so far and
    /// has not answered. Nodes stay, with their names and numbers. Tells the names in the root.
    pub(crate) fn doubt_everything(&mut self) -> Vec<Name> {
        let (tick, now) = (self.ticks.advance(), Instant::now());
        // What was asked by a path, of a name, and of a directory without a node; invariant 5.
        self.moved = tick;
        self.changes.doubt_all(tick);
        self.lost.note_all(tick);
        self.snapshots = Snapshots::within(self.room.listed());
        let mut in_root = Vec::new();
        for node in self.nodes.iter_mut() {
            node.hides_names = false;
            let mut state = node.inode.state();
            state.changed_at(tick);
            state.forget_made();
            state.doubt_pages();
            drop(state);
            for link in node.links.iter_mut() {
                link.valid_until = now.into();
                if link.parent == Ino::ROOT {
                    in_root.push(link.name.clone());
                }
            }
        }
        in_root
    }
}
