//! Trees in one stream: `tar` at the server, this program on this side.
//!
//! A stream is the fastest method for thousands of small files: none of them costs a round trip or a
//! request, and it needs only one login. It is for trees that the target does not have: a pull into
//! an empty place, and a push to a name that is free. It carries what SFTP cannot: times to the
//! nanosecond, hard links, holes, extended attributes, devices.
//!
//! Where the target has entries to compare with, a run compares, and a stream copies the many small
//! files that it needs: [`by_name`].
//!
//! A stream may fail. [`Run`](crate::Run) compares both trees and copies what the stream has missed
//! (entries that could not be read or changed meanwhile, and all after the point at which a link
//! broke). The run reports each entry that failed; a stream reports only what it has copied.
//!
//! | module | what it is |
//! |---|---|
//! | `script`, `peer` | the command for the server's shell, and the dialogue with it |
//! | `reader`, `writer`, `member` | the archive's format |
//! | [`by_name`] | single files that a run needs |
//! | `unpack`, `pack` | archive to tree, tree to archive |
//! | `receive` | one member of an archive into a directory |
//! | [`listing`] | the tree at the server in one answer, before the login serves SFTP |
//! | `large` | whether a tree has files for which a stream is slow |
//! | `stage` | names of pushed trees that are not whole |
//! | `stream`, `counters` | waiting for the server on a thread; what a stream has done |
//!
//! Invariants:
//! 1. A pull writes through [`Sink`]: a file gets its name when it is whole.
//! 2. A pushed tree is unpacked into a directory of its own until all of it is whole.
//! 3. Dropping the future ends the command and its thread.

pub mod by_name;
mod counters;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod large;
pub mod listing;
mod member;
mod pack;
mod peer;
mod reader;
mod receive;
mod script;
mod stage;
mod stream;
mod unpack;
mod writer;

use std::io::{self, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::{Attr, Errno, Name, RemotePath};
use rustix::fs::{CWD, Mode, OFlags};
use tokio::sync::Notify;

use crate::compress::{self, Encoder};
pub use crate::compress::{Compress, Method};
use crate::events::{Events, Progress};
use crate::options::Options;
use crate::outcome::{Counts, Outcome};
use crate::shell::{Running, Shell};
use crate::sink::Sink;
pub use large::BIG_BYTES;

use counters::Counters;
use listing::SftpLogin;
pub use peer::{ANSWER_LIMIT, LOGIN_LIMIT};
use peer::{Ended, Peer};
use script::{Kind, State};
use stage::{begin_of_stages, numbered_stage};
pub use stage::{stage, suits};
use stream::{Flow, Input, Output};
use unpack::{Naming, Unpacker};

/// With a longer round trip OpenSSH's window of 2 MiB bounds one stream: 400 MB/s.
pub const LONG_ROUND_TRIP: Duration = Duration::from_millis(5);

/// Bytes of an archive that are read at a time.
const READ_BYTES: usize = 512 << 10;

/// From this size on the beginning of a file is kept when a stream breaks. Sending less again is
/// faster than checking it.
const LASTING_BYTES: u64 = 4 << 20;

/// How a stream copies.
#[derive(Clone)]
pub struct Streaming {
    /// The server's shell.
    pub shell: Arc<dyn Shell>,
    /// What is copied, and how.
    pub options: Options,
    /// Whether the stream is compressed.
    pub compress: Compress,
    /// Decline where several sessions would be faster.
    pub only_if_fast: bool,
    /// Counters for the program.
    pub progress: Arc<Progress>,
    /// Observes each entry.
    pub events: Arc<dyn Events>,
    /// Keeps the login of a declined stream. Without it, that login ends.
    pub reusable_login: Option<ReusableLogin>,
    /// Notified once when the server has answered: the login has succeeded.
    pub greeted: Arc<Notify>,
}

/// The login of a declined stream, as an SFTP session before its first packet. Only where the
/// server's shell finds the SFTP server program.
#[derive(Clone, Default)]
pub struct ReusableLogin {
    left: Arc<Mutex<Option<SftpLogin>>>,
    /// The tree that occupies the target of a push is listed.
    lists: bool,
}

impl ReusableLogin {
    /// A login that also lists the tree that occupies the target of a push.
    #[must_use]
    pub fn with_listing() -> ReusableLogin {
        ReusableLogin { lists: true, ..ReusableLogin::default() }
    }

    /// Returns the session, once.
    #[must_use]
    pub fn take(&self) -> Option<SftpLogin> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, left: SftpLogin) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
    }
}

