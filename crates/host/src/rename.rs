//! Renaming.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base::{Errno, FileKind, RemotePath, RenameMode, Result};
use sftp::codec::{FileAttrs, RenameFlags};
use sftp::{Error, Extension, StatusCode};

use crate::attr;
use crate::errno::from_sftp;
use crate::host::Host;
use crate::open::is_failure;
use crate::pipelined;
use crate::probe::Probe;
use crate::session::Session;

impl Host {
    pub(crate) async fn rename_path(
        &self,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
    ) -> Result<()> {
        if from.is_root() || to.is_root() {
            return Err(Errno::EBUSY);
        }
        let session = self.metadata().await?;
        match mode {
            RenameMode::Replace => self.rename_replacing(&session, from, to).await?,
            RenameMode::NoReplace => self.rename_without_replacing(&session, from, to).await?,
            RenameMode::Exchange => self.exchange(&session, from, to).await?,
        }
        if from != to {
            self.handles.renamed(from, to, mode);
        }
        Ok(())
    }

    async fn exchange(&self, session: &Session, from: &RemotePath, to: &RemotePath) -> Result<()> {
        let (old, new) = (session.path(from)?, session.path(to)?);
        match session.client.renameat2(&old, &new, RenameFlags::EXCHANGE).await {
            Err(Error::Unsupported(_)) => Err(Errno::EINVAL),
            exchanged => exchanged.map_err(|error| from_sftp(&error)),
        }
    }

    async fn rename_replacing(
        &self,
        session: &Arc<Session>,
        from: &RemotePath,
        to: &RemotePath,
    ) -> Result<()> {
        let (old, new) = (session.path(from)?, session.path(to)?);
        let renamed = if session.offers(Extension::PosixRename) {
            session.client.posix_rename(&old, &new).await
        } else {
            match session.client.rename(&old, &new).await {
                Err(error)
                    if error.status() == Some(StatusCode::FAILURE)
                        && self.config().rename_workaround =>
                {
                    // Completed also if the caller stops waiting: during the operation the target
                    // has another name.
                    let around = tokio::spawn(rename_around(session.clone(), old, new, error));
                    around
                        .await
                        .unwrap_or_else(|_| Err(Error::Disconnected("not completed".into())))
                }
                other => other,
            }
        };
        match renamed {
            Ok(()) => Ok(()),
            Err(error) => {
                Err(Probe(session).rename(&error, from, to, self.unexplained_rename()).await)
            }
        }
    }

    /// Plain RENAME. OpenSSH's server implements it by `link` and `unlink` for a regular file:
    /// atomic but for a crash between the two, which leaves both names. For other types it checks
    /// whether `to` exists, following links, and renames; a target that appears in between is
    /// replaced. The LSTAT here also detects a dangling link.
    async fn rename_without_replacing(
        &self,
        session: &Arc<Session>,
        from: &RemotePath,
        to: &RemotePath,
    ) -> Result<()> {
        let (old, new) = (session.path(from)?, session.path(to)?);
        if session.offers(Extension::Renameat2) {
            match session.client.renameat2(&old, &new, RenameFlags::NOREPLACE).await {
                // The file system cannot do it in one step, or a directory is moved below itself.
                Err(error) if from_sftp(&error) == Errno::EINVAL => {}
                renamed => return renamed.map_err(|error| from_sftp(&error)),
            }
        }
        let (source, target) =
            pipelined::both(session.client.lstat(&old), session.client.lstat(&new)).await;
        if let Err(error) = source {
            return Err(Probe(session).general(&error, from).await);
        }
        match target {
            Ok(_) => return Err(Errno::EEXIST),
            Err(error) if error.status() == Some(StatusCode::NO_SUCH_FILE) => {}
            Err(error) => return Err(Probe(session).general(&error, to).await),
        }
        match session.client.rename(&old, &new).await {
            Ok(()) => Ok(()),
            Err(error) => {
                if is_failure(&error) && session.client.lstat(&new).await.is_ok() {
                    return Err(Errno::EEXIST);
                }
                Err(Probe(session).rename(&error, from, to, self.unexplained_rename()).await)
            }
        }
    }

    /// The errno of a rename that fails for an unknown reason.
    fn unexplained_rename(&self) -> Errno {
        match self.config().renamexdev_workaround {
            true => Errno::EXDEV,
            false => Errno::EPERM,
        }
    }
}

/// Renames `from` to `to` after moving the target at `to` aside; moves it back if that fails. The
/// target has to be of the same type, and a directory has to be empty: otherwise nothing is
/// changed, and the result is `refusal`, the error of the plain rename.
async fn rename_around(
    session: Arc<Session>,
    from: Vec<u8>,
    to: Vec<u8>,
    refusal: Error,
) -> std::result::Result<(), Error> {
    let client = &session.client;
    let (from, to) = (from.as_slice(), to.as_slice());
    let (source, target) = pipelined::both(client.lstat(from), client.lstat(to)).await;
    let is_directory = |attrs: &FileAttrs| attr::kind(attrs) == Some(FileKind::Directory);
    let (source, target) = (is_directory(&source?), is_directory(&target?));
    if source != target {
        return Err(refusal);
    }
    let aside =
        [to, format!(".sshoal-{:016x}", RandomState::new().hash_one(to)).as_bytes()].concat();
    client.rename(to, &aside).await?;
    if let Err(error) = client.rename(from, to).await {
        move_back(&session, &aside, to).await;
        return Err(error);
    }
    if target && client.rmdir(&aside).await.is_err() {
        // It has entries.
        move_back(&session, to, from).await;
        move_back(&session, &aside, to).await;
        return Err(refusal);
    }
    if !target && let Err(error) = client.remove(&aside).await {
        // The replaced file has lost its name in any case.
        tracing::warn!("left behind after a rename: {}: {error}", aside.escape_ascii());
    }
    Ok(())
}

async fn move_back(session: &Session, from: &[u8], to: &[u8]) {
    if let Err(error) = session.client.rename(from, to).await {
        tracing::warn!("not moved back: {}: {error}", from.escape_ascii());
    }
}
