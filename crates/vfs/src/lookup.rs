//! Names to inodes: lookup, and the question whether a name is still the file that it was.

use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Errno, FileKind, Name, RemotePath, Result};
use tokio::time::Instant;

use crate::inode::{Inode, Validator};
use crate::names::lose_link;
use crate::tree::Asked;
use crate::{Entry, Ino, Vfs, name};

/// How often a lookup asks again when names in its directory were changed here meanwhile. Changes
/// and look-ups of one directory exclude each other in the kernel, save for revalidations.
pub(crate) const MAX_ATTEMPTS: usize = 8;

/// How often a name is compared with an open handle when the file behind either keeps changing.
/// Both questions are on their way together, so that a file has to change within microseconds to
/// look like two.
pub(crate) const MAX_LOOKS: usize = 3;

/// What a name turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It is there.
    Found(Entry),
    /// It is not, and the kernel may take that for true for so long.
    Absent(Duration),
}

/// What the answer to a look-up is from.
enum Told {
    Now(Attr),
    /// The remote is away.
    Before(Looked),
}

impl Vfs {
    /// Finds `name` in the directory `parent`, and counts one look-up of what is found.
    pub async fn lookup(&self, parent: Ino, name_bytes: &[u8]) -> Result<Looked> {
        let looked = self.look_up(parent, name_bytes).await?;
        if let Looked::Found(entry) = &looked
            && entry.stat.attr.kind != FileKind::Directory
        {
            self.names_alone.file_looked_up();
        }
        Ok(looked)
    }

    async fn look_up(&self, parent: Ino, name_bytes: &[u8]) -> Result<Looked> {
        let name = name(name_bytes)?;
        if let Some(entry) = self.cached(parent, &name)? {
            return Ok(Looked::Found(entry));
        }
        if let Some(looked) = self.listed(parent, &name)? {
            return Ok(looked);
        }
        if let Some(looked) = self.stale_lookup(parent, &name)? {
            return Ok(looked);
        }
        self.shared.asks_piecemeal(parent);
        for attempt in 1.. {
            // The kernel must not be told a size that its own writes have outgrown.
            let known = self.tree().child(parent, &name);
            if let Some(known) = &known {
                known.writes.drained().await;
            }
            let asked = self.asked();
            let tick = asked.tick;
            let path = self.path(parent)?.join(&name);
            let telling = async { self.remote.lstat(&path).await.map(Told::Now) };
            let before = || Ok(self.stale_lookup(parent, &name)?.map(Told::Before));
            let told = match self.or_stale(telling, before).await {
                Ok(Told::Before(looked)) => return Ok(looked),
                Ok(Told::Now(attr)) => Ok(attr),
                Err(error) => Err(error),
            };
            let replaced = match (&told, &known) {
                (Ok(attr), Some(known)) => !self.is_still(known, &path, attr, asked).await,
                _ => false,
            };
            let mut tree = self.tree();
            let unchanged =
                tree.name_unchanged_since(parent, &name, tick) && tree.paths_unchanged_since(tick);
            let opened = |known: &Arc<Inode>| known.state().opened_late_since(tick);
            let late = known.as_ref().is_some_and(opened);
            if (!unchanged || late) && attempt < MAX_ATTEMPTS {
                continue;
            }
            match told {
                Ok(attr) => {
                    if let Some(known) = known.filter(|_| replaced && unchanged) {
                        tree.orphan(known.ino);
                    }
                    let inode = tree.see(parent, &name, &attr, Instant::now()).inode();
                    if unchanged {
                        tree.correct(parent, &name, Some(&attr), asked);
                        self.learn(&inode, &attr, asked);
                        tree.rebind(parent, &name, inode.state().valid_until());
                    }
                    drop(tree);
                    let mut entry = self.entry(&inode, &attr).inspect_err(|_| {
                        self.forget(inode.ino, 1);
                    })?;
                    if !unchanged {
                        entry.ttl = Duration::ZERO;
                    }
                    return Ok(Looked::Found(entry));
                }
                Err(Errno::ENOENT) if unchanged => {
                    tree.correct(parent, &name, None, asked);
                    lose_link(tree.unbind(parent, &name));
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
        let Some((inode, until)) = tree.fresh_child(parent, name, now) else { return Ok(None) };
        let Some(attr) = inode.state().fresh_attr(now) else { return Ok(None) };
        let entry = self.entry_until(&inode, &attr, until)?;
        tree.count(inode.ino);
        Ok(Some(entry))
    }

    /// Whether a name of `inode`, which is now what `attr` says, can still be the same file.
    ///
    /// SFTP tells no identity. But an open handle tells what has become of the file that it was
    /// opened on: if that now differs from what the name leads to, the name leads elsewhere. A
    /// file that nobody has open may have become another one without harm, since nothing of the
    /// old one is shown again unless size and time are the same.
    pub(crate) async fn is_still(
        &self,
        inode: &Inode,
        path: &RemotePath,
        attr: &Attr,
        asked: Asked,
    ) -> bool {
        let tick = asked.tick;
        if inode.kind != attr.kind {
            return false;
        }
        let doubtful = {
            let state = inode.state();
            let known = state.last_attr().map(|known| Validator::of(&known));
            let possible = inode.kind == FileKind::Regular && state.unchanged_since(tick);
            // Somebody else may have been told since, of a file that grows, what `attr` is too old
            // to know.
            let older = state.learned_at() <= asked.at;
            known.filter(|known| possible && *known != Validator::of(attr)).zip(Some(older))
        };
        let Some((known, mut older)) = doubtful else { return true };
        let Some(of_handle) = self.attr_by_handle(inode).await else { return true };
        let (mut of_name, mut of_handle) = (Validator::of(attr), Validator::of(&of_handle));
        for _ in 0..MAX_LOOKS {
            if of_handle == of_name || !inode.state().unchanged_since(tick) {
                return true;
            }
            if of_handle == known && older {
                return false;
            }
            // Both have moved on. So it is with a file that grows while it is looked at.
            older = true;
            let again = tokio::join!(self.remote.lstat(path), self.attr_by_handle(inode));
            match again {
                (Ok(attr), Some(open)) if attr.kind == inode.kind => {
                    (of_name, of_handle) = (Validator::of(&attr), Validator::of(&open));
                }
                (Ok(_) | Err(Errno::ENOENT), Some(_)) => return false,
                _ => return true,
            }
        }
        of_handle == of_name
    }

    /// For an inode with several names made here: whether all lead to the same file still. If
    /// not, its names are dropped, to be looked up anew.
    pub(crate) async fn names_agree(&self, inode: &Arc<Inode>, tick: u64) -> Result<bool> {
        let paths = self.tree().paths(inode.ino);
        let Some((first, others)) = paths.split_first() else { return Ok(true) };
        for other in others {
            // Together, so that the file hardly has time to change in between.
            let told = tokio::join!(self.remote.lstat(first), self.remote.lstat(other));
            let agrees = match told {
                (Ok(one), Ok(other)) => same_file(&one, &other),
                (Err(error), _) | (_, Err(error)) if error != Errno::ENOENT => return Err(error),
                _ => false,
            };
            if !agrees && inode.state().unchanged_since(tick) {
                self.tree().orphan(inode.ino);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether two names with these attributes can be of one file. To read it changes its `atime`.
pub(crate) fn same_file(one: &Attr, other: &Attr) -> bool {
    *one == Attr { atime: one.atime, ..*other }
}