/// A tree, from the server to this machine.
#[derive(Clone, Debug)]
pub struct Pull {
    /// A directory at the server: absolute, or relative to the login's home.
    pub directory: Vec<u8>,
    /// An entry of it; `None` for its contents.
    pub name: Option<Name>,
    /// A local directory.
    pub root: PathBuf,
    /// The target, relative to `root`. It must exist.
    pub target: RemotePath,
    /// What the source becomes, relative to the target.
    pub to: RemotePath,
    /// If set, the server reports whether the source is a directory. If it is not, this is its path,
    /// relative to the root, instead of `target` and `to`. If it is, the target is created if it does
    /// not exist.
    pub unless_directory: Option<RemotePath>,
}

/// A tree, from this machine to the server.
#[derive(Clone, Debug)]
pub struct Push {
    /// A file or directory. Links are followed in all components but the last.
    pub path: PathBuf,
    /// A directory at the server: absolute, or relative to the login's home.
    pub directory: Vec<u8>,
    /// Whether that directory is created if it does not exist; its parent must exist.
    pub may_make: bool,
    /// The source's name in it.
    pub name: Name,
    /// The source's path relative to the target, for reports and filters.
    pub to: RemotePath,
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Pull a tree.
    Tree,
    /// Pull single files.
    Names,
    /// Push a tree.
    Push,
    /// Push single files.
    Files,
}

impl Use {
    fn is_of_names(self) -> bool {
        matches!(self, Use::Names | Use::Files)
    }

    fn is_outward(self) -> bool {
        matches!(self, Use::Push | Use::Files)
    }
}

/// How a stream ended.
#[derive(Clone, Debug)]
pub enum Streamed {
    /// Everything was copied.
    Whole(StreamOutcome),
    /// Something was copied, and a [`Run`](crate::Run) has to copy the rest.
    Partly(StreamOutcome),
    /// Nothing was copied, for this reason.
    Declined(Declined),
}

/// Why there was no stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declined {
    /// The server runs no commands; its message.
    NoShell(String),
    /// A name has a newline, which cannot be quoted for every login shell.
    Unquotable,
    /// The server has neither GNU tar nor libarchive's tar.
    NoTar,
    /// The source, or the directory of the target, does not exist.
    Absent,
    /// The target's name is taken.
    Occupied,
    /// There is a stage: an earlier copy was interrupted, or another one is in progress.
    Staged {
        /// The name of the stage, in the same directory.
        stage: Name,
        /// As [`StreamOutcome::in_doubt`].
        in_doubt: bool,
    },
    /// Several sessions are faster, at this round trip.
    Slower(Duration),
    /// The connection was lost before the stream started.
    Lost(String),
    /// The login failed, and another one would fail, too.
    NoLogin(String),
}

/// Why a pull cannot write to this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {errno}", place.to_string_lossy().escape_debug())]
pub struct Unable {
    /// The path that could not be opened or created.
    pub place: PathBuf,
    /// Why.
    pub errno: Errno,
}

/// What a stream has done.
#[derive(Clone, Debug, Default)]
pub struct StreamOutcome {
    /// Entries that were copied.
    pub counts: Counts,
    /// The system refused owners.
    pub owners_refused: bool,
    /// The compression.
    pub method: Option<Method>,
    /// Bytes of the stream on the link.
    pub link_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The part of that spent waiting for the server or the link.
    pub waited: Duration,
    /// The rate of the link for the first bytes, in bytes per second, if that was measured.
    pub rate: Option<f64>,
    /// Why it is not whole, for the log.
    pub why: Option<String>,
    /// It was a push.
    pub is_push: bool,
    /// Of a push: the tree has its final name, and not that of the stage.
    pub placed: bool,
    /// Of a push: the name of the stage.
    pub stage: Option<Name>,
    /// Of a push that broke: a file in the stage may have the size and time of its source, but not all
    /// of its content.
    pub in_doubt: bool,
    /// Of a push that broke within a large file: that file, relative to the target, with its
    /// attributes. The stage has a beginning of it, or nothing.
    pub cut: Option<(RemotePath, Attr)>,
}

