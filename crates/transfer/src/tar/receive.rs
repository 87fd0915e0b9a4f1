//! One member of an archive, into a local directory.
//!
//! The caller chooses the place, and [`Sink`] ensures that nothing is written elsewhere.
//!
//! A tar that cannot read a file to its end sends zeros instead, under the file's size and mtime,
//! and reports that only by its exit status. So a file that ends with a zero is unconfirmed, and so
//! is a file that may have changed while it was read. Its mtime is set when it is [`Confirmed`];
//! until then it has the [`unconfirmed_mtime`].

use std::io::{self, BufRead};
use std::time::{SystemTime, UNIX_EPOCH};

use base::{Attr, Errno, FileKind, RemotePath, Timestamp};

use crate::events::Progress;
use crate::options::Options;
use crate::outcome::Doing;
use crate::plan::unconfirmed_mtime;
use crate::sink::{Finish, Finished, Incoming, Sink};

use super::LASTING_BYTES;
use super::member::{Kind, Member};
use super::reader::Reader;

/// Why a member is not there.
#[derive(Debug)]
pub(super) enum Broken {
    /// It could not be made, or read, on this machine.
    Here(Doing, Errno),
    /// The stream broke.
    There(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::There(error)
    }
}

impl Broken {
    /// Why this member alone is missing.
    ///
    /// # Errors
    /// If the stream cannot go on, or further files would fail, too, since a file system is full.
    pub(super) fn missed(self) -> io::Result<(Doing, Errno)> {
        match self {
            Broken::Here(_, errno @ (Errno::ENOSPC | Errno::EDQUOT)) => {
                Err(io::Error::from_raw_os_error(errno.raw()))
            }
            Broken::Here(doing, errno) => Ok((doing, errno)),
            Broken::There(error) => Err(error),
        }
    }
}

/// For `map_err`.
pub(super) fn here(doing: Doing) -> impl Fn(Errno) -> Broken {
    move |errno| Broken::Here(doing, errno)
}

/// A file changed this many seconds before a stream started, or later, may have changed while tar
/// read it without a visible difference: times have a resolution of a second, and the clock that
/// sets them may be a little behind the one that is read.
const SAME_TIME_SECS: i64 = 2;

/// The second from which on a file may have changed while a stream that starts now has read it. The
/// clock of the server, which sets the times of its files, may be behind this one; where it is not
/// known, or ahead, this machine's is used.
pub(super) fn torn_since(server_secs: Option<i64>) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    server_secs.map_or(now, |server| server.min(now)).saturating_sub(SAME_TIME_SECS)
}

/// What the end of the server's tar confirms of the files that it has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confirmed {
    /// Nothing: tar has failed, or the stream broke.
    Nothing,
    /// libarchive's tar has succeeded, which it also does if a file changed or shrank while it was
    /// read. A file with an mtime before this second is a copy if the source has the size and mtime
    /// of the copy now. The content of the others has to be compared, too.
    Before(i64),
    /// GNU tar has succeeded: it has read all files to their ends, and none changed meanwhile.
    All,
}

impl Confirmed {
    /// `has_succeeded`: all has arrived, and tar's exit status is 0.
    pub(super) fn by(has_succeeded: bool, reports_changes: bool, torn_since: i64) -> Confirmed {
        match (has_succeeded, reports_changes) {
            (false, _) => Confirmed::Nothing,
            (true, false) => Confirmed::Before(torn_since),
            (true, true) => Confirmed::All,
        }
    }

    /// Whether size and mtime of a file with this mtime decide whether it is a copy.
    pub(super) fn includes(self, mtime: Timestamp) -> bool {
        match self {
            Confirmed::Nothing => false,
            Confirmed::Before(since) => mtime.secs < since,
            Confirmed::All => true,
        }
    }
}

/// What receives members.
#[derive(Clone, Copy)]
pub(super) struct Receiver<'a> {
    pub sink: &'a Sink,
    pub options: &'a Options,
    pub progress: &'a Progress,
    /// See [`torn_since`].
    pub torn_since: i64,
    /// Members replace no entries: a name that is taken is an error.
    pub is_new: bool,
}

/// A member that was received.
pub(super) struct Received {
    pub finished: Finished,
    /// Its mtime is not set yet: its content is unconfirmed until tar has ended.
    pub unconfirmed: bool,
}

impl From<Finished> for Received {
    fn from(finished: Finished) -> Received {
        Received { finished, unconfirmed: false }
    }
}

