//! Names and paths on a remote: bytes, never assumed to be UTF-8.
//!
//! A [`Name`] is valid by construction. A name from a server that is invalid is an error of the
//! server, so no layer above has to check for `..`, `/` or NUL.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::printable::write_printable;

/// Why bytes are not a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidName {
    /// The name is empty.
    Empty,
    /// The name is `.` or `..`.
    Dots,
    /// The name contains `/` or NUL.
    ForbiddenByte,
    /// The name is longer than [`Name::MAX_BYTES`].
    TooLong,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidName::Empty => "an empty name",
            InvalidName::Dots => "the name \".\" or \"..\"",
            InvalidName::ForbiddenByte => "a name with '/' or NUL in it",
            InvalidName::TooLong => "a name of more than 1024 bytes",
        })
    }
}

impl std::error::Error for InvalidName {}

/// The name of a directory entry: not empty, not `.` or `..`, without `/` and NUL, and at most
/// [`Name::MAX_BYTES`] long. Most remotes have a lower limit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Longest name in bytes: the limit of every kernel for listings (`FUSE_NAME_MAX`), and four
    /// times the limit of common file systems. With it, a bound on a number of names also bounds
    /// their bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Checks and copies `bytes`.
    pub fn new(bytes: &[u8]) -> Result<Name, InvalidName> {
        match bytes {
            b"" => Err(InvalidName::Empty),
            _ if bytes.len() > Name::MAX_BYTES => Err(InvalidName::TooLong),
            b"." | b".." => Err(InvalidName::Dots),
            _ if bytes.iter().any(|byte| matches!(byte, b'/' | 0)) => {
                Err(InvalidName::ForbiddenByte)
            }
            _ => Ok(Name(bytes.into())),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Escaped, so that it is safe for a terminal.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_printable(f, &self.0, &[])
    }
}

/// A path below the root of a remote: names joined by `/`; empty for the root.
///
/// It never begins or ends with `/`, and contains no `.` or `..`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemotePath(Vec<u8>);

impl RemotePath {
    /// The root.
    pub fn root() -> RemotePath {
        RemotePath::default()
    }

    /// Joins these names, outermost first.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a Name>) -> RemotePath {
        let mut path = RemotePath::root();
        for name in names {
            path.push(name);
        }
        path
    }

    /// Splits `bytes` at `/` and checks each name; empty bytes are the root.
    pub fn parse(bytes: &[u8]) -> Result<RemotePath, InvalidName> {
        let mut path = RemotePath::root();
        if !bytes.is_empty() {
            for part in bytes.split(|byte| *byte == b'/') {
                path.push(&Name::new(part)?);
            }
        }
        Ok(path)
    }

    /// The path of `name` in this directory.
    pub fn join(&self, name: &Name) -> RemotePath {
        let mut path = RemotePath(Vec::with_capacity(self.0.len() + 1 + name.0.len()));
        path.0.extend_from_slice(&self.0);
        path.push(name);
        path
    }

    /// Appends `name` to this path.
    pub fn push(&mut self, name: &Name) {
        if !self.0.is_empty() {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(&name.0);
    }

    /// The directory that contains this path; `None` for the root.
    pub fn parent(&self) -> Option<RemotePath> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(RemotePath(self.0[..end].to_vec()))
    }

    /// The last name; `None` for the root.
    pub fn file_name(&self) -> Option<Name> {
        if self.is_root() {
            return None;
        }
        let start = self.0.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        Some(Name(self.0[start..].into()))
    }

    /// Whether this path is `top` or below it.
    pub fn is_within(&self, top: &RemotePath) -> bool {
        self.rest(top).is_some()
    }

    /// Whether this path is below `top`.
    pub fn is_below(&self, top: &RemotePath) -> bool {
        self.rest(top).is_some_and(|rest| !rest.is_empty())
    }

    /// This path after a rename of `from` to `to`; `None` if it is not within `from`.
    pub fn moved(&self, from: &RemotePath, to: &RemotePath) -> Option<RemotePath> {
        let rest = self.rest(from)?;
        let parts = [to.as_bytes(), rest].into_iter().filter(|part| !part.is_empty());
        Some(RemotePath(parts.collect::<Vec<_>>().join(&b'/')))
    }

    /// This path relative to `top`.
    fn rest(&self, top: &RemotePath) -> Option<&[u8]> {
        let rest = self.0.strip_prefix(&top.0[..])?;
        match rest {
            [b'/', rest @ ..] => Some(rest),
            rest if rest.is_empty() || top.is_root() => Some(rest),
            _ => None,
        }
    }

    /// The names, outermost first.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// Whether this path is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, without a leading `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Escaped, so that it is safe for a terminal.
impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_printable(f, &self.0, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn path(text: &str) -> RemotePath {
        RemotePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn within_and_below_are_by_whole_names() {
        for (at, top) in [("a/b", "a"), ("a", ""), ("a/b/c", "a")] {
            assert!(path(at).is_below(&path(top)) && path(at).is_within(&path(top)), "{at} {top}");
        }
        for same in ["a", "", "a/b"] {
            assert!(path(same).is_within(&path(same)) && !path(same).is_below(&path(same)));
        }
        for (at, top) in [("ab", "a"), ("a", "a/b"), ("x/a", "a"), ("", "a")] {
            assert!(
                !path(at).is_within(&path(top)) && !path(at).is_below(&path(top)),
                "{at} {top}"
            );
        }
    }

    #[test]
    fn a_rename_moves_the_paths_below_it() {
        let moved = |at: &str| path(at).moved(&path("a/b"), &path("c"));
        assert_eq!(moved("a/b"), Some(path("c")));
        assert_eq!(moved("a/b/d/e"), Some(path("c/d/e")));
        assert_eq!((moved("a"), moved("a/bc"), moved("x/a/b")), (None, None, None));
    }

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for (bytes, why) in [
            (&b""[..], InvalidName::Empty),
            (b".", InvalidName::Dots),
            (b"..", InvalidName::Dots),
            (b"a/b", InvalidName::ForbiddenByte),
            (b"/", InvalidName::ForbiddenByte),
            (b"a\0b", InvalidName::ForbiddenByte),
            (&[b'x'; Name::MAX_BYTES + 1], InvalidName::TooLong),
        ] {
            assert_eq!(Name::new(bytes), Err(why), "{bytes:?}");
        }
        for bytes in [&b"..."[..], b".a", b"a.", b" ", b"\n", b"\xff\xfe", &[b'x'; Name::MAX_BYTES]]
        {
            assert_eq!(Name::new(bytes).unwrap().as_bytes(), bytes);
        }
    }

    #[test]
    fn paths_join_and_split() {
        let root = RemotePath::root();
        let deep = root.join(&name("a")).join(&name("b c"));
        assert_eq!(deep.as_bytes(), b"a/b c");
        assert_eq!(deep.file_name().unwrap(), name("b c"));
        assert_eq!(deep.parent().unwrap().as_bytes(), b"a");
        assert_eq!(deep.parent().unwrap().parent().unwrap(), root);
        assert_eq!(root.parent(), None);
        assert_eq!(root.file_name(), None);
        assert_eq!(root.names().count(), 0);
        assert_eq!(RemotePath::parse(b"a/../b"), Err(InvalidName::Dots));
        assert_eq!(RemotePath::parse(b"/a"), Err(InvalidName::Empty));
    }

    #[test]
    fn displayed_names_are_escaped() {
        let path =
            RemotePath::root().join(&Name::new(b"\x1b[2Jgr\xc3\xbc\xc3\x9fe\xff\n").unwrap());
        assert_eq!(path.to_string(), "\\u{1b}[2Jgrüße\\xff\\n");
    }

    proptest! {
        #[test]
        fn a_path_is_its_names(parts in prop::collection::vec("[a-z.]{1,3}", 0..5)) {
            let names: Result<Vec<_>, _> =
                parts.iter().map(|part| Name::new(part.as_bytes())).collect();
            let parsed = RemotePath::parse(parts.join("/").as_bytes());
            match names {
                Ok(names) => {
                    let path = RemotePath::from_names(&names);
                    prop_assert_eq!(parsed.unwrap(), path.clone());
                    prop_assert!(path.names().eq(names.iter().map(Name::as_bytes)));
                }
                Err(why) => prop_assert_eq!(parsed, Err(why)),
            }
        }
    }
}