impl Streaming {
    /// The first option that no stream of a whole tree supports, if there is one.
    #[must_use]
    pub fn unsuited(options: &Options) -> Option<&'static str> {
        let reasons = [
            (options.dry_run, "--dry-run"),
            (options.existing, "--existing"),
            (options.verify, "--verify"),
        ];
        reasons.into_iter().find(|(is, _)| *is).map(|(_, option)| option)
    }

    /// As [`Streaming::unsuited`], for the push of a tree.
    #[must_use]
    pub fn unsuited_for_tree_push(options: &Options) -> Option<&'static str> {
        options.set_ids.then_some("--keep-setid").or(Streaming::unsuited_for_push(options))
    }

    /// As [`Streaming::unsuited`], for any push: the server's tar unpacks it.
    #[must_use]
    pub fn unsuited_for_push(options: &Options) -> Option<&'static str> {
        options.fsync.then_some("--fsync")
    }

    /// As [`Streaming::unsuited`], for a stream by names, where a run has compared before.
    #[must_use]
    pub fn unsuited_for_names(options: &Options) -> Option<&'static str> {
        let reasons = [(options.dry_run, "--dry-run"), (options.verify, "--verify")];
        reasons.into_iter().find(|(is, _)| *is).map(|(_, option)| option)
    }

    /// Pulls a tree. The target should be empty: files in it are replaced.
    ///
    /// # Errors
    /// If the target cannot be opened or created.
    pub async fn pull(&self, pull: &Pull) -> Result<Streamed, Unable> {
        let directory = script::plain_path(&pull.directory);
        let name = match &pull.name {
            Some(name) => script::plain_path(name.as_bytes()),
            None => b".".to_vec(),
        };
        let unable = |errno| Unable { place: pull.root.clone(), errno };
        let sink = Sink::open(&pull.root).map_err(unable)?;
        let Some(command) = script::pull(&directory, &name, &self.options) else {
            return Ok(Streamed::Declined(Declined::Unquotable));
        };
        let (peer, method) = match self.prepare(&command, Use::Tree).await {
            Ok(prepared) => prepared,
            Err(declined) => return Ok(Streamed::Declined(declined)),
        };
        let told = pull.unless_directory.as_ref().map(|path| (path, peer.greeting.is_directory));
        let mut made = None;
        let (target, to) = match told {
            Some((path, false)) => (RemotePath::root(), path.clone()),
            Some((_, true)) => {
                made = make_directory(&pull.root, &pull.target)?;
                (pull.target.clone(), pull.to.clone())
            }
            None => (pull.target.clone(), pull.to.clone()),
        };
        let (guard, waiting, flow) = stream::cancellable();
        let rate = peer.rate;
        let Running { stdin, stdout, exit } = peer.running;
        let is_directory = told.map(|(_, is_directory)| is_directory);
        let naming = Naming { top: pull.name.clone(), to, is_directory };
        let options = self.options.clone();
        let mut counters = self.counters();
        let began = Instant::now();
        let work = tokio::task::spawn_blocking(move || {
            let input = BufReader::with_capacity(READ_BYTES, Input::new(stdout, waiting));
            let unpacked = compress::decoder(method, input).and_then(|archive| {
                let archive = BufReader::with_capacity(READ_BYTES, archive);
                Unpacker::new(&sink, &target, &naming, &options, &mut counters).run(archive)
            });
            (counters, unpacked)
        });
        let (counters, unpacked) = joined(work.await).map_err(unable)?;
        drop(guard);
        let failed = unpacked.err().map(|error| error.to_string());
        if let (Some(_), Some(made)) = (&failed, &made) {
            // Where nothing has come into it: the source may be none that needs it.
            let _ = std::fs::remove_dir(made);
        }
        // Its input ends only now: a shell that lost it early would have ended, too.
        drop(stdin);
        let ended = match failed {
            Some(why) => Some(why),
            None => unclean(exit.await),
        };
        Ok(streamed(counters, ended, (method, rate), &flow, began))
    }

    /// Pushes a tree. Until it is whole it has the name of a [`stage`].
    ///
    /// # Errors
    /// Those of the system, if the source's directory cannot be opened; `ENAMETOOLONG`, see [`stage`].
    pub async fn push(&self, push: &Push) -> base::Result<Streamed> {
        let stage = stage(&push.name, &self.options)?;
        let directory = script::plain_path(&push.directory);
        let begin = begin_of_stages(&push.name);
        let names = [push.name.as_bytes(), stage.as_bytes(), &begin].map(script::plain_path);
        let is_directory = push.path.symlink_metadata().is_ok_and(|it| it.is_dir());
        let making = script::Making { parent: push.may_make, stage: is_directory };
        let command = script::push(&directory, &names, making, &self.options);
        let Some(command) = command else { return Ok(Streamed::Declined(Declined::Unquotable)) };
        let (peer, method) = match self.prepare_for(&command, Use::Push, Some(push)).await {
            Ok(prepared) => prepared,
            Err(declined) => return Ok(Streamed::Declined(declined)),
        };
        let in_doubt = peer.greeting.state == State::Ready(Kind::Bsd);
        let (parent, from) = opened(&push.path)?;
        let (guard, waiting, flow) = stream::cancellable();
        let rate = peer.rate;
        let Running { stdin, stdout, exit } = peer.running;
        let (options, to, top) = (self.options.clone(), push.to.clone(), stage.clone());
        let mut counters = self.counters();
        let began = Instant::now();
        let work = tokio::task::spawn_blocking(move || {
            let output = Output { stream: stdin, waiting };
            let packed = pack(output, (method, rate), &options, &mut counters, |packer| {
                packer.pack(parent.as_fd(), &from, top.as_bytes(), &to)?;
                Ok([top.as_bytes(), script::MARK].concat())
            });
            (counters, packed)
        });
        let (counters, packed) = joined(work.await)?;
        drop(guard);
        let stdin: Box<dyn tokio::io::AsyncWrite + Send + Unpin> = Box::new(tokio::io::sink());
        let mut running = Running { stdin, stdout, exit };
        let said = peer::line(&mut running).await.unwrap_or_default();
        let ended = match packed {
            Err(error) => Some(error.to_string()),
            Ok(()) if said == b"done" => None,
            Ok(()) => Some(peer::close_reason(running).await.why()),
        };
        Ok(match streamed(counters, ended, (method, rate), &flow, began) {
            Streamed::Partly(done) => {
                let in_doubt = in_doubt && !done.placed;
                let stage = Some(stage);
                Streamed::Partly(StreamOutcome { is_push: true, in_doubt, stage, ..done })
            }
            Streamed::Whole(done) => Streamed::Whole(StreamOutcome { is_push: true, ..done }),
            declined => declined,
        })
    }

    /// Talks to the server up to the start of the archive.
    async fn prepare(&self, command: &[u8], to: Use) -> Result<(Peer, Option<Method>), Declined> {
        self.prepare_for(command, to, None).await
    }

    /// As [`Streaming::prepare`], with the tree if one is pushed.
    async fn prepare_for(
        &self,
        command: &[u8],
        to: Use,
        push: Option<&Push>,
    ) -> Result<(Peer, Option<Method>), Declined> {
        let talk = async {
            let lists = to == Use::Push
                && self.reusable_login.as_ref().is_some_and(|reusable_login| reusable_login.lists);
            let words = if lists { script::LIST } else { script::HELLO };
            let mut peer = Peer::greet(&*self.shell, command, words).await?;
            self.greeted.notify_one();
            if let Some(declined) = self.unfit(&mut peer, to, push).await? {
                let is_listed = lists && declined == Declined::Occupied;
                self.leave(peer, is_listed).await;
                return Ok(Err(declined));
            }
            // Here only one of them has a fast enough library to compress.
            if self.only_if_fast && to.is_of_names() {
                peer.measure_round_trip().await?;
            }
            let is_push = to.is_outward();
            peer.greeting.methods.retain(|method| !is_push || *method == Method::Gzip);
            let method = peer.method(self.compress, !is_push).await?;
            peer.begin(method).await?;
            Ok::<_, Ended>(Ok((peer, method)))
        };
        match talk.await {
            Ok(prepared) => prepared,
            Err(Ended::Refused(why)) => Err(Declined::NoShell(why)),
            Err(Ended::Lost(why)) => Err(Declined::Lost(why)),
            Err(Ended::NoLogin(why)) => Err(Declined::NoLogin(why)),
        }
    }

    /// Why this stream is declined.
    async fn unfit(
        &self,
        peer: &mut Peer,
        to: Use,
        push: Option<&Push>,
    ) -> Result<Option<Declined>, Ended> {
        let declined = match peer.greeting.state {
            State::Ready(_) => None,
            State::NoTar | State::Bare => Some(Declined::NoTar),
            State::Absent => Some(Declined::Absent),
            State::There => Some(Declined::Occupied),
            State::Staged(kind) => {
                let stage = push.zip(peer.greeting.stage.as_deref());
                let stage = stage.and_then(|(it, number)| numbered_stage(&it.name, number).ok());
                let in_doubt = kind == Kind::Bsd;
                stage.map(|stage| Declined::Staged { stage, in_doubt })
            }
        };
        // What only streams carry of directories, and what they compress, several sessions do not.
        let together = self.options.hard_links && to == Use::Tree;
        let only_streams = self.options.xattrs.any() || together;
        if declined.is_some()
            || !self.only_if_fast
            || only_streams
            || matches!(self.compress, Compress::Always(_))
            || to.is_of_names()
        {
            return Ok(declined);
        }
        let is_one_file = to == Use::Tree && !peer.greeting.is_directory;
        if is_one_file && !peer.greeting.is_big {
            return Ok(None);
        }
        let round_trip = peer.measure_round_trip().await?;
        if round_trip <= LONG_ROUND_TRIP {
            return Ok(None);
        }
        let has_big_files = match push {
            None if is_one_file => true,
            None => peer.has_big_files().await?,
            Some(push) => {
                let (path, name) = (push.path.clone(), push.to.clone());
                let options = self.options.clone();
                let look = move || large::is_in(&path, &name, &options);
                tokio::task::spawn_blocking(look).await.unwrap_or(false)
            }
        };
        Ok(has_big_files.then_some(Declined::Slower(round_trip)))
    }

    /// Keeps the login of a declined stream; it may list the target before.
    async fn leave(&self, mut peer: Peer, is_listed: bool) {
        let Some(reusable_login) = self.reusable_login.as_ref().filter(|_| peer.greeting.has_sftp)
        else {
            return;
        };
        let left = async {
            peer.serve().await?;
            let listing = match is_listed {
                true => listing::read(&mut peer.running, listing::limit(&self.options)).await?,
                false => None,
            };
            Ok::<_, Ended>(SftpLogin { running: peer.running, listing })
        };
        match left.await {
            Ok(left) => reusable_login.keep(left),
            Err(ended) => {
                tracing::debug!("the login of the stream is not used: {}", ended.why());
            }
        }
    }

    fn counters(&self) -> Counters {
        Counters::new(self.progress.clone(), self.events.clone())
    }
}

