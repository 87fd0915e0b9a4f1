//! A path of the tree as the names that lead to it, and what is left of it inside a branch.

use base::RemotePath;

/// A path cut at its names.
pub(crate) struct Steps<'p> {
    path: &'p RemotePath,
    /// Where each name ends.
    ends: Vec<usize>,
}

impl<'p> Steps<'p> {
    pub(crate) fn new(path: &'p RemotePath) -> Steps<'p> {
        let bytes = path.as_bytes();
        let slashes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut ends: Vec<usize> = slashes.map(|(at, _)| at).collect();
        if !bytes.is_empty() {
            ends.push(bytes.len());
        }
        Steps { path, ends }
    }

    pub(crate) fn path(&self) -> &'p RemotePath {
        self.path
    }

    /// How many names the path has.
    pub(crate) fn depth(&self) -> usize {
        self.ends.len()
    }

    /// How many names lead to the directory that it is in.
    pub(crate) fn above(&self) -> usize {
        self.depth().saturating_sub(1)
    }

    /// The first `count` names.
    pub(crate) fn prefix(&self, count: usize) -> &'p [u8] {
        &self.path.as_bytes()[..self.end(count)]
    }

    /// The names from the `skip`th to the `count`th: the path of the first `count` inside a branch
    /// whose place has `skip` names.
    pub(crate) fn inside(&self, skip: usize, count: usize) -> RemotePath {
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
        let steps = Steps::new(&at);
        assert_eq!((steps.depth(), steps.above()), (3, 2));
        assert_eq!(
            [0, 1, 2, 3].map(|count| steps.prefix(count)),
            [&b""[..], b"a", b"a/bc", &b"a/bc/d"[..]]
        );
        assert_eq!(steps.inside(0, 3), at);
        assert_eq!(steps.inside(1, 3), path("bc/d"));
        assert_eq!(steps.inside(1, 2), path("bc"));
        assert_eq!(steps.inside(2, 2), path(""));
        assert_eq!(steps.inside(3, 3), path(""));
        let root = path("");
        let steps = Steps::new(&root);
        assert_eq!((steps.depth(), steps.above(), steps.inside(0, 0)), (0, 0, path("")));
    }
}
