//! A file system in memory: inodes and names, with Linux's errnos.
//!
//! It is the core of both [`mem`](crate::mem) and [`model`](crate::model), and is verified by
//! running the model against a local directory (`tests/model_local.rs`).
//!
//! Invariants:
//! 1. An inode exists while it has a name or is held open; the root always.
//! 2. `pages` is the sum of the pages of all existing files, and never above the capacity.
//! 3. A directory has one name at most, and `parent` is the directory of that name.
//!
//! Deliberately absent: permission checks (all callers are root), the special rules of set-id bits,
//! access times on read (as with `noatime`), link counts of directories.

mod content;
mod entry;
mod rename;
mod resolve;
mod space;
mod xattr;

use std::collections::{BTreeMap, HashMap};

use base::{
    Attr, AttrChange, ChangeId, Errno, FileId, FileKind, InodeAttr, Name, Result, StatVfs,
    Timestamp,
};

use crate::Clock;
use bytes::Bytes;
use content::{Content, PAGE};
pub(crate) use entry::OpenFile;
pub use resolve::Follow;
pub(crate) use resolve::NAME_MAX;

/// Largest file in bytes: ext4's limit, far below where offsets overflow.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 44;

/// Bytes of an unlimited tree, for `statvfs`: 1 TiB, a usual disk.
const UNLIMITED_BYTES: u64 = 1 << 40;

/// Number of an inode; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// What names have in common that a file system takes for one.
pub type Folding = fn(&[u8]) -> Vec<u8>;

/// The capacity of a tree, the owner of its files, and what it shows of them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of file content in whole pages of 4096; `None` for no limit. Beyond it: `ENOSPC`.
    pub capacity_bytes: Option<u64>,
    /// Inodes. Beyond them: `ENOSPC`.
    pub inodes: u64,
    /// Owner of new files.
    pub uid: u32,
    /// Group of new files.
    pub gid: u32,
    /// Names of one directory for which this is equal are one, listed as it was created.
    pub folds: Option<Folding>,
    /// Attributes have a [`base::InodeAttr`].
    pub shows_inodes: bool,
    /// Their identities have a time of creation.
    pub shows_btimes: bool,
    /// They have no identities, as on overlayfs.
    pub hides_identities: bool,
    /// Files opened to append are written at the offsets of the requests.
    pub ignores_append: bool,
}

impl Default for Limits {
    /// No limit of content, a million inodes (a bound for a runaway test), owner 1000.
    fn default() -> Limits {
        Limits {
            capacity_bytes: None,
            inodes: 1 << 20,
            uid: 1000,
            gid: 1000,
            folds: None,
            shows_inodes: false,
            shows_btimes: false,
            hides_identities: false,
            ignores_append: false,
        }
    }
}

#[derive(Debug)]
enum Body {
    File(Content),
    Directory(Directory),
    Link(Vec<u8>),
    /// A FIFO, a socket or a device.
    Special(FileKind),
}

#[derive(Debug)]
struct Directory {
    entries: BTreeMap<Name, Ino>,
    parent: Ino,
}

#[derive(Debug)]
struct Node {
    perm: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    /// Number of names; a directory counts one.
    links: u32,
    /// Number of references by handles.
    holds: u32,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    body: Body,
}

/// A file system in memory. See the [module](self).
#[derive(Debug)]
pub struct Tree {
    nodes: HashMap<Ino, Node>,
    next: u64,
    pages: u64,
    limits: Limits,
    clock: Clock,
}

impl Tree {
    /// An empty root directory.
    pub fn new(clock: Clock, limits: Limits) -> Tree {
        let mut tree =
            Tree { nodes: HashMap::new(), next: Ino::ROOT.0 + 1, pages: 0, limits, clock };
        let directory = Directory { entries: BTreeMap::new(), parent: Ino::ROOT };
        let mut root = tree.fresh(Body::Directory(directory), 0o755);
        root.links = 1;
        tree.nodes.insert(Ino::ROOT, root);
        tree
    }

