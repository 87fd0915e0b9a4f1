//! Renaming, with Linux's order of checks.

use base::{Errno, RemotePath, RenameMode, Result};

use super::{Follow, Ino, Tree};

impl Tree {
    /// Gives `from` the name `to`, as `renameat2(2)`.
    ///
    /// | `from` | `to` | answer |
    /// |---|---|---|
    /// | anything | another name of the same inode | done, both names stay |
    /// | a directory | below itself | `EINVAL` |
    /// | anything | a directory that `from` is in | `ENOTEMPTY` |
    /// | a directory | no directory | `ENOTDIR` |
    /// | no directory | a directory | `EISDIR` |
    /// | a directory | a directory with entries | `ENOTEMPTY` |
    ///
    /// An exchange needs two names, none of them below the other one (`EINVAL`).
    pub fn rename(&mut self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        let source = self.resolve(from, Follow::No)?;
        let target = self.resolve(to, Follow::No)?;
        let (Some(from_name), Some(to_name)) = (&source.name, &target.name) else {
            return Err(Errno::EBUSY);
        };
        let moved = source.node.ok_or(Errno::ENOENT)?;
        if mode == RenameMode::NoReplace && target.node.is_some() {
            return Err(Errno::EEXIST);
        }
        if mode == RenameMode::Exchange {
            let other = target.node.ok_or(Errno::ENOENT)?;
            let is_below = self.is_same_or_below(target.parent, moved)
                || self.is_same_or_below(source.parent, other);
            if is_below {
                return Err(Errno::EINVAL);
            }
            if other == moved {
                return Ok(());
            }
            [moved, other].into_iter().for_each(|ino| self.hold(ino));
            self.remove_name(source.parent, from_name);
            self.remove_name(target.parent, to_name);
            self.add_name(target.parent, to_name, moved);
            self.add_name(source.parent, from_name, other);
            [moved, other].into_iter().for_each(|ino| self.release(ino));
            return Ok(());
        }
        if self.is_same_or_below(target.parent, moved) {
            return Err(Errno::EINVAL);
        }
        if let Some(replaced) = target.node {
            if self.is_same_or_below(source.parent, replaced) {
                return Err(Errno::ENOTEMPTY);
            }
            if replaced == moved {
                return Ok(());
            }
            match (self.is_dir(moved), self.entries(replaced)) {
                (true, None) => return Err(Errno::ENOTDIR),
                (false, Some(_)) => return Err(Errno::EISDIR),
                (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => self.remove_name(target.parent, to_name),
            }
        }
        // Held, so that it survives the moment without a name.
        self.hold(moved);
        self.remove_name(source.parent, from_name);
        self.add_name(target.parent, to_name, moved);
        self.release(moved);
        Ok(())
    }

    /// Whether the directory `ino` is `ancestor` or lies below it.
    fn is_same_or_below(&self, mut ino: Ino, ancestor: Ino) -> bool {
        while ino != ancestor && ino != Ino::ROOT {
            ino = self.parent(ino);
        }
        ino == ancestor
    }
}
