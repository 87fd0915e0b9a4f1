//! Who the login on the server is.

use base::Errno;

use crate::host::Host;

impl Host {
    /// User and group id of the login, taken from the owner of the directory in which its
    /// sessions begin, since SFTP has no better answer. `EOPNOTSUPP` from a server that tells no
    /// owners.
    pub async fn login_ids(&self) -> Result<(u32, u32), Errno> {
        let session = self.metadata().await?;
        let home = session.client.stat(b".").await.map_err(|_| Errno::EIO)?;
        home.owner.map(|owner| (owner.uid, owner.gid)).ok_or(Errno::EOPNOTSUPP)
    }
}
