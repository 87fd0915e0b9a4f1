//! The tree at the server in one answer: a login that will serve SFTP lists the tree first, with
//! the server's `find`.
//!
//! SFTP needs three round trips for each directory, and each level of a tree waits for the one
//! above it. One command needs none of that, and takes less time on both machines.
//!
//! The listing may fail. SFTP lists whatever it does not contain: everything, where there is no GNU
//! `find` or where it reported an error; the incomplete directories, where it was stopped. It is
//! stopped after two seconds: that is the cost where a file system is slow to list (a parallel one,
//! a disk that spins up) and the listing is of no use.
//!
//! The answer to the word `list` is a record for each entry, each with a NUL after it, a record
//! that says that nothing is missing, two more NULs, and a line with one word: how the listing
//! ended. No record is empty, so an empty one marks the end, also where the last one was cut off.
//! The SFTP server, which runs next, sends nothing before it gets a request.
//!
//! Invariants:
//! 1. A directory is returned only if all of its entries are known: with `--delete`, an entry that
//!    is missing in a listing is deleted.
//! 2. Memory is bounded, whatever the answer is. A session is not used if its answer has no end, or
//!    anything after the line.

mod records;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Attr, Name, RemotePath};
use tokio::io::AsyncReadExt;

use crate::job::below;
use crate::options::Options;
use crate::plan::Ahead;
use crate::shell::{Running, Shell, ShellError, plain_path};

use super::peer::Peer;
use super::script::{self, State};
use records::Records;

/// Limit of a listing, in bytes: some 150,000 entries.
pub(super) const BYTES: usize = 8 << 20;

/// As [`BYTES`], with patterns, which may exclude most of the tree.
pub(super) const BYTES_FILTERED: usize = 1 << 20;

/// How long a listing may send nothing: `find` may hang where no signal ends it.
const SILENCE: Duration = Duration::from_secs(10);

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Limit of a record: a name of any file system, and its numbers.
const RECORD_BYTES: usize = 16 << 10;

/// Limit of the word at the end, with the NULs before it.
const WORD_BYTES: usize = 16;

/// The directories of which all entries are known.
#[derive(Debug)]
pub struct Listing {
    /// When its last byte arrived. On a slow link the listing is older by its transfer time, as is
    /// the file list of rsync.
    when: Instant,
    /// The directories of which all entries are known, relative to the top, each with its entries
    /// in the order of names. Times have the resolution of SFTP.
    pub directories: Vec<(RemotePath, Vec<(Name, Attr)>)>,
}

impl Listing {
    /// The listings for a run over a tree in which `top` was listed.
    pub fn ahead(self, top: &RemotePath) -> Ahead {
        let directories = self.directories.into_iter();
        Ahead::of(self.when, directories.map(|(path, entries)| (below(top, &path), entries)))
    }
}

/// A login that serves SFTP now, and what it listed before.
pub struct SftpLogin {
    /// The session, before the first SFTP packet.
    pub running: Running,
    /// The listing, if there is one.
    pub listing: Option<Listing>,
}

/// The limit of a listing, in bytes.
pub(super) fn limit(options: &Options) -> usize {
    if options.filter.is_empty() { BYTES } else { BYTES_FILTERED }
}

/// Logs in, lists `top`, relative to `directory`, and then serves SFTP. `None` where the server
/// runs no commands, or its SFTP server program is not found.
///
/// Dropping the future ends the login.
///
/// # Errors
/// Why the login failed, if another login would fail, too.
pub async fn log_in(
    shell: &Arc<dyn Shell>,
    directory: &[u8],
    top: &RemotePath,
    options: &Options,
) -> Result<Option<SftpLogin>, String> {
    let directory = plain_path(directory);
    let command = script::tree(&directory, &plain_path(top.as_bytes()), options);
    let Some(command) = command else { return Ok(None) };
    let talk = async {
        let mut peer = Peer::greet(&**shell, &command, script::LIST_AND_SERVE).await?;
        if !peer.greeting.has_sftp {
            return Err(ShellError::Refused("its server of SFTP is not found".to_owned()));
        }
        let listing = match peer.greeting.state {
            State::Bare => read(&mut peer.running, limit(options)).await?,
            _ => None,
        };
        Ok(SftpLogin { running: peer.running, listing })
    };
    match talk.await {
        Ok(left) => Ok(Some(left)),
        Err(ShellError::NoLogin(why)) => Err(why),
        Err(ended) => {
            tracing::debug!("no session with a listing: {}", ended.why());
            Ok(None)
        }
    }
}