impl Receiver<'_> {
    /// A regular file, with its content, which comes from the reader; a symbolic link, a device or
    /// a pipe.
    pub(super) fn entry<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        mut member: Member,
        path: &RemotePath,
    ) -> Result<Received, Broken> {
        let wanted = attr(&member, member.kind.file_kind());
        if member.kind == Kind::File {
            return self.file(reader, member, path, &wanted);
        }
        let finish = self.finish(&mut member);
        let made = match member.kind {
            Kind::Symlink => self.sink.make_link(path, &member.link, &wanted, &finish),
            Kind::Other(_) if self.options.specials => {
                self.sink.make_special(path, &wanted, member.device, &finish)
            }
            _ => Err(Errno::EOPNOTSUPP),
        };
        made.map(Received::from).map_err(here(Doing::Make))
    }

    fn file<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        mut member: Member,
        path: &RemotePath,
        wanted: &Attr,
    ) -> Result<Received, Broken> {
        let has_holes = self.options.sparse || member.sparse_bytes.is_some();
        let begun = match !has_holes && !self.options.no_partial && wanted.size >= LASTING_BYTES {
            true => self.sink.begin_lasting(path, wanted),
            false => self.sink.begin(path, wanted),
        };
        let mut incoming = begun.map_err(here(Doing::Make))?;
        let mut came = 0;
        let filled = self.fill(reader, &member, &incoming, &mut came);
        if let Err(Broken::Here(..)) = filled {
            incoming.discard();
        }
        if filled.is_err() {
            self.copied_again(came);
        }
        let is_torn = wanted.mtime.secs >= self.torn_since;
        let unconfirmed = wanted.size > 0 && (!filled? || is_torn);
        let size = has_holes.then_some(wanted.size);
        let mtime = if unconfirmed { unconfirmed_mtime(wanted.mtime) } else { wanted.mtime };
        let finish = Finish { size, mtime: Some(mtime), ..self.finish(&mut member) };
        let finished = incoming.finish(&finish).map_err(|errno| {
            self.copied_again(came);
            Broken::Here(Doing::Rename, errno)
        })?;
        Ok(Received { finished, unconfirmed })
    }

    /// Notes bytes of a file that has to be copied again, and that the run has planned. The stream of
    /// a whole tree plans its files itself, and the run plans them again.
    fn copied_again(&self, bytes: u64) {
        if !self.is_new {
            self.progress.again(bytes);
        }
    }

    /// What the member is to have when it is whole. Its extended attributes are taken out.
    pub(super) fn finish(&self, member: &mut Member) -> Finish {
        Finish {
            xattrs: std::mem::take(&mut member.xattrs),
            perm: member.perm,
            set_ids: self.options.set_ids_of(member.uid, member.gid),
            owner: self.options.owners.of(member.uid, member.gid),
            mtime: Some(member.mtime),
            fsync: self.options.fsync,
            is_new: self.is_new,
            ..Finish::default()
        }
    }

    /// Writes all data of the member; if it is stored with holes, the data between them. Adds to
    /// `came` what has arrived. Returns whether the last byte of the file is not zero.
    fn fill<R: BufRead>(
        &self,
        reader: &mut Reader<R>,
        member: &Member,
        incoming: &Incoming,
        came: &mut u64,
    ) -> Result<bool, Broken> {
        let pieces = match member.sparse_bytes {
            Some(bytes) => reader.sparse_map(bytes)?,
            None => vec![(0, member.stored_bytes)],
        };
        let mut data = reader.data();
        let mut last = None;
        for (mut at, mut left) in pieces {
            while left > 0 {
                let piece = data.fill_buf()?;
                let len = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let written = incoming.write_at(at, &piece[..len], self.options.sparse);
                written.map_err(here(Doing::Write))?;
                last = piece[..len].last().copied();
                data.consume(len);
                at += len as u64;
                left -= len as u64;
                self.progress.bytes(len as u64);
                *came += len as u64;
                if at < member.file_bytes() {
                    last = None;
                }
            }
        }
        Ok(last.is_some_and(|last| last != 0))
    }
}

/// What the source's file has.
pub(super) fn attr(member: &Member, kind: FileKind) -> Attr {
    Attr {
        kind,
        perm: member.perm,
        size: member.file_bytes(),
        uid: member.uid,
        gid: member.gid,
        atime: member.mtime,
        mtime: member.mtime,
        inode: None,
    }
}
