//! Names to inodes: lookup, and the question whether a name is still the file that it was.

use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Errno, FileKind, Name, Result};
use tokio::time::Instant;

use crate::inode::{Inode, Validator};
use crate::{Entry, Ino, Vfs, name};

/// How often a lookup asks again when names in its directory were changed here meanwhile. Changes
/// and look-ups of one directory exclude each other in the kernel, save for revalidations.
const MAX_ATTEMPTS: usize = 8;

/// What a name turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It is there.
    Found(Entry),
    /// It is not, and the kernel may take that for true for so long.
    Absent(Duration),
}

impl Vfs {
    /// Finds `name` in the directory `parent`, and counts one look-up of what is found.
    pub async fn lookup(&self, parent: Ino, name_bytes: &[u8]) -> Result<Looked> {
        let name = name(name_bytes)?;
        if let Some(entry) = self.cached(parent, &name)? {
            return Ok(Looked::Found(entry));
        }
        for attempt in 1.. {
            // The kernel must not be told a size that its own writes have outgrown.
            let known = self.tree().child(parent, &name);
            if let Some(known) = &known {
                known.writes.drained().await;
            }
            let tick = self.ticks.now();
            let path = self.path(parent)?.join(&name);
            let told = self.remote.lstat(&path).await;
            let replaced = match (&told, &known) {
                (Ok(attr), Some(known)) => !self.is_still(known, attr, tick).await,
                _ => false,
            };
            let mut tree = self.tree();
            let unchanged = tree.names_unchanged_since(parent, tick);
            if !unchanged && attempt < MAX_ATTEMPTS {
                continue;
            }
            match told {
                Ok(attr) => {
                    if let Some(known) = known.filter(|_| replaced && unchanged) {
                        tree.orphan(known.ino);
                    }
                    let inode = tree.see(parent, &name, &attr, Instant::now()).inode();
                    self.learn(&inode, &attr, if unchanged { tick } else { 0 });
                    tree.rebind(parent, &name, inode.state().valid_until());
                    drop(tree);
                    return self.entry(&inode, &attr).map(Looked::Found).inspect_err(|_| {
                        self.forget(inode.ino, 1);
                    });
                }
                Err(Errno::ENOENT) if unchanged => {
                    tree.unbind(parent, &name);
                    let ttl = self.config.negative;
                    return Ok(Looked::Absent(
                        self.config.kernel_entry.map_or(ttl, |cap| cap.min(ttl)),
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// The entry of a name that needs no asking, with one look-up counted.
    fn cached(&self, parent: Ino, name: &Name) -> Result<Option<Entry>> {
        let now = Instant::now();
        let mut tree = self.tree();
        let Some(inode) = tree.fresh_child(parent, name, now) else { return Ok(None) };
        let Some(attr) = inode.state().fresh_attr(now) else { return Ok(None) };
        let entry = self.entry(&inode, &attr)?;
        tree.count(inode.ino);
        Ok(Some(entry))
    }

    /// Keeps what the server told when asked at `tick`, unless it was changed here since.
    pub(crate) fn learn(&self, inode: &Inode, attr: &Attr, tick: u64) {
        let mut state = inode.state();
        if state.unchanged_since(tick) {
            state.learn(*attr, Instant::now(), self.timeout(inode.kind));
        }
    }

    /// Whether a name of `inode`, which is now what `attr` says, can still be the same file.
    ///
    /// SFTP tells no identity. But an open handle tells what has become of the file that it was
    /// opened on: if that now differs from what the name leads to, the name leads elsewhere. A
    /// file that nobody has open may have become another one without harm, since nothing of the
    /// old one is shown again unless size and time are the same.
    pub(crate) async fn is_still(&self, inode: &Inode, attr: &Attr, tick: u64) -> bool {
        if inode.kind != attr.kind {
            return false;
        }
        let fh = {
            let state = inode.state();
            let known = state.last_attr().map(|known| Validator::of(&known));
            let doubtful = inode.kind == FileKind::Regular
                && state.unchanged_since(tick)
                && known.is_some_and(|known| known != Validator::of(attr));
            state.open.first().map(|open| open.fh).filter(|_| doubtful)
        };
        let Some(fh) = fh else { return true };
        match self.remote.fstat(fh).await {
            Ok(of_handle) => {
                Validator::of(&of_handle) == Validator::of(attr)
                    || !inode.state().unchanged_since(tick)
            }
            Err(_) => true,
        }
    }

    /// For an inode with several names made here: whether all lead to the same file still. If
    /// not, its names are dropped, to be looked up anew.
    pub(crate) async fn names_agree(&self, inode: &Arc<Inode>) -> Result<bool> {
        let paths = self.tree().paths(inode.ino);
        if paths.len() < 2 {
            return Ok(true);
        }
        let mut first: Option<Attr> = None;
        for path in &paths {
            let told = self.remote.lstat(path).await;
            let agrees = match (&told, &first) {
                (Ok(attr), Some(first)) => attr == first,
                (Ok(_), None) => true,
                (Err(Errno::ENOENT), _) => false,
                (Err(error), _) => return Err(*error),
            };
            if !agrees {
                self.tree().orphan(inode.ino);
                return Ok(false);
            }
            first = told.ok();
        }
        Ok(true)
    }
}
