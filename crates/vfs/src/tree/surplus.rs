//! Which nodes the kernel could be asked to forget.

use base::Name;

use super::{Node, Tree};
use crate::Ino;

impl Tree {
    /// What the kernel could forget so that `limit` nodes are left: names of those that were
    /// looked up longest ago, that nobody has open, and below which there is nothing.
    pub(crate) fn surplus(&self, limit: usize) -> Vec<(Ino, Name)> {
        let surplus = self.nodes.len().saturating_sub(limit);
        if surplus == 0 {
            return Vec::new();
        }
        let idle = |(ino, node): &(&Ino, &Node)| {
            **ino != Ino::ROOT && node.children == 0 && node.inode.is_idle()
        };
        let name = |(_, node): (&Ino, &Node)| Some((node.looked_up, node.names.first()?.clone()));
        let mut idle: Vec<_> = self.nodes.iter().filter(idle).filter_map(name).collect();
        if surplus < idle.len() {
            idle.select_nth_unstable_by_key(surplus, |(looked_up, _)| *looked_up);
            idle.truncate(surplus);
        }
        idle.sort_unstable_by_key(|(looked_up, _)| *looked_up);
        idle.into_iter().map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Attr, FileKind, Timestamp};
    use std::sync::Arc;
    use tokio::time::Instant;

    #[test]
    fn the_longest_unused_leaves_are_surplus() {
        let mut tree = Tree::new(Arc::default());
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let mut see = |dir, text: &str, kind| {
            let time = Timestamp::default();
            let attr = Attr { kind, perm: 0, size: 0, uid: 0, gid: 0, atime: time, mtime: time };
            tree.see(dir, &name(text), &attr, Instant::now()).inode().ino
        };
        let dir = see(Ino::ROOT, "dir", FileKind::Directory);
        let a = see(dir, "a", FileKind::Regular);
        see(dir, "b", FileKind::Regular);
        see(dir, "c", FileKind::Regular);
        tree.count(a);
        assert!(tree.surplus(5).is_empty());
        let surplus = |limit| tree.surplus(limit);
        assert_eq!(surplus(4), [(dir, name("b"))]);
        assert_eq!(surplus(3), [(dir, name("b")), (dir, name("c"))]);
        assert_eq!(surplus(0), [(dir, name("b")), (dir, name("c")), (dir, name("a"))]);
    }
}