/// Reads a listing to its end; `None` if it cannot be used.
///
/// # Errors
/// If the listing has no end. Then the session cannot be used.
pub(super) async fn read(
    running: &mut Running,
    limit: usize,
) -> Result<Option<Listing>, ShellError> {
    let mut answer = Answer::new(limit);
    let mut block = vec![0; READ_BYTES];
    loop {
        let read = tokio::time::timeout(SILENCE, running.stdout.read(&mut block));
        let len = match read.await {
            Ok(read) => read?,
            Err(_) => return Err(ShellError::Lost("a listing does not go on".to_owned())),
        };
        if len == 0 {
            return Err(ShellError::Lost("a listing has no end".to_owned()));
        }
        if answer.take(&block[..len])? {
            return Ok(answer.listing());
        }
    }
}

/// The part of an answer that has arrived.
pub(super) struct Answer {
    records: Records,
    /// The last complete record: the one before the end may be cut off.
    last: Vec<u8>,
    /// The record that is arriving.
    next: Vec<u8>,
    /// The word at the end, as soon as it arrives.
    word: Option<Vec<u8>>,
    limit: usize,
    taken: usize,
}

impl Answer {
    pub(super) fn new(limit: usize) -> Answer {
        let (last, next) = (Vec::new(), Vec::new());
        Answer { records: Records::default(), last, next, word: None, limit, taken: 0 }
    }

    /// Parses further bytes; true when the answer has ended.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        let wrong = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()));
        while self.word.is_none() {
            let Some(end) = bytes.iter().position(|byte| *byte == 0) else {
                self.taken += bytes.len();
                self.next.extend_from_slice(bytes);
                break;
            };
            self.taken += end + 1;
            self.next.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if self.next.is_empty() {
                self.word = Some(Vec::new());
            } else {
                self.records.take(&self.last);
                std::mem::swap(&mut self.last, &mut self.next);
                self.next.clear();
            }
        }
        // Two for the end.
        if self.taken > self.limit + 2 || self.next.len() > RECORD_BYTES {
            return wrong("a listing is longer than it was to be");
        }
        let Some(word) = &mut self.word else { return Ok(false) };
        // There is one NUL more than two where a record had its own.
        let line_end = bytes.iter().position(|byte| *byte == b'\n');
        let line = &bytes[..line_end.unwrap_or(bytes.len())];
        word.extend_from_slice(line);
        match line_end {
            _ if word.len() > WORD_BYTES => wrong("a listing ends with something else"),
            Some(end) if end + 1 < bytes.len() => wrong("something comes behind a listing"),
            end => Ok(end.is_some()),
        }
    }

    /// The listing, when the answer has ended.
    pub(super) fn listing(self) -> Option<Listing> {
        let word = self.word.as_deref().unwrap_or_default();
        let begin = word.iter().position(|byte| *byte != 0).unwrap_or(word.len());
        let directories = match &word[begin..] {
            // However well `find` has ended, something may be missing of what it wrote.
            b"whole" if self.last == script::ALL.as_bytes() => self.records.whole(),
            // The last record may be half of one.
            b"whole" | b"cut" => self.records.cut(),
            _ => None,
        };
        directories.map(|directories| Listing { when: Instant::now(), directories })
    }
}

#[cfg(test)]
mod tests;