/// Creates a directory that may exist; its path, if it did not.
fn make_directory(root: &std::path::Path, path: &RemotePath) -> Result<Option<PathBuf>, Unable> {
    use std::os::unix::ffi::OsStrExt;
    let place = root.join(std::ffi::OsStr::from_bytes(path.as_bytes()));
    match std::fs::create_dir(&place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Unable { place, errno: Errno::from(error) })
        }
        Err(_) => Ok(None),
        Ok(()) => Ok(Some(place)),
    }
}

/// Packs the members that `trees` adds, which returns the path of the mark.
fn pack(
    output: Output,
    (method, rate): (Option<Method>, Option<f64>),
    options: &Options,
    counters: &mut Counters,
    trees: impl FnOnce(&mut pack::Packer<'_, Encoder<Output>>) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let encoder = Encoder::new(method.is_some(), output, rate);
    let mut packer = pack::Packer::new(encoder, options, counters);
    let mark = trees(&mut packer)?;
    let mut output = packer.finish(&mark)?.finish()?;
    output.flush()
}

/// Opens the parent directory of a path, and returns it with the last name; for `.` and `..` the
/// directory itself, with `.`.
fn opened(path: &std::path::Path) -> base::Result<(std::os::fd::OwnedFd, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    let (directory, name) = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            (PathBuf::from("."), name.as_bytes().to_vec())
        }
        (Some(parent), Some(name)) => (parent.to_owned(), name.as_bytes().to_vec()),
        _ => (path.to_owned(), b".".to_vec()),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, &directory, flags, Mode::empty());
    Ok((opened.map_err(|error| Errno::from_raw(error.raw_os_error()))?, name))
}