    /// A node without a name, created now.
    fn fresh(&self, body: Body, perm: u32) -> Node {
        let now = self.clock.now();
        let Limits { uid, gid, .. } = self.limits;
        let (perm, xattrs) = (perm & 0o7777, BTreeMap::new());
        let (atime, mtime, ctime) = (now, now, now);
        Node { perm, uid, gid, atime, mtime, ctime, links: 0, holds: 0, xattrs, body }
    }

    fn node(&self, ino: Ino) -> &Node {
        self.nodes.get(&ino).expect("an inode that is named or held is there (invariant 1)")
    }

    fn node_mut(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("an inode that is named or held is there (invariant 1)")
    }

    fn entries(&self, ino: Ino) -> Option<&BTreeMap<Name, Ino>> {
        match &self.node(ino).body {
            Body::Directory(directory) => Some(&directory.entries),
            _ => None,
        }
    }

    fn parent(&self, ino: Ino) -> Ino {
        match &self.node(ino).body {
            Body::Directory(directory) => directory.parent,
            _ => Ino::ROOT,
        }
    }

    /// Keeps `ino` alive until [`Tree::release`].
    pub fn hold(&mut self, ino: Ino) {
        self.node_mut(ino).holds += 1;
    }

    /// Ends one [`Tree::hold`].
    pub fn release(&mut self, ino: Ino) {
        self.node_mut(ino).holds -= 1;
        self.forget_if_unused(ino);
    }

    fn forget_if_unused(&mut self, ino: Ino) {
        let node = self.node(ino);
        if node.links > 0 || node.holds > 0 {
            return;
        }
        if let Some(Node { body: Body::File(content), .. }) = self.nodes.remove(&ino) {
            self.pages -= content.pages();
        }
    }

    /// The attributes of an existing inode.
    pub fn attr(&self, ino: Ino) -> Attr {
        let node = self.node(ino);
        let (kind, size) = match &node.body {
            Body::File(content) => (FileKind::Regular, content.size()),
            Body::Directory(_) => (FileKind::Directory, PAGE),
            Body::Link(target) => (FileKind::Symlink, target.len() as u64),
            Body::Special(kind) => (*kind, 0),
        };
        Attr {
            kind,
            perm: node.perm,
            size,
            uid: node.uid,
            gid: node.gid,
            atime: node.atime,
            mtime: node.mtime,
            inode: self.limits.shows_inodes.then(|| InodeAttr {
                id: (!self.limits.hides_identities).then(|| FileId {
                    device: 1,
                    number: ino.0,
                    // Numbers are not used again, so all may be created at once.
                    btime: self.limits.shows_btimes.then_some(Timestamp::from_secs(1)),
                }),
                change: Some(ChangeId { inode: ino.0, ctime: node.ctime }),
                links: node.links,
                blocks: size.div_ceil(PAGE) * (PAGE / 512),
                rdev: (0, 0),
                xattrs: Some(!node.xattrs.is_empty()),
            }),
        }
    }

    /// Whether attributes have a [`base::InodeAttr`].
    pub fn shows_inodes(&self) -> bool {
        self.limits.shows_inodes
    }

    /// Attributes have a [`base::InodeAttr`] from now on, or not any more.
    pub fn show_inodes(&mut self, shows: bool) {
        self.limits.shows_inodes = shows;
    }

    /// Number of names of an existing inode; one for a directory.
    pub fn link_count(&self, ino: Ino) -> u32 {
        self.node(ino).links
    }

