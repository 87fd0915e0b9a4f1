//! lookup, and the check whether a name still leads to the same file.

use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Errno, FileKind, Name, RemotePath, Result};
use tokio::time::Instant;

use crate::inode::{Inode, Validator};
use crate::tree::RequestStamp;
use crate::{Entry, Ino, LookupResult, Vfs, name};

/// Attempts of a request whose names were changed locally meanwhile. The kernel excludes changes
/// and lookups of one directory from each other, except for revalidations.
pub(crate) const MAX_ATTEMPTS: usize = 8;

/// Comparisons of a name with an open handle while the file behind either keeps changing. Both
/// requests are in flight together, so a file has to change within microseconds to look like two.
pub(crate) const MAX_COMPARISONS: usize = 3;

/// An answer to a lookup.
enum Answer {
    Current(Attr),
    /// From the cache; the remote is unreachable.
    Stale(LookupResult),
}

impl Vfs {
    /// Finds `name` in the directory `parent`, and counts one lookup of the inode.
    pub async fn lookup(&self, parent: Ino, name_bytes: &[u8]) -> Result<LookupResult> {
        let mut result = self.look_up(parent, name_bytes).await?;
        if self.has_locked_files(parent) {
            match &mut result {
                LookupResult::Found(entry) if entry.stat.attr.kind != FileKind::Directory => {
                    entry.ttl = Duration::ZERO;
                }
                LookupResult::Found(_) => {}
                LookupResult::Absent(ttl) => *ttl = Duration::ZERO,
            }
        }
        if let LookupResult::Found(entry) = &result {
            match entry.stat.attr.kind {
                FileKind::Directory => self.shared.note_directory_lookup(entry.ino),
                _ => self.readdirplus_policy.note_file_lookup(),
            }
        }
        Ok(result)
    }

