//! Watches: a remote that reports what others change.
//!
//! A watch is of one directory. It reports changes of the directory's names, of its own attributes,
//! and of the attributes and contents of its entries, as far as they are made through these names.
//! Changes by this client are reported, too.

use async_trait::async_trait;

use crate::{Name, RemotePath, Result};

/// A watch, valid until its connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId {
    /// The connection that it belongs to. Never used again for another one.
    pub connection: u64,
    /// Its number there. Two paths of one directory have one number.
    pub number: u32,
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its content was changed.
    Modified,
    /// Its attributes were changed.
    Attributes,
    /// A descriptor that was open for writing was closed.
    Written,
    /// It was created.
    Created,
    /// It was renamed to this name.
    MovedHere,
    /// It was removed.
    Removed,
    /// It was renamed to another name.
    MovedAway,
    /// The watched directory was removed or renamed, or cannot be watched any more. The watch has
    /// ended, or no longer says at which path the changes are.
    Ended,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedChange {
    /// The watch.
    pub watch: WatchId,
    /// What happened.
    pub event: Event,
    /// The entry of the directory; `None` for the directory itself.
    pub name: Option<Name>,
    /// Whether the entry is a directory.
    pub is_dir: bool,
    /// The same number for both events of a rename, if both names are watched; otherwise
    /// unspecified.
    pub cookie: u32,
    /// The source that reports it; 0 where there is only one.
    pub source: u64,
}

/// What a [`Watches`] reports at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// These events, in their order.
    Events(Vec<WatchedChange>),
    /// There were too many: some are unknown. The watches remain.
    Overflow,
}

/// The watches of a [`Remote`](crate::Remote).
#[async_trait]
pub trait Watches: Send + Sync {
    /// Watches a directory. Changes after the return are reported.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the server, or the file system there, does not report all changes. `ENOSPC`
    /// if there are too many watches.
    async fn watch(&self, dir: &RemotePath) -> Result<WatchId>;

    /// Ends a watch. Its last events may still be reported.
    async fn end(&self, watch: WatchId);

    /// Returns the next changes of the watches of a connection. Only one caller may wait, and must
    /// not stop before the end of the connection.
    ///
    /// # Errors
    /// The connection is lost, and its watches with it.
    async fn next(&self, connection: u64) -> Result<Changes>;
}
