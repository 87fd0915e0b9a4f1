//! Small files in one round trip, by an extension of `sshoal helper`.

use base::{Attr, Data, Errno, RemotePath, Result};
use sftp::Extension;

use crate::attr::from_wire;
use crate::errno::from_sftp;
use crate::host::Host;

impl Host {
    /// Attributes and content of a file of at most `max_bytes`.
    pub(crate) async fn read_whole_file(
        &self,
        path: &RemotePath,
        max_bytes: u32,
    ) -> Result<Option<(Attr, Data)>> {
        let session = self.metadata().await?;
        if !session.offers(Extension::ReadFile) {
            return Err(Errno::EOPNOTSUPP);
        }
        let full = session.path(path)?;
        let follow = self.config().follow_symlinks;
        let found = session.client.read_file(&full, max_bytes, follow).await;
        let found = found.map_err(|error| from_sftp(&error))?;
        let attr = from_wire(&found.attrs)?;
        let is_whole = |data: &bytes::Bytes| {
            data.len() as u64 == attr.size && data.len() <= max_bytes as usize
        };
        Ok(found.data.filter(is_whole).map(|data| (attr, Data::from(data))))
    }
}
