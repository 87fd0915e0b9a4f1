//! The effect of an operation on one file system, and its result.

use base::{Errno, RenameMode, Result};

use super::merge::{Node, Nodes};

/// An operation on the union.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Opened for writing, created if it is absent.
    Create {
        path: &'static str,
        exclusive: bool,
    },
    Mkdir {
        path: &'static str,
    },
    Symlink {
        path: &'static str,
    },
    Unlink {
        path: &'static str,
    },
    Rmdir {
        path: &'static str,
    },
    Rename {
        from: &'static str,
        to: &'static str,
        mode: RenameMode,
    },
    Link {
        existing: &'static str,
        new: &'static str,
    },
    /// Of a directory; of any other entry nothing happens.
    Chmod {
        path: &'static str,
        perm: u32,
    },
}

/// The target of all links that operations create.
pub(crate) const TARGET: &str = "b";

/// Permission bits of the directories that operations create.
pub(crate) const PERM: u32 = 0o750;

/// The node at `path`, if its parent is a directory.
fn look<'n>(nodes: &'n Nodes, path: &str) -> Result<Option<&'n Node>> {
    for (end, _) in path.match_indices('/') {
        match nodes.get(&path[..end]) {
            Some(node) if node.is_dir() => {}
            Some(_) => return Err(Errno::ENOTDIR),
            None => return Err(Errno::ENOENT),
        }
    }
    Ok(nodes.get(path))
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

fn is_empty(nodes: &Nodes, path: &str) -> bool {
    !nodes.keys().any(|key| is_below(key, path))
}

impl Op {
    pub(crate) fn paths(&self) -> Vec<&'static str> {
        match *self {
            Op::Create { path, .. }
            | Op::Mkdir { path }
            | Op::Symlink { path }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Chmod { path, .. } => vec![path],
            Op::Rename { from, to, .. } => vec![from, to],
            Op::Link { existing, new } => vec![existing, new],
        }
    }

    /// Whether a path of it has a link in the middle, which the kernel resolves before any request:
    /// with one branch that branch's server follows it, with several no server does.
    pub(crate) fn goes_through_link(&self, nodes: &Nodes) -> bool {
        let is_link = |path: &str| matches!(nodes.get(path), Some(Node::Link { .. }));
        let through = |path: &&str| path.match_indices('/').any(|(end, _)| is_link(&path[..end]));
        self.paths().iter().any(through)
    }

    /// Whether it creates an entry, which the policy puts on a branch.
    pub(crate) fn creates(&self) -> bool {
        matches!(self, Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. })
    }

    pub(crate) fn apply(&self, nodes: &mut Nodes) -> Result<()> {
        match *self {
            Op::Create { path, exclusive } => match look(nodes, path)? {
                Some(_) if exclusive => Err(Errno::EEXIST),
                Some(Node::Dir { .. }) => Err(Errno::EISDIR),
                Some(Node::Link { .. }) => Err(Errno::ELOOP),
                Some(Node::File { .. }) => Ok(()),
                None => insert(nodes, path, Node::File { content: Vec::new(), id: None }),
            },
            Op::Mkdir { path } => make(nodes, path, Node::Dir { perm: PERM }),
            Op::Symlink { path } => {
                make(nodes, path, Node::Link { target: TARGET.into(), id: None })
            }
            Op::Unlink { path } => match look(nodes, path)? {
                None => Err(Errno::ENOENT),
                Some(Node::Dir { .. }) => Err(Errno::EISDIR),
                Some(_) => remove(nodes, path),
            },
            Op::Rmdir { path } => match look(nodes, path)? {
                None => Err(Errno::ENOENT),
                Some(Node::Dir { .. }) if is_empty(nodes, path) => remove(nodes, path),
                Some(Node::Dir { .. }) => Err(Errno::ENOTEMPTY),
                Some(_) => Err(Errno::ENOTDIR),
            },
            Op::Rename { from, to, mode } => rename(nodes, from, to, mode),
            Op::Link { existing, new } => {
                let node = look(nodes, existing)?.cloned().ok_or(Errno::ENOENT)?;
                match node {
                    _ if look(nodes, new)?.is_some() => Err(Errno::EEXIST),
                    Node::Dir { .. } => Err(Errno::EPERM),
                    node => insert(nodes, new, node),
                }
            }
            Op::Chmod { path, perm } => match look(nodes, path)? {
                None => Err(Errno::ENOENT),
                Some(Node::Dir { .. }) => insert(nodes, path, Node::Dir { perm }),
                Some(_) => Ok(()),
            },
        }
    }
}

fn insert(nodes: &mut Nodes, path: &str, node: Node) -> Result<()> {
    nodes.insert(path.to_owned(), node);
    Ok(())
}

fn remove(nodes: &mut Nodes, path: &str) -> Result<()> {
    nodes.remove(path);
    Ok(())
}

fn make(nodes: &mut Nodes, path: &str, node: Node) -> Result<()> {
    match look(nodes, path)? {
        Some(_) => Err(Errno::EEXIST),
        None => insert(nodes, path, node),
    }
}

fn rename(nodes: &mut Nodes, from: &str, to: &str, mode: RenameMode) -> Result<()> {
    let source = look(nodes, from)?.cloned();
    let target = look(nodes, to)?.cloned();
    let source = source.ok_or(Errno::ENOENT)?;
    if mode == RenameMode::NoReplace && target.is_some() {
        return Err(Errno::EEXIST);
    }
    if is_below(to, from) {
        return Err(Errno::EINVAL);
    }
    if is_below(from, to) {
        return Err(Errno::ENOTEMPTY);
    }
    if from == to {
        return Ok(());
    }
    match &target {
        Some(target) if source.is_dir() && !target.is_dir() => return Err(Errno::ENOTDIR),
        Some(target) if !source.is_dir() && target.is_dir() => return Err(Errno::EISDIR),
        Some(target) if target.is_dir() && !is_empty(nodes, to) => return Err(Errno::ENOTEMPTY),
        // Two names of one file.
        Some(Node::File { id: Some(id), .. } | Node::Link { id: Some(id), .. }) if matches!(&source, Node::File { id: Some(same), .. } | Node::Link { id: Some(same), .. } if same == id) =>
        {
            return Ok(());
        }
        _ => {}
    }
    let moved: Vec<String> =
        nodes.keys().filter(|key| *key == from || is_below(key, from)).cloned().collect();
    for path in moved {
        let node = nodes.remove(&path).unwrap();
        nodes.insert(format!("{to}{}", &path[from.len()..]), node);
    }
    Ok(())
}
