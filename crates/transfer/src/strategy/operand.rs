//! Sources and targets: the directory where a copy starts or ends, and the name in it.
//!
//! As in rsync: a source with a slash at its end is the contents of the directory, one without is
//! the directory itself. Pure, but for [`LocalOperand::of_target`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base::{Name, RemotePath};

/// A directory, and an entry of it or all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Empty for the home directory of a login.
    pub directory: Vec<u8>,
    /// `None` for the contents of the directory.
    pub name: Option<Name>,
}

impl Operand {
    /// Splits a path as a user writes it.
    pub fn of(path: &[u8]) -> Operand {
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match Name::new(last) {
            // Empty, `.` or `..`
            Err(_) => Operand { directory: path.to_vec(), name: None },
            Ok(name) => {
                let above = &path[..path.len() - last.len()];
                Operand { directory: without_slashes(above).to_vec(), name: Some(name) }
            }
        }
    }

    /// What is in the operand.
    pub fn entered(&self) -> Operand {
        let directory = path_in(&self.directory, &RemotePath::from_names(&self.name));
        Operand { directory, name: None }
    }

    /// Splits the path of a target, for which slashes at the end make no difference.
    pub fn of_target(path: &[u8]) -> Operand {
        Operand::of(without_slashes(path))
    }
}

/// Without slashes at the end, but for the root.
fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(path.len().min(1), |at| at + 1);
    &path[..end]
}

/// A path as the server's shell takes it, where `directory` is the root of the remote.
pub(super) fn path_in(directory: &[u8], path: &RemotePath) -> Vec<u8> {
    let mut full = directory.to_vec();
    if !path.is_root() {
        if !full.is_empty() && !full.ends_with(b"/") {
            full.push(b'/');
        }
        full.extend_from_slice(path.as_bytes());
    }
    full
}

/// A source or target at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOperand {
    /// As the user wrote it.
    pub title: OsString,
    /// The gateways that lead to it. None for a directory of this machine that is named as a remote
    /// one.
    pub gateways: Vec<String>,
    /// Its directory and name.
    pub operand: Operand,
}

impl RemoteOperand {
    /// The gateways, for messages.
    pub(super) fn hosts(&self) -> String {
        self.gateways.join(",")
    }

    /// What it becomes as a source, relative to the target; as a target, its path in its directory.
    pub(super) fn path(&self) -> RemotePath {
        RemotePath::from_names(&self.operand.name)
    }
}

/// A directory of this machine, and an entry of it or all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalOperand {
    /// Never empty.
    pub directory: PathBuf,
    /// `None` for the contents of the directory.
    pub name: Option<Name>,
}

impl LocalOperand {
    /// Splits a path as a user writes it.
    pub fn of(path: &OsStr) -> LocalOperand {
        LocalOperand::from(Operand::of(path.as_bytes()))
    }

    /// Splits the path of a target. A directory that exists is what the sources are copied into;
    /// anything else is a name that they get.
    pub fn of_target(path: &OsStr) -> LocalOperand {
        if Path::new(path).is_dir() {
            return LocalOperand { directory: path.into(), name: None };
        }
        LocalOperand::from(Operand::of_target(path.as_bytes()))
    }

    /// The path.
    pub fn path(&self) -> PathBuf {
        match &self.name {
            Some(name) => self.directory.join(OsStr::from_bytes(name.as_bytes())),
            None => self.directory.clone(),
        }
    }

    /// The path for messages.
    pub(super) fn printable(&self) -> String {
        printable(&self.path())
    }

    /// What it becomes as a source, relative to the target; as a target, its path in its directory.
    pub(super) fn relative(&self) -> RemotePath {
        RemotePath::from_names(&self.name)
    }
}

/// A path for messages: escaped.
pub(super) fn printable(path: &Path) -> String {
    base::printable(path.as_os_str().as_bytes())
}

impl From<Operand> for LocalOperand {
    fn from(operand: Operand) -> LocalOperand {
        let directory = match operand.directory.is_empty() {
            true => PathBuf::from("."),
            false => OsString::from_vec(operand.directory).into(),
        };
        LocalOperand { directory, name: operand.name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(directory: &str, name: Option<&str>) -> Operand {
        let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
        Operand { directory: directory.into(), name }
    }

    #[test]
    fn a_slash_means_what_is_in_it() {
        for (path, directory, name) in [
            ("", "", None),
            ("a", "", Some("a")),
            ("a/b", "a", Some("b")),
            ("a/b/", "a/b/", None),
            ("/a", "/", Some("a")),
            ("/", "/", None),
            ("a/..", "a/..", None),
            (".", ".", None),
            ("a//b", "a", Some("b")),
        ] {
            assert_eq!(Operand::of(path.as_bytes()), operand(directory, name), "{path}");
        }
        for (path, entered) in [("a", "a"), ("a/b", "a/b"), ("/a", "/a"), ("", "")] {
            assert_eq!(Operand::of(path.as_bytes()).entered(), operand(entered, None), "{path}");
        }
        for (path, directory, name) in
            [("a/b/", "a", Some("b")), ("a", "", Some("a")), ("", "", None), ("//", "/", None)]
        {
            assert_eq!(Operand::of_target(path.as_bytes()), operand(directory, name), "{path}");
        }
    }
}