fn joined<T>(work: Result<T, tokio::task::JoinError>) -> base::Result<T> {
    work.map_err(|error| {
        tracing::error!("a stream's thread has ended: {error}");
        Errno::EIO
    })
}

/// Why a command did not end successfully.
fn unclean(exit: Result<crate::shell::Exit, crate::shell::ShellError>) -> Option<String> {
    match exit {
        Ok(exit) if exit.status == Some(0) => None,
        Ok(exit) => Some(String::from_utf8_lossy(&exit.stderr).trim().escape_debug().to_string()),
        Err(error) => Some(error.to_string()),
    }
}

fn streamed(
    counters: Counters,
    ended: Option<String>,
    (method, rate): (Option<Method>, Option<f64>),
    flow: &Flow,
    began: Instant,
) -> Streamed {
    let placed = ended.is_none();
    let is_whole = placed && counters.missed == 0;
    let why =
        ended.or_else(|| (counters.missed > 0).then(|| format!("{} missed", counters.missed)));
    let done = StreamOutcome {
        counts: counters.counts,
        owners_refused: counters.owners_refused,
        method,
        link_bytes: flow.bytes(),
        elapsed: began.elapsed(),
        waited: flow.waited(),
        rate,
        why,
        is_push: false,
        placed,
        stage: None,
        in_doubt: false,
        cut: counters.sending.filter(|(_, attr)| attr.size >= LASTING_BYTES),
    };
    if is_whole { Streamed::Whole(done) } else { Streamed::Partly(done) }
}

