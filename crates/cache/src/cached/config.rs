//! The settings of a [`Cached`](crate::Cached).

use std::sync::Arc;
use std::time::Duration;

use base::RemotePath;

use super::digests::DigestSource;
use crate::SourceId;

/// When cached state is used without a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never: each call sends a request. A cached content is used once the remote has confirmed,
    /// after the call began, that the file still has it.
    #[default]
    CloseToOpen,
    /// Always: the tree never changes.
    Immutable,
}

/// Sub-trees, by their paths below the source; `*` matches any bytes of a name, and `?` one byte.
/// All paths below a match belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubTrees(Vec<Vec<Vec<u8>>>);

impl SubTrees {
    /// Adds the sub-trees that `pattern` names. Slashes at both ends do not matter; a pattern of
    /// nothing else is the whole source.
    pub fn add(&mut self, pattern: &[u8]) {
        let names = pattern.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        self.0.push(names.map(<[u8]>::to_vec).collect());
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path` is in one of them, or is the root of one.
    pub fn contain(&self, path: &RemotePath) -> bool {
        self.0.iter().any(|pattern| {
            let mut names = path.names();
            pattern.iter().all(|part| names.next().is_some_and(|name| matches(part, name)))
        })
    }
}

/// Whether `name` matches `pattern`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // The position of the last star, and the number of bytes it stands for so far: the only place
    // to retry from.
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                (at, seen) = (star_at + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Settings of a [`Cached`](crate::Cached).
#[derive(Clone)]
pub struct CachedConfig {
    /// The source of the paths. Two mounts of the same source share their records.
    pub source: SourceId,
    /// Whether recorded attributes of inodes ([`Attr::inode`](base::Attr::inode)) are shown. Not in
    /// pools, whose gateways may number files differently, nor where links are followed, since
    /// several paths may show one file.
    pub inode_attrs: bool,
    /// When cached state is used without a request.
    pub mode: Mode,
    /// Sub-trees that are [`Mode::Immutable`] under any `mode`.
    pub immutable: SubTrees,
    /// The remote is never queried: what is not cached is `EIO`.
    pub offline: bool,
    /// Names and opens are answered from the cache while the remote is unreachable. Files that are
    /// open already wait for it.
    pub stale_ok: bool,
    /// A file with an mtime younger than this is opened at the server although its content is
    /// cached, since it may well change while it is open.
    pub recent_change: Duration,
    /// The time after which the layers below give up a server that does not answer. A change whose
    /// call was cancelled may still happen until then.
    pub request_timeout: Duration,
    /// Contents are verified as a whole when they are opened, so that
    /// [`backing`](base::Remote::backing) can return their files.
    pub backing: bool,
    /// The source of digests computed at the remote, if there is one.
    pub digest_source: Option<Arc<dyn DigestSource>>,
}

impl CachedConfig {
    /// The default settings for this source: close-to-open, clocks up to five minutes apart (as
    /// Kerberos allows, and `vfs` too), changes within an hour are recent.
    pub fn new(source: SourceId) -> CachedConfig {
        CachedConfig {
            source,
            inode_attrs: true,
            mode: Mode::default(),
            immutable: SubTrees::default(),
            offline: false,
            stale_ok: false,
            recent_change: Duration::from_secs(3600),
            request_timeout: Duration::from_secs(60),
            backing: false,
            digest_source: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[test]
    fn patterns_match_whole_names() {
        let yes = |pattern: &str, name: &str| {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        };
        let no = |pattern: &str, name: &str| {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        };
        yes("a", "a");
        yes("*", "");
        yes("*", "abc");
        yes("a*", "a");
        yes("a*c*", "abcbcb");
        yes("*a?", "aaab");
        yes("v?.*", "v6.12");
        no("a", "ab");
        no("a?", "a");
        no("*a", "ab");
        no("", "a");
        no("a*b*c", "acb");
    }

    #[test]
    fn a_sub_tree_has_all_that_is_below_it() {
        let mut trees = SubTrees::default();
        trees.add(b"/src/*/");
        trees.add(b"tools/v?");
        for inside in ["src/linux", "src/linux/kernel/fork.c", "tools/v1", "tools/v1/bin"] {
            assert!(trees.contain(&path(inside)), "{inside}");
        }
        for outside in ["", "src", "tools", "tools/v10", "other/src/linux"] {
            assert!(!trees.contain(&path(outside)), "{outside}");
        }
        trees.add(b"/");
        assert!(trees.contain(&path("")));
    }
}