    /// The target of a link; `EINVAL` if it is not a link.
    pub fn target(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.node(ino).body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The names in a directory, in byte order; `ENOTDIR` if it is not a directory.
    pub fn list(&self, ino: Ino) -> Result<Vec<(Name, Ino)>> {
        let entries = self.entries(ino).ok_or(Errno::ENOTDIR)?;
        Ok(entries.iter().map(|(name, ino)| (name.clone(), *ino)).collect())
    }

    /// The entry `name` of an existing directory.
    pub fn child(&self, ino: Ino, name: &Name) -> Option<Ino> {
        self.entries(ino)?.get(name).copied()
    }

    /// The error of file operations on an inode without content.
    fn no_file(body: &Body) -> Errno {
        if matches!(body, Body::Directory(_)) { Errno::EISDIR } else { Errno::EINVAL }
    }

    fn content(&self, ino: Ino) -> Result<&Content> {
        match &self.node(ino).body {
            Body::File(content) => Ok(content),
            other => Err(Tree::no_file(other)),
        }
    }

    /// Up to `len` bytes of a file from `offset`.
    pub fn read(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<u8>> {
        if offset > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        Ok(self.content(ino)?.read(offset, len))
    }

    /// Writes `data` at `offset`. If the capacity is exceeded, writes the part that fits and
    /// returns `ENOSPC`.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return self.content(ino).map(drop);
        }
        if offset > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        if offset.saturating_add(data.len() as u64) > MAX_FILE_BYTES {
            return Err(Errno::EFBIG);
        }
        let fitting = self.content(ino)?.fitting(offset, data.len() as u64, self.free_pages());
        let fitting = fitting as usize;
        if fitting > 0 {
            self.change_content(ino, |content| content.write(offset, &data[..fitting]))?;
        }
        if fitting < data.len() { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// Changes a file now.
    fn change_content(&mut self, ino: Ino, change: impl FnOnce(&mut Content)) -> Result<()> {
        let content = match &mut self.node_mut(ino).body {
            Body::File(content) => content,
            other => return Err(Tree::no_file(other)),
        };
        let before = content.pages();
        change(content);
        let after = content.pages();
        self.pages = self.pages - before + after;
        self.touch(ino);
        Ok(())
    }

    /// Truncates or extends a file; its mtime becomes now even if the size is unchanged.
    pub fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        if size > MAX_FILE_BYTES {
            self.content(ino)?;
            return Err(if size > i64::MAX as u64 { Errno::EINVAL } else { Errno::EFBIG });
        }
        self.change_content(ino, |content| content.set_size(size))
    }

    /// Applies all of `change`, or nothing if any part is invalid.
    ///
    /// Times are truncated to seconds, as in SFTP version 3.
    pub fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()> {
        if change.perm.is_some() && matches!(self.node(ino).body, Body::Link(_)) {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(size) = change.size {
            self.set_size(ino, size)?;
        }
        self.note_change(ino);
        let node = self.node_mut(ino);
        node.perm = change.perm.map_or(node.perm, |perm| perm & 0o7777);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.atime = change.atime.map_or(node.atime, |time| Timestamp::from_secs(time.secs));
        node.mtime = change.mtime.map_or(node.mtime, |time| Timestamp::from_secs(time.secs));
        Ok(())
    }

    /// Sets mtime and ctime to now.
    fn touch(&mut self, ino: Ino) {
        let now = self.clock.now();
        let node = self.node_mut(ino);
        (node.mtime, node.ctime) = (now, now);
    }

    /// Sets the ctime to now.
    fn note_change(&mut self, ino: Ino) {
        let now = self.clock.now();
        self.node_mut(ino).ctime = now;
    }

    /// Sets the ctime, which is that of the last change otherwise.
    pub fn set_ctime(&mut self, ino: Ino, ctime: Timestamp) {
        self.node_mut(ino).ctime = ctime;
    }

    fn free_pages(&self) -> u64 {
        self.total_pages() - self.pages
    }

    fn total_pages(&self) -> u64 {
        match self.limits.capacity_bytes {
            // A tree without a limit must not exceed the reported size either.
            None => (UNLIMITED_BYTES / PAGE).max(self.pages.saturating_mul(2)),
            // A capacity below the present use leaves nothing free.
            Some(bytes) => (bytes / PAGE).max(self.pages),
        }
    }

    /// Changes the capacity; existing content is kept, even if it exceeds the capacity.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.limits.capacity_bytes = bytes;
    }

    /// Statistics of the file system.
    pub fn statvfs(&self) -> StatVfs {
        let files_free = self.limits.inodes.saturating_sub(self.nodes.len() as u64);
        StatVfs {
            block_size: PAGE,
            fragment_size: PAGE,
            blocks: self.total_pages(),
            blocks_free: self.free_pages(),
            blocks_available: self.free_pages(),
            files: self.limits.inodes,
            files_free,
            files_available: files_free,
            fsid: 1,
            name_max: NAME_MAX as u64,
            flags: 0,
        }
    }

    /// Number of existing inodes, including the root.
    pub fn inodes(&self) -> usize {
        self.nodes.len()
    }
}
