//! What goes through the handle of an open file.

use std::sync::Arc;

use base::{Attr, Data, Errno, Fh, RemotePath, Result};
use bytes::Bytes;
use sftp::Extension;

use crate::handles::{OpenFile, OpenHandle};
use crate::host::Host;
use crate::probe::Probe;
use crate::{attr, errno, gather};

impl Host {
    /// The file, if its session lives. If not, a connection is waited for, and the handle is
    /// stale then: it is here that handles would be opened anew.
    pub(crate) async fn live_file(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        let file = self.handles.file(fh)?;
        if !file.open.session.is_alive() {
            self.metadata().await?;
            return Err(Errno::ESTALE);
        }
        Ok(file)
    }

    pub(crate) async fn read_file(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.live_file(fh).await?;
        check_range(offset, u64::from(len)).map_err(|_| Errno::EINVAL)?;
        let OpenHandle { session, handle } = &file.open;
        let failed = |error| errno::from_handle(&error);
        if len <= session.max_read {
            let first = session.client.read(handle, offset, len).await.map_err(failed)?;
            return fill(&file.open, first, offset, len).await.map(|(data, _)| data);
        }
        let pieces: Vec<_> = (0..len)
            .step_by(session.max_read as usize)
            .map(|start| (offset + u64::from(start), session.max_read.min(len - start)))
            .collect();
        let calls = pieces.iter().map(|(at, len)| session.client.read(handle, *at, *len));
        let answers = gather::all(calls).await;
        let mut data = Data::new();
        for ((at, len), answer) in pieces.into_iter().zip(answers) {
            let (piece, ended) = fill(&file.open, answer.map_err(failed)?, at, len).await?;
            data.append(piece);
            if ended {
                break;
            }
        }
        Ok(data)
    }

    pub(crate) async fn write_file(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.live_file(fh).await?;
        check_range(offset, data.len() as u64)?;
        let OpenHandle { session, handle } = &file.open;
        let piece_len = session.max_write as usize;
        let written = if data.len() <= piece_len {
            session.client.write(handle, offset, data).await
        } else {
            let calls = (0..data.len()).step_by(piece_len).map(|start| {
                let piece = data.slice(start..data.len().min(start + piece_len));
                session.client.write(handle, offset + start as u64, piece)
            });
            gather::all(calls).await.into_iter().collect()
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(session).handle(&error, handle).await),
        }
    }

    pub(crate) async fn fsync_file(&self, fh: Fh) -> Result<()> {
        let file = self.live_file(fh).await?;
        let OpenHandle { session, handle } = &file.open;
        match session.client.fsync(handle).await {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(session).handle(&error, handle).await),
        }
    }

    /// OpenSSH's server gives no fsync for what OPENDIR opened, but OPEN opens a directory for
    /// reading just as well, and that handle it syncs.
    pub(crate) async fn fsync_dir(&self, path: &RemotePath) -> Result<()> {
        let session = self.metadata().await?;
        if !session.offers(Extension::Fsync) {
            return Err(Errno::EOPNOTSUPP);
        }
        let full = session.path(path)?;
        let open = session.client.open(&full, sftp::OpenFlags::READ, sftp::FileAttrs::default());
        let handle = match open.await {
            Ok(handle) => handle,
            // A server that refuses to open directories so.
            Err(error) if crate::open::is_failure(&error) => return Err(Errno::EOPNOTSUPP),
            Err(error) => return Err(Probe(&session).opendir(&error, path).await),
        };
        let open = OpenHandle { session, handle };
        let synced = open.session.client.fsync(&open.handle).await;
        synced.map_err(|error| errno::from_handle(&error))
    }

    pub(crate) async fn stat_file(&self, fh: Fh) -> Result<Attr> {
        let file = self.live_file(fh).await?;
        let attrs = file.open.session.client.fstat(&file.open.handle).await;
        attr::from_wire(&attrs.map_err(|error| errno::from_handle(&error))?)
    }
}

/// No file has bytes past `i64::MAX`.
fn check_range(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(Errno::EFBIG),
    }
}

/// Asks for what is missing of one piece until it is whole or the file has ended; tells whether
/// it has. A server may give less than there is, and only its word is the end.
async fn fill(
    open: &OpenHandle,
    first: Option<Bytes>,
    offset: u64,
    len: u32,
) -> Result<(Data, bool)> {
    let mut data = Data::new();
    let (mut next, mut got) = (first, 0);
    while let Some(bytes) = next {
        got += bytes.len() as u32;
        data.push(bytes);
        if got == len {
            return Ok((data, false));
        }
        let rest = open.session.client.read(&open.handle, offset + u64::from(got), len - got);
        next = rest.await.map_err(|error| errno::from_handle(&error))?;
    }
    Ok((data, true))
}
