//! Space and holes of files. Space is not reserved, since only pages with content count.

use base::{Allocation, Errno, Result, Seek};

use super::content::Content;
use super::{Ino, MAX_FILE_BYTES, Tree};

impl Tree {
    /// Reserves or frees a range of a file.
    pub fn allocate(&mut self, ino: Ino, how: Allocation, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        if end > MAX_FILE_BYTES {
            return Err(Errno::EFBIG);
        }
        let (zeros, keep_size) = match how {
            Allocation::Reserve { keep_size } => (false, keep_size),
            Allocation::PunchHole => (true, true),
            Allocation::Zero { keep_size } => (true, keep_size),
        };
        self.change_content(ino, |content| {
            if zeros {
                content.zero(offset, end);
            }
            if !keep_size && end > content.size() {
                content.set_size(end);
            }
        })
    }

    /// The next data or hole of a file.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let content: &Content = self.content(ino)?;
        content.seek(offset, what == Seek::Data).ok_or(Errno::ENXIO)
    }
}
