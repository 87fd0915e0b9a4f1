//! Names and attributes as an application sees them, and how long the kernel may cache them.

use std::time::Duration;

use crate::{Attr, Timestamp};

/// The node id: the kernel's name for an inode. Never reused during a mount, unlike the inode
/// number that users see ([`Stat::number`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the mount.
    pub const ROOT: Ino = Ino(1);
}

/// Attributes as an application sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `st_ino`.
    pub number: u64,
    /// Owners mapped to local ids, times as precise as they are known.
    pub attr: Attr,
    /// `st_nlink`: the remote's, if it is known; otherwise links made through this mount, and 1 for
    /// directories, which means unknown.
    pub nlink: u32,
    /// `st_ctime`: the remote's, if it is known; otherwise the last change made through this mount,
    /// or `mtime`.
    pub ctime: Timestamp,
    /// How long the kernel may cache these attributes.
    pub ttl: Duration,
}

/// A name that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its inode, of which one lookup has been counted.
    pub ino: Ino,
    /// Its attributes.
    pub stat: Stat,
    /// How long the kernel may cache that the name leads to this inode.
    pub ttl: Duration,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// The name exists.
    Found(Entry),
    /// The name is absent, and the kernel may cache that for this long.
    Absent(Duration),
}
