//! The local disk itself: what a network file system can at best come near to.
//!
//! Its directory is on the same disk as the private server's; this process may look at it, since
//! it cannot hang more than the disk does. Forgetting it drops the data of its files from the page
//! cache. Their names stay known: dropping those would drop the server's and all programs' too.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, statfs};

use crate::corpus::tree::files;
use crate::executor::Executor;
use crate::failure::Result;
use crate::results::{SubjectInfo, Wire};
use crate::step::ServerMeter;
use crate::storage::{Directory, Storage, sync};
use crate::subject::{Access, Session, Started, Subject, Tuning};

/// File systems that have no other place than memory, by `statfs(2)`'s numbers.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// A directory of the local disk.
pub(super) struct Local {
    name: String,
    storage: Directory,
}

impl Local {
    /// In `root`, which is made.
    pub(super) fn new(name: String, root: PathBuf) -> io::Result<Local> {
        fs::create_dir_all(&root)?;
        let storage = Directory::new(name.clone(), root.canonicalize()?);
        Ok(Local { name, storage })
    }
}

impl Subject for Local {
    fn info(&self) -> SubjectInfo {
        SubjectInfo::new(&self.name, "local", "a directory of the local disk")
    }

    fn storage(&self) -> &dyn Storage {
        &self.storage
    }

    fn start(&self, _: &Path, _: &Tuning, executor: &Executor) -> Started {
        let mut session = LocalSession(self.storage.root().to_owned());
        session.forget(executor)?;
        Ok(Box::new(session))
    }
}

struct LocalSession(PathBuf);

impl Session for LocalSession {
    fn access(&self) -> Access<'_> {
        Access::Directory(&self.0)
    }

    fn wire(&self, _: &dyn ServerMeter) -> Option<Wire> {
        None
    }

    fn forget(&mut self, executor: &Executor) -> Result<bool> {
        let kind = statfs(&self.0).map_err(io::Error::from)?.f_type;
        if IN_MEMORY.contains(&kind) {
            return Ok(false);
        }
        drop_from_memory(&self.0, executor)?;
        Ok(true)
    }
}

/// Writes what is not yet on the disk of all files of a tree, and drops it from the page cache.
pub(super) fn drop_from_memory(root: &Path, executor: &Executor) -> Result<()> {
    // Pages that are not yet written are not dropped.
    sync(root, executor)?;
    for file in files(root)? {
        fadvise(File::open(file)?, 0, None, Advice::DontNeed).map_err(io::Error::from)?;
    }
    Ok(())
}
