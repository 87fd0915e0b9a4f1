//! Reserved space and holes of open files, by the extensions of `sshoal helper`.

use base::{Allocation, Errno, Fh, Result, Seek};
use sftp::Extension;
use sftp::codec::{FallocateMode, Whence};

use crate::chunk_request;
use crate::errno::from_handle;
use crate::handles::OpenHandle;
use crate::host::Host;
use crate::range_lock::WHOLE_FILE;

impl Host {
    pub(crate) async fn allocate(
        &self,
        fh: Fh,
        how: Allocation,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let file = self.live_file(fh).await?;
        let session = &file.open.session;
        if !session.offers(Extension::Fallocate) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (mode, keep_size) = match how {
            Allocation::Reserve { keep_size } => (0, keep_size),
            Allocation::PunchHole => (FallocateMode::PUNCH_HOLE, true),
            Allocation::Zero { keep_size } => (FallocateMode::ZERO_RANGE, keep_size),
        };
        let keep_size = if keep_size { FallocateMode::KEEP_SIZE } else { 0 };
        let mode = FallocateMode(mode | keep_size);
        let call =
            move |open: &OpenHandle| open.session.client.fallocate(&open.handle, mode, offset, len);
        let ticket = file.enter(WHOLE_FILE, true, Some(session.slot));
        let changed = chunk_request::change(&file.open, &self.pool.flow, ticket, call).await;
        changed.map_err(|error| from_handle(&error))
    }

    pub(crate) async fn seek_file(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        let file = self.live_file(fh).await?;
        let open = &file.open;
        let whence = match what {
            Seek::Data => Whence::DATA,
            Seek::Hole => Whence::HOLE,
        };
        let ticket = file.enter(WHOLE_FILE, false, Some(open.session.slot));
        let call = open.session.client.lseek(&open.handle, offset, whence);
        chunk_request::in_order(&ticket, call).await.map_err(|error| from_handle(&error))
    }
}
