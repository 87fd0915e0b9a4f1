//! What to do with one entry.

use std::sync::Arc;

use base::{Attr, AttrChange, RemotePath};

use crate::dir::Dir;
use crate::outcome::Problem;
use crate::temporary::Partial;

/// Why a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The target has no entry of that name.
    New,
    /// The target's entry has another kind.
    Kind,
    /// The sizes differ.
    Size,
    /// The modification times differ by a second or more.
    Time,
    /// The digests differ.
    Digest,
}

/// Why an entry is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// It is newer at the target (`update`).
    Newer,
    /// It is not at the target (`existing`).
    Absent,
    /// A device, a socket or a pipe.
    Special,
}

/// What to do with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a directory; its attributes are set after all steps in it.
    MakeDir,
    /// Copy a regular file, or a device where that was requested.
    Copy(Why),
    /// Create a symbolic link.
    MakeLink(Why),
    /// Create a hard link to the copy `first`, relative to the target.
    HardLink {
        /// The first name.
        first: RemotePath,
    },
    /// Set these attributes; the content is equal.
    SetAttr(AttrChange),
    /// Nothing: it is equal.
    Nothing,
    /// Nothing, though it may differ.
    Skip(Skip),
    /// Delete it: the sources do not have it.
    Delete,
}

/// One entry of the sources, and what to do with it.
#[derive(Clone)]
pub struct Step {
    /// The number of its source in the job.
    pub source: usize,
    /// Its path in that source's remote.
    pub from: RemotePath,
    /// What it becomes, relative to the target.
    pub name: RemotePath,
    /// Its attributes in the listing of the source.
    pub attr: Attr,
    /// The attributes of the target's entry of that name.
    pub there: Option<Attr>,
    /// What to do with an entry.
    pub action: Action,
    /// Temporary files that an earlier run has left of it.
    pub(crate) partials: Vec<Partial>,
    /// Its directory at the target. The times of that directory are set when the last step in it
    /// has been dropped.
    pub(crate) dir: Arc<Dir>,
    /// Itself, if it is a directory.
    pub(crate) own: Option<Arc<Dir>>,
    /// Device and inode at the source, if it has several names and hard links are preserved.
    pub(crate) identity: Option<(u64, u64)>,
    /// Device and inode of the target's entry, if the source's file has several names, and these are
    /// known.
    pub(crate) identity_there: Option<(u64, u64)>,
    /// The names of the file, if it has several and hard links are preserved.
    pub(crate) names: Option<Arc<crate::run::Names>>,
    /// Why a stream has not copied it.
    pub(crate) refused: Option<Problem>,
}

impl Step {
    /// A step whose action is not decided.
    pub(crate) fn new(
        source: usize,
        (from, name): (RemotePath, RemotePath),
        attr: Attr,
        there: Option<Attr>,
        dir: Arc<Dir>,
    ) -> Step {
        let (action, partials) = (Action::Nothing, Vec::new());
        let (own, names, refused) = (None, None, None);
        let (identity, identity_there) = (None, None);
        Step {
            source,
            from,
            name,
            attr,
            there,
            action,
            partials,
            dir,
            own,
            identity,
            identity_there,
            names,
            refused,
        }
    }

    /// Whether the action changes anything.
    pub fn changes(&self) -> bool {
        !matches!(self.action, Action::Nothing | Action::Skip(_))
    }

    /// Bytes to transfer.
    pub fn bytes(&self) -> u64 {
        match self.action {
            Action::Copy(_) => self.attr.size,
            _ => 0,
        }
    }
}
