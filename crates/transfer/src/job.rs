//! Sources and target of a copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Remote, RemotePath};

use crate::digest::Digester;
use crate::options::Options;
use crate::plan::Ahead;
use crate::unseen::Unseen;

/// A place in a remote.
#[derive(Clone)]
pub struct Tree {
    /// The remote.
    pub remote: Arc<dyn Remote>,
    /// The path in the remote.
    pub path: RemotePath,
    /// The root of the remote, if that is a local directory.
    pub local: Option<PathBuf>,
    /// Makes digests of its files without transferring them.
    pub digester: Option<Arc<dyn Digester>>,
    /// Reports what SFTP does not: entries that its listings omit, names of one file. Only for a
    /// source.
    pub unseen: Option<Arc<dyn Unseen>>,
    /// Listings of it that were made already. Not for a target that has changed since.
    pub ahead: Option<Arc<Ahead>>,
}

impl Tree {
    /// The root of `remote` at a server.
    pub fn remote(remote: Arc<dyn Remote>) -> Tree {
        Tree {
            remote,
            path: RemotePath::root(),
            local: None,
            digester: None,
            unseen: None,
            ahead: None,
        }
    }

    /// The root of `remote`, which is the local directory `root`.
    pub fn local(remote: Arc<dyn Remote>, root: impl AsRef<Path>) -> Tree {
        Tree { local: Some(root.as_ref().to_owned()), ..Tree::remote(remote) }
    }

    /// This tree, from `path` on.
    pub fn at(self, path: RemotePath) -> Tree {
        Tree { path, ..self }
    }

    /// Whether its remote has requests for extended attributes and special files.
    pub(crate) fn exceeds_sftp(&self) -> bool {
        self.local.is_some() || self.remote.may_exceed_sftp()
    }

    /// Whether its listings omit no entry, also none that cannot be looked at: those of the helper,
    /// which also reads whole files.
    pub(crate) fn lists_all(&self) -> bool {
        self.remote.reads_files()
    }

    /// The path in the remote of `name`, which is relative to the tree.
    pub fn path_of(&self, name: &RemotePath) -> RemotePath {
        below(&self.path, name)
    }
}

/// `name`, relative to `base`, as a path.
pub fn below(base: &RemotePath, name: &RemotePath) -> RemotePath {
    if base.is_root() {
        return name.clone();
    }
    if name.is_root() {
        return base.clone();
    }
    let joined = [base.as_bytes(), b"/", name.as_bytes()].concat();
    RemotePath::parse(&joined).expect("names of paths are names")
}

/// A file or directory to copy.
#[derive(Clone)]
pub struct Source {
    /// `tree.path` is the file or directory itself.
    pub tree: Tree,
    /// Its path at the target, relative to that. The root for a directory whose entries are copied
    /// directly into the target, as a trailing slash requests.
    pub to: RemotePath,
}

/// What a run copies.
#[derive(Clone)]
pub struct Job {
    /// Numbered from 0 in [`Step::source`](crate::Step::source).
    pub sources: Vec<Source>,
    /// The directory to copy into. Created if it is absent; its parent must exist.
    pub target: Tree,
    /// How.
    pub options: Options,
}

/// Why a job cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Two sources have the same names at the target.
    #[error(
        "two sources become {}, and would overwrite each other; copy them one after the other, or \
         into different directories", at_target(.0)
    )]
    SameName(RemotePath),
    /// The target is not a directory.
    #[error("is no directory; name one, or one that is to be made")]
    TargetNoDirectory,
    /// `lstat` of the target failed.
    #[error("cannot be examined: {0}")]
    Target(base::Errno),
    /// An option that the engine cannot honour.
    #[error("{0}")]
    Option(&'static str),
}

fn at_target(path: &RemotePath) -> String {
    match path.is_root() {
        true => "the target itself".to_owned(),
        false => format!("\"{path}\" at the target"),
    }
}

/// Checks the names that the sources get at the target.
///
/// # Errors
/// When a name is that of another source, or below it.
pub(crate) fn check_names(to: &[RemotePath]) -> Result<(), JobError> {
    let collides = |(index, name): &(usize, &RemotePath)| {
        let mut others = to.iter().enumerate().filter(|(other, _)| other != index);
        others.any(|(_, other)| name.is_within(other))
    };
    match to.iter().enumerate().find(collides) {
        Some((_, name)) => Err(JobError::SameName(name.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    fn checked(to: &[&str]) -> Result<(), JobError> {
        check_names(&to.iter().map(|to| path(to)).collect::<Vec<_>>())
    }

    #[test]
    fn sources_that_would_meet_are_refused() {
        assert_eq!(checked(&["a", "ab"]), Ok(()));
        for colliding in [&["a", "a"][..], &["", "a"], &["", ""], &["x", "a/b", "a"]] {
            assert!(matches!(checked(colliding), Err(JobError::SameName(_))), "{colliding:?}");
        }
        let shown = |to| checked(to).unwrap_err().to_string();
        assert!(shown(&["a", "a"]).starts_with("two sources become \"a\" at the target, and"));
        assert!(shown(&["", ""]).starts_with("two sources become the target itself, and"));
    }

    #[test]
    fn a_name_is_below_its_tree() {
        assert_eq!(below(&path("a/b"), &path("c")), path("a/b/c"));
        assert_eq!(below(&path(""), &path("c")), path("c"));
        assert_eq!(below(&path("a"), &path("")), path("a"));
    }
}
