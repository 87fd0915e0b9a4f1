//! What is to be done with one entry.

use std::sync::Arc;

use base::{Attr, AttrChange, RemotePath};

use crate::dir::Dir;
use crate::temporary::Partial;

/// Why a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is none of the name.
    New,
    /// Something of another kind has the name.
    Kind,
    /// The sizes differ.
    Size,
    /// The times of last change differ, by a second or more.
    Time,
    /// The digests differ.
    Digest,
}

/// Why an entry is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// It is newer at the target (`update`).
    Newer,
    /// It is not at the target (`existing`).
    Absent,
    /// A device, a socket or a pipe.
    Special,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A directory is made; its attributes are set when everything in it is done.
    MakeDir,
    /// A regular file is copied, or a device where that was asked for.
    Copy(Why),
    /// A symbolic link is made.
    MakeLink(Why),
    /// A further name is made of the file that becomes `first`, relative to the target.
    HardLink {
        /// The first name.
        first: RemotePath,
    },
    /// The content is right, and this is not.
    SetAttr(AttrChange),
    /// Nothing: it is the same.
    Nothing,
    /// Nothing, although it may differ.
    Skip(Skip),
    /// It is removed: the sources do not have it.
    Delete,
}

/// One entry of the sources, and what is to be done with it.
#[derive(Clone)]
pub struct Step {
    /// The number of its source in the job.
    pub source: usize,
    /// Where it is, in that source's remote.
    pub from: RemotePath,
    /// What it becomes, relative to the target.
    pub name: RemotePath,
    /// As the source lists it.
    pub attr: Attr,
    /// What is at the target.
    pub there: Option<Attr>,
    /// What is to be done.
    pub action: Action,
    /// What there is of it from an earlier run.
    pub(crate) partials: Vec<Partial>,
    /// The directory that it is in at the target. The times of that directory are set when the last
    /// step that is in it has been dropped.
    pub(crate) dir: Arc<Dir>,
    /// Itself, if it is a directory.
    pub(crate) own: Option<Arc<Dir>>,
    /// Device and inode at the source, if it has several names and they are to be kept.
    pub(crate) identity: Option<(u64, u64)>,
    /// The names of one file, if it has several and they are to be kept.
    pub(crate) names: Option<Arc<crate::run::Names>>,
}

impl Step {
    /// Whether the action changes anything.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self.action, Action::Nothing | Action::Skip(_))
    }

    /// Bytes that have to come over.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.action {
            Action::Copy(_) => self.attr.size,
            _ => 0,
        }
    }
}
