//! Creates entries that are no files.

use std::sync::Arc;

use base::{AttrChange, Errno, RemotePath, Result};
use sftp::{Extension, FileAttrs};

use crate::errno::from_sftp;
use crate::host::Host;
use crate::open::missing_bits;
use crate::probe::Probe;
use crate::session::Session;
use crate::setattr::change_without_following;
use crate::{attr, pipelined};

impl Host {
    /// Without `perm`, the server decides.
    pub(crate) async fn make_dir(&self, path: &RemotePath, perm: Option<u32>) -> Result<()> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        let perm = perm.map(|perm| perm & attr::PERM_BITS);
        let attrs = perm.map(FileAttrs::with_permissions).unwrap_or_default();
        let made =
            pipelined::both(session.client.mkdir(&full, attrs), session.client.lstat(&full)).await;
        self.finish_create(&session, path, perm.unwrap_or(0), made).await
    }

    /// The result of creating an entry that is no file, followed by an LSTAT: it gets at least the
    /// bits of `perm`. A loss before it has them is a loss of the request.
    pub(crate) async fn finish_create(
        &self,
        session: &Arc<Session>,
        path: &RemotePath,
        perm: u32,
        made: (sftp::Result<()>, sftp::Result<FileAttrs>),
    ) -> Result<()> {
        match made {
            (Ok(()), Err(error)) if error.ends_connection() => Err(from_sftp(&error)),
            (Ok(()), after) => {
                let are = after.ok().and_then(|attrs| attrs.permissions);
                if let Some(wanted) = are.and_then(|are| missing_bits(perm, are & attr::PERM_BITS))
                    && !self.may_have_default_acl_above(session, path).await?
                {
                    let (full, attrs) = (session.path(path)?, FileAttrs::with_permissions(wanted));
                    // Another user may have put a link there.
                    let set = if session.offers(Extension::Lsetstat) {
                        let change = AttrChange { perm: Some(wanted), ..AttrChange::default() };
                        change_without_following(session, path, &full, (&change, attrs)).await
                    } else {
                        let set = session.client.setstat(&full, attrs).await;
                        set.map_err(|error| from_sftp(&error))
                    };
                    match set {
                        Err(errno) if errno.is_loss() => return Err(errno),
                        // The server may insist on fewer bits.
                        _ => {}
                    }
                }
                Ok(())
            }
            (Err(error), Ok(_)) if crate::open::is_failure(&error) => Err(Errno::EEXIST),
            (Err(error), _) => Err(Probe(session).create(&error, path).await),
        }
    }
}
