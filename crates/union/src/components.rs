//! A path of the tree split into names, and its part inside a branch.

use base::RemotePath;

/// A path split into names.
pub(crate) struct Components<'p> {
    path: &'p RemotePath,
    /// Where each name ends.
    ends: Vec<usize>,
}

impl<'p> Components<'p> {
    pub(crate) fn new(path: &'p RemotePath) -> Components<'p> {
        let bytes = path.as_bytes();
        let slashes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut ends: Vec<usize> = slashes.map(|(at, _)| at).collect();
        if !bytes.is_empty() {
            ends.push(bytes.len());
        }
        Components { path, ends }
    }

    pub(crate) fn path(&self) -> &'p RemotePath {
        self.path
    }

    /// The number of names in the path.
    pub(crate) fn depth(&self) -> usize {
        self.ends.len()
    }

    /// The number of names in the path of its parent directory.
    pub(crate) fn parent_depth(&self) -> usize {
        self.depth().saturating_sub(1)
    }

    /// The first `count` names.
    pub(crate) fn prefix(&self, count: usize) -> &'p [u8] {
        &self.path.as_bytes()[..self.end(count)]
    }

    /// The names from the `skip`th to the `count`th: the path of the first `count` inside a branch
    /// whose place has `skip` names.
    pub(crate) fn subpath(&self, skip: usize, count: usize) -> RemotePath {
        if skip == 0 && count == self.depth() {
            return self.path.clone();
        }
        let start = if skip == 0 { 0 } else { self.ends[skip - 1] + 1 };
        let bytes = &self.path.as_bytes()[start.min(self.end(count))..self.end(count)];
        RemotePath::parse(bytes).expect("a part of a path between two slashes is a path")
    }

    fn end(&self, count: usize) -> usize {
        if count == 0 { 0 } else { self.ends[count - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[test]
    fn a_path_is_cut_at_its_names() {
        let at = path("a/bc/d");
        let components = Components::new(&at);
        assert_eq!((components.depth(), components.parent_depth()), (3, 2));
        assert_eq!(
            [0, 1, 2, 3].map(|count| components.prefix(count)),
            [&b""[..], b"a", b"a/bc", &b"a/bc/d"[..]]
        );
        assert_eq!(components.subpath(0, 3), at);
        assert_eq!(components.subpath(1, 3), path("bc/d"));
        assert_eq!(components.subpath(1, 2), path("bc"));
        assert_eq!(components.subpath(2, 2), path(""));
        assert_eq!(components.subpath(3, 3), path(""));
        let root = path("");
        let components = Components::new(&root);
        assert_eq!(
            (components.depth(), components.parent_depth(), components.subpath(0, 0)),
            (0, 0, path(""))
        );
    }
}