    async fn look_up(&self, parent: Ino, name_bytes: &[u8]) -> Result<LookupResult> {
        let name = name(name_bytes)?;
        if let Some(result) = self.known_lookup(parent, &name)? {
            match &result {
                LookupResult::Found(_) => self.counters.lookups_cached.add(1),
                LookupResult::Absent(_) => self.counters.lookups_cached_absent.add(1),
            }
            return Ok(result);
        }
        self.counters.lookups_requested.add(1);
        self.prefetch.note_piecemeal_lookup(&self.shared, parent);
        self.shared.note_directory_use(parent);
        for attempt in 1.. {
            // The kernel must not get a size from before its own writes.
            let known = self.tree().child(parent, &name);
            if let Some(known) = &known {
                known.writes.drained().await;
            }
            self.await_moves(parent).await;
            let stamp = self.stamp_request();
            let seq = stamp.seq;
            let path = self.path(parent)?.join(&name);
            let query = async { self.remote.lstat(&path).await.map(Answer::Current) };
            let stale = || Ok(self.stale_lookup(parent, &name)?.map(Answer::Stale));
            let reply = match self.or_stale_at(|| Some(path.clone()), query, stale).await {
                Ok(Answer::Stale(result)) => return Ok(result),
                Ok(Answer::Current(attr)) => Ok(attr),
                Err(error) => Err(error),
            };
            let before = known.as_ref().map(|known| known.state().version());
            let replaced = match (&reply, &known) {
                (Ok(attr), Some(known)) => !self.may_be_same_file(known, &path, attr, stamp).await,
                _ => false,
            };
            let mut tree = self.tree();
            let unchanged =
                tree.name_unchanged_since(parent, &name, seq) && tree.paths_unchanged_since(seq);
            let opened = |known: &Arc<Inode>| known.state().deferred_open_since(seq);
            let deferred_opened = known.as_ref().is_some_and(opened);
            // A file opened since the comparison may be another one than this answer is of.
            let overtaken = match known.as_ref().zip(before) {
                Some((known, before)) => match &reply {
                    Ok(attr) if unchanged && !replaced => {
                        !self.record_attr_since(known, attr, stamp, before)
                    }
                    _ => before.has_newer_open(&known.state().version()),
                },
                None => false,
            };
            let unchanged = unchanged && !overtaken;
            if (!unchanged || deferred_opened) && attempt < MAX_ATTEMPTS {
                continue;
            }
            match reply {
                Ok(attr) => {
                    let known_ino = known.as_ref().map(|known| known.ino);
                    if let Some(known) = known.filter(|_| unchanged) {
                        if replaced {
                            tree.orphan(known.ino);
                        } else if tree.is_duplicate(&known, &attr) {
                            tree.unbind(parent, &name);
                        }
                    }
                    let inode = tree.record_lookup(parent, &name, &attr, Instant::now());
                    let is_new = replaced || known_ino != Some(inode.ino);
                    // By another name of the file, this mount may have changed it meanwhile.
                    let is_outdated = is_new && !inode.state().unchanged_since(seq);
                    if is_outdated && attempt < MAX_ATTEMPTS {
                        tree.forget(inode.ino, 1);
                        continue;
                    }
                    if unchanged {
                        tree.reconcile_listing(parent, &name, Some(&attr), stamp);
                        if is_new {
                            self.record_attr(&inode, &attr, stamp);
                        }
                        tree.renew_name(parent, &name, inode.state().valid_until());
                    }
                    drop(tree);
                    let mut entry = self.entry(&inode, &attr).inspect_err(|_| {
                        self.forget(inode.ino, 1);
                    })?;
                    if !unchanged {
                        entry.ttl = Duration::ZERO;
                    }
                    return Ok(LookupResult::Found(entry));
                }
                Err(Errno::ENOENT) if unchanged => {
                    tree.reconcile_listing(parent, &name, None, stamp);
                    if let Some(inode) = tree.unbind(parent, &name) {
                        tree.note_absent(parent, &name);
                        inode.state().lose_link();
                    }
                    let ttl = self.live(|it| it.negative);
                    return Ok(LookupResult::Absent(
                        self.live(|it| it.kernel_entry).map_or(ttl, |cap| cap.min(ttl)),
                    ));
                }
                // The path led elsewhere in each attempt, so the name may exist.
                Err(Errno::ENOENT) if !tree.path_unchanged_since(parent, seq) => {
                    return Err(Errno::ESTALE);
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// The answer to a lookup without a request. Counts one lookup if the name exists.
    fn known_lookup(&self, parent: Ino, name: &Name) -> Result<Option<LookupResult>> {
        if let Some(entry) = self.cached_entry(parent, name)? {
            return Ok(Some(LookupResult::Found(entry)));
        }
        match self.lookup_cached(parent, name)? {
            None => self.stale_lookup(parent, name),
            known => {
                self.shared.note_listing_use(parent);
                Ok(known)
            }
        }
    }

    /// The entry of a name that is valid, with one lookup counted.
    fn cached_entry(&self, parent: Ino, name: &Name) -> Result<Option<Entry>> {
        let now = Instant::now();
        let mut tree = self.tree();
        let Some((inode, until)) = tree.valid_child(parent, name, now) else { return Ok(None) };
        let Some(attr) = inode.state().fresh_attr(now) else { return Ok(None) };
        let entry = self.entry_until(&inode, &attr, until)?;
        tree.note_used(inode.ino, parent, name);
        tree.add_lookup(inode.ino);
        Ok(Some(entry))
    }

    /// Whether a name that now has the attributes `attr` can still lead to the file of `inode`.
    ///
    /// Plain SFTP has no file identity. But an open handle shows the present attributes of the file
    /// that it was opened on: if they differ from those of the name, the name leads elsewhere. If a
    /// file that is not open was replaced, that does no harm, since no old content is shown unless
    /// size and time are the same.
    pub(crate) async fn may_be_same_file(
        &self,
        inode: &Inode,
        path: &RemotePath,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> bool {
        let seq = stamp.seq;
        if inode.kind != attr.kind {
            return false;
        }
        if let Some(is_same) = inode.is_same_file(&inode.state(), attr) {
            return is_same;
        }
        let suspect = {
            let state = inode.state();
            let known = state.last_attr().map(|known| Validator::of(&known));
            let possible = inode.kind == FileKind::Regular && state.unchanged_since(seq);
            // A newer answer may have arrived, for a file that grows; then `attr` is too old to
            // compare.
            let older = state.received_at() <= stamp.at;
            let of_name = Validator::of(attr);
            // Equality says nothing if a local change has outdated what is known, or an open handle
            // shows that it may be of another file.
            let may_differ = |known| {
                known != of_name
                    || state.is_invalidated()
                    || state.open.iter().any(|open| open.validator != of_name)
            };
            known.filter(|known| possible && may_differ(*known)).zip(Some(older))
        };
        let Some((known, mut older)) = suspect else { return true };
        let Some(of_handle) = self.attr_by_handle(inode).await else { return true };
        let (mut of_name, mut of_handle) = (Validator::of(attr), Validator::of(&of_handle));
        for _ in 0..MAX_COMPARISONS {
            if of_handle == of_name || !inode.state().unchanged_since(seq) {
                return true;
            }
            if of_handle == known && older {
                return false;
            }
            // Both have changed, as with a file that grows during the comparison.
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

    /// For an inode with several names made through this mount: whether all still lead to the same
    /// file. If not, its names are dropped, and the next lookup finds their files. They are not
    /// compared if the remote tells files apart: each is when it is looked up.
    pub(crate) async fn names_agree(&self, inode: &Arc<Inode>, seq: u64) -> Result<bool> {
        if inode.state().has_identity() {
            return Ok(true);
        }
        let paths = self.tree().paths(inode.ino);
        let Some((first, others)) = paths.split_first() else { return Ok(true) };
        for other in others {
            // Together, so that the file hardly has time to change in between.
            let reply = tokio::join!(self.remote.lstat(first), self.remote.lstat(other));
            let agrees = match reply {
                (Ok(one), Ok(other)) => same_file(&one, &other),
                (Err(error), _) | (_, Err(error)) if error != Errno::ENOENT => return Err(error),
                _ => false,
            };
            let unmoved = self.tree().paths_unchanged_since(seq);
            if !agrees && unmoved && inode.state().unchanged_since(seq) {
                self.tree().orphan(inode.ino);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether two names with these attributes can be of one file. `atime` is ignored, since a read
/// changes it.
pub(crate) fn same_file(one: &Attr, other: &Attr) -> bool {
    *one == Attr { atime: one.atime, ..*other }
}
