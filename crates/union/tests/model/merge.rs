//! The tree that a union shows, as a pure function of its branches.

use std::collections::{BTreeMap, BTreeSet};

use base::{FileKind, RemotePath};
use testkit::MemRemote;
use testkit::tree::{Follow, Ino, Tree};
use union::Mode;

/// The entry at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Dir {
        perm: u32,
    },
    /// Two names with equal `id` are one file.
    File {
        content: Vec<u8>,
        id: Option<(usize, Ino)>,
    },
    Link {
        target: Vec<u8>,
        /// Two names with equal `id` are one symbolic link.
        id: Option<(usize, Ino)>,
    },
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        matches!(self, Node::Dir { .. })
    }
}

/// A tree as a map of its paths; the root is the empty one.
pub(crate) type Nodes = BTreeMap<String, Node>;

/// The present state of one branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) place: &'static str,
    pub(crate) mode: Mode,
    pub(crate) nodes: Nodes,
}

pub(crate) fn below(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// All entries of a branch.
pub(crate) fn dump(index: usize, remote: &MemRemote) -> Nodes {
    let mut nodes = Nodes::new();
    remote.edit(|tree| visit(index, tree, String::new(), &mut nodes));
    nodes
}

fn visit(index: usize, tree: &Tree, path: String, nodes: &mut Nodes) {
    let at = RemotePath::parse(path.as_bytes()).unwrap();
    let ino = tree.lookup(&at, Follow::No).unwrap();
    let attr = tree.attr(ino);
    let node = match attr.kind {
        FileKind::Directory => Node::Dir { perm: attr.perm },
        FileKind::Symlink => {
            Node::Link { target: tree.target(ino).unwrap(), id: Some((index, ino)) }
        }
        _ => {
            let content = tree.read(ino, 0, u64::MAX).unwrap();
            Node::File { content, id: Some((index, ino)) }
        }
    };
    for (name, _) in tree.list(ino).unwrap_or_default() {
        visit(index, tree, below(&path, &name.to_string()), nodes);
    }
    nodes.insert(path, node);
}

impl Branch {
    /// The branch's entry at a path of the union.
    pub(crate) fn at(&self, path: &str) -> Option<&Node> {
        let inside = if self.place.is_empty() {
            path
        } else if path == self.place {
            ""
        } else {
            path.strip_prefix(self.place)?.strip_prefix('/')?
        };
        self.nodes.get(inside)
    }

    fn has_dir(&self, path: &str) -> bool {
        self.at(path).is_some_and(Node::is_dir)
    }

    /// The names in the branch's directory at a path of the union.
    fn names(&self, path: &str) -> Vec<String> {
        let inside = path.strip_prefix(self.place).unwrap().trim_start_matches('/');
        let names = self.nodes.keys().filter(|key| !key.is_empty());
        let names = names.map(|key| key.rsplit_once('/').unwrap_or(("", key)));
        names.filter(|(parent, _)| *parent == inside).map(|(_, name)| name.to_owned()).collect()
    }
}

/// Whether a place is at or below `path`.
pub(crate) fn is_fixed(branches: &[Branch], path: &str) -> bool {
    let within = |place: &str| {
        path.is_empty()
            || place == path
            || place.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
    };
    branches.iter().any(|branch| within(branch.place))
}

/// The tree that the union of these branches shows.
pub(crate) fn merge(branches: &[Branch]) -> Nodes {
    let mut order: Vec<&Branch> = branches.iter().collect();
    let depth = |branch: &&Branch| branch.place.split('/').filter(|name| !name.is_empty()).count();
    order.sort_by_key(|branch| std::cmp::Reverse(depth(branch)));
    let mut shown = Nodes::new();
    let at_root: Vec<&Branch> =
        order.iter().copied().filter(|branch| branch.place.is_empty()).collect();
    merge_dir(branches, &order, "", &at_root, &mut shown);
    shown
}

/// `parts`: the branches whose directory at `path` is part of the shown one.
fn merge_dir(all: &[Branch], order: &[&Branch], path: &str, parts: &[&Branch], shown: &mut Nodes) {
    let first = parts.first().and_then(|part| part.at(path)).cloned();
    shown.insert(path.to_owned(), first.unwrap_or(Node::Dir { perm: 0o755 }));
    let mut names: BTreeSet<String> = parts.iter().flat_map(|part| part.names(path)).collect();
    for place in all.iter().map(|branch| branch.place).filter(|place| *place != path) {
        let rest = if path.is_empty() { Some(place) } else { place.strip_prefix(path) };
        let rest = rest.filter(|rest| path.is_empty() || rest.starts_with('/'));
        let name = rest.and_then(|rest| rest.trim_start_matches('/').split('/').next());
        names.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    for name in names {
        let child = below(path, &name);
        let is_part = |branch: &&&Branch| {
            let inherits = parts.iter().any(|part| std::ptr::eq(*part, **branch));
            (inherits || branch.place == child) && branch.has_dir(&child)
        };
        let dirs: Vec<&Branch> = order.iter().filter(is_part).copied().collect();
        let first = parts.iter().find_map(|part| part.at(&child));
        match first {
            _ if is_fixed(all, &child) => merge_dir(all, order, &child, &dirs, shown),
            Some(node) if !node.is_dir() => {
                shown.insert(child, node.clone());
            }
            _ => merge_dir(all, order, &child, &dirs, shown),
        }
    }
}
