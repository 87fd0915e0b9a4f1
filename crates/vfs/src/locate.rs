//! Where a file is, for who asks.

use base::{Location, Result};

use crate::{Ino, Vfs};

impl Vfs {
    /// Where `ino` is: first the place that is shown, then those that hold the same name behind
    /// it; none for a directory that exists only here. `EOPNOTSUPP` where the remote has no words
    /// for itself, `ESTALE` for what has no name any more.
    pub async fn locate(&self, ino: Ino) -> Result<Vec<Location>> {
        let path = self.path(ino)?;
        self.remote.locate(&path).await
    }
}