impl StreamOutcome {
    /// The outcome of both, if a run has copied what the stream has missed: what the run found unchanged
    /// was copied by the stream.
    #[must_use]
    pub fn followed_by(&self, run: Outcome) -> Outcome {
        let (mine, mut counts) = (self.counts, run.counts);
        let done = [
            (&mut counts.dirs_made, mine.dirs_made),
            (&mut counts.files_copied, mine.files_copied),
            (&mut counts.links_made, mine.links_made),
            (&mut counts.names_made, mine.names_made),
        ];
        for (count, of_stream) in done {
            // What the stream has copied and the run copied again is the run's.
            let first = of_stream.min(counts.unchanged);
            *count += first;
            counts.unchanged -= first;
            let set = (of_stream - first).min(counts.attrs_set);
            *count += set;
            counts.attrs_set -= set;
        }
        counts.bytes_copied += mine.bytes_copied;
        let (for_source, for_target) = self.waits();
        Outcome {
            counts,
            owners_refused: run.owners_refused || self.owners_refused,
            elapsed: run.elapsed + self.elapsed,
            waited_for_source: run.waited_for_source + for_source,
            waited_for_target: run.waited_for_target + for_target,
            ..run
        }
    }

    /// Time spent waiting for the source, and for the target.
    fn waits(&self) -> (Duration, Duration) {
        match self.is_push {
            true => (Duration::ZERO, self.waited),
            false => (self.waited, Duration::ZERO),
        }
    }

    /// The outcome of the stream alone.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let (waited_for_source, waited_for_target) = self.waits();
        Outcome {
            counts: self.counts,
            owners_refused: self.owners_refused,
            elapsed: self.elapsed,
            waited_for_source,
            waited_for_target,
            ..Outcome::default()
        }
    }
}

#[cfg(test)]
mod tests;
