//! Reads files that determine what this process does: other users must not be able to write them.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use cli::{Problem, printable};
use rustix::fs::OFlags;

/// The content of a file of at most `max_bytes`; `None` if there is none. `check_owner` gets the id
/// of its owner. `what` names the file in messages.
pub fn read(
    path: &Path,
    what: &str,
    max_bytes: u64,
    check_owner: impl FnOnce(u32) -> Result<(), Problem>,
) -> Result<Option<Vec<u8>>, Problem> {
    let failed = |error| Problem::new(what, base::Errno::from(error).to_string());
    // Does not block on a FIFO.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let stat = file.metadata().map_err(failed)?;
    if !stat.is_file() {
        return Err(Problem::new(what, "not a regular file"));
    }
    check_owner(stat.uid())?;
    if stat.mode() & 0o022 != 0 {
        return Err(Problem::new(what, "writable by others")
            .hint(format!("chmod go-w '{}'", printable(path))));
    }
    let mut content = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > max_bytes {
        return Err(Problem::new(what, format!("larger than {max_bytes} bytes")));
    }
    Ok(Some(content))
}
