//! Trees in one stream: `tar` at the server, this program on this side.
//!
//! A stream is the fastest method for thousands of small files: none of them costs a round trip or
//! a request, and it needs only one login. It is for trees that the target does not have: a pull
//! into an empty place, and a push to a name that is free. It carries what SFTP cannot: times to
//! the nanosecond, hard links, holes, extended attributes, devices.
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
pub(crate) mod fuzz_tests;
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

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Mutex, Name, RemotePath};
use rustix::fs::{CWD, Mode, OFlags};
use tokio::sync::Notify;

pub use crate::compress::{Compress, Method};
use crate::events::{Events, Progress};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::shell::{Shell, ShellError, plain_path};
use crate::sink::Sink;
use crate::task::blocking;
use crate::temporary;
pub use large::BIG_BYTES;

use counters::Counters;
use listing::SftpLogin;
use pack::Packer;
use peer::Peer;
pub use peer::{ANSWER_LIMIT, LOGIN_LIMIT};
use receive::{Confirmed, torn_since};
use script::{Kind, State};
pub use stage::{Stage, stage, suits};
use stage::{begin_of_stages, numbered_stage};
use unpack::{Naming, Unpacker};

/// With a longer round trip OpenSSH's window of 2 MiB bounds one stream: 400 MB/s.
pub const LONG_ROUND_TRIP: Duration = Duration::from_millis(5);

/// The compression of a push: no other has a library that is fast enough.
pub(crate) const PUSH_METHOD: Method = Method::Gzip;

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
    pub fn with_listing() -> ReusableLogin {
        ReusableLogin { lists: true, ..ReusableLogin::default() }
    }

    /// Returns the session, once.
    pub fn take(&self) -> Option<SftpLogin> {
        self.left.lock().take()
    }

    fn keep(&self, left: SftpLogin) {
        *self.left.lock() = Some(left);
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
    /// If set, the server reports whether the source is a directory. If it is not, this is its
    /// path, relative to the root, instead of `target` and `to`. If it is, the target is created if
    /// it does not exist.
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
#[derive(Clone, Copy)]
enum Use<'a> {
    /// Pull a tree.
    Tree,
    /// Pull single files.
    Names,
    /// Push a tree.
    Push(&'a Push),
    /// Push single files.
    Files,
}

impl Use<'_> {
    fn is_of_names(self) -> bool {
        matches!(self, Use::Names | Use::Files)
    }

    fn is_outward(self) -> bool {
        matches!(self, Use::Push(_) | Use::Files)
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
    Staged(Box<Stage>),
    /// Several sessions are faster, at this round trip.
    Slower(Duration),
    /// The connection was lost before the stream started.
    Lost(String),
    /// The login failed, and another one would fail, too.
    NoLogin(String),
}

impl From<ShellError> for Declined {
    fn from(error: ShellError) -> Declined {
        match error {
            ShellError::Refused(why) => Declined::NoShell(why),
            ShellError::Lost(why) => Declined::Lost(why),
            ShellError::NoLogin(why) => Declined::NoLogin(why),
        }
    }
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
    /// What was copied, with the problems that a run would not find.
    pub outcome: Outcome,
    /// The compression.
    pub method: Option<Method>,
    /// Why it is not whole, for the log.
    pub why: Option<String>,
    /// Of a push: the stage, if the tree has not got its final name.
    pub stage: Option<Stage>,
}

impl Streaming {
    /// The first option that no stream supports, if there is one: no push, since the server's tar
    /// unpacks it; no stream of a whole tree (`is_tree`), since nothing is compared before.
    pub fn unsuited(options: &Options, is_push: bool, is_tree: bool) -> Option<&'static str> {
        let reasons = [
            (is_push && is_tree && options.set_ids, "--keep-setid"),
            (is_push && options.fsync, "--fsync"),
            (options.dry_run, "--dry-run"),
            (is_tree && options.existing, "--existing"),
            (options.verify, "--verify"),
        ];
        reasons.into_iter().find(|(is, _)| *is).map(|(_, option)| option)
    }

    /// Pulls a tree. The target should be empty: an entry whose name exists there is not copied,
    /// and counts as missed.
    ///
    /// # Errors
    /// If the target cannot be opened or created.
    pub async fn pull(&self, pull: &Pull) -> Result<Streamed, Unable> {
        let unable = |errno| Unable { place: pull.root.clone(), errno };
        let sink = Arc::new(Sink::open(&pull.root).map_err(unable)?);
        let name = name_or_all(pull.name.as_ref());
        let command = script::pull(&plain_path(&pull.directory), &name, &self.options);
        let peer = match self.prepare(command, Use::Tree).await {
            Ok(peer) => peer,
            Err(declined) => return Ok(Streamed::Declined(declined)),
        };
        let (mut target, mut to) = (pull.target.clone(), pull.to.clone());
        let (mut is_directory, mut made) = (None, None);
        if let Some(path) = &pull.unless_directory {
            is_directory = Some(peer.greeting.is_directory);
            match peer.greeting.is_directory {
                true => made = make_directory(&pull.root, &pull.target)?,
                false => (target, to) = (RemotePath::root(), path.clone()),
            }
        }
        let naming = Naming { top: pull.name.clone(), to, is_directory };
        let (options, here) = (self.options.clone(), sink.clone());
        let reports_changes = peer.greeting.reports_changes();
        let torn_since = torn_since(peer.greeting.clock_secs);
        let unpack = move |counters: &mut Counters, archive: stream::Archive| {
            Unpacker::new(&here, &target, &naming, &options, counters, torn_since).run(archive)
        };
        let mut end = peer.receive((), self.counters(), unpack).await;
        let confirmed = Confirmed::by(end.why.is_none(), reports_changes, torn_since);
        let mut counters = end.done;
        end.done = blocking(move || {
            counters.set_mtimes(&sink, confirmed);
            counters
        })
        .await;
        if let (Some(_), Some(made)) = (&end.why, made) {
            // Where nothing has come into it: the source may be none that needs it.
            let _ = std::fs::remove_dir(made);
        }
        if confirmed != Confirmed::All {
            let why = "its tar does not report files that changed while it read them";
            end.why.get_or_insert_with(|| why.to_owned());
        }
        Ok(Streamed::of(end))
    }

    /// Pushes a tree. Until it is whole it has the name of a [`stage`].
    ///
    /// # Errors
    /// Those of the system, if the source's directory cannot be opened; `ENAMETOOLONG`, see
    /// [`stage`].
    pub async fn push(&self, push: &Push) -> base::Result<Streamed> {
        let stage = stage(&push.name, &self.options)?;
        let begin = begin_of_stages(&push.name);
        let partial = temporary::begin(&push.name);
        let names = [push.name.as_bytes(), stage.as_bytes(), &begin, &partial].map(plain_path);
        let is_directory = push.path.symlink_metadata().is_ok_and(|it| it.is_dir());
        let making = script::Making { parent: push.may_make, stage: is_directory };
        let command = script::push(&plain_path(&push.directory), &names, making, &self.options);
        let peer = match self.prepare(command, Use::Push(push)).await {
            Ok(peer) => peer,
            Err(declined) => return Ok(Streamed::Declined(declined)),
        };
        let in_doubt = peer.greeting.state == State::Ready(Kind::Bsd);
        let (parent, from) = opened(&push.path)?;
        let (options, to, top) = (self.options.clone(), push.to.clone(), stage.clone());
        let pack = move |counters: &mut Counters, output: stream::Sending| {
            let mut packer = Packer::new(output, &options, counters);
            packer.pack(parent.as_fd(), &from, top.as_bytes(), &to)?;
            packer.finish(&[top.as_bytes(), script::MARK].concat())
        };
        let mut end = peer.send(b"done", self.counters(), pack).await;
        let sending = end.done.sending.take();
        let cut = sending.filter(|(_, attr)| attr.size >= LASTING_BYTES);
        let stage = Stage { name: push.name.clone(), stage, is_own: true, in_doubt, cut };
        let stage = end.why.is_some().then_some(stage);
        let mut streamed = Streamed::of(end);
        if let Streamed::Whole(done) | Streamed::Partly(done) = &mut streamed {
            done.stage = stage;
        }
        Ok(streamed)
    }

    /// Talks to the server up to the start of the archive. Without a command, a name in it cannot
    /// be quoted.
    async fn prepare(&self, command: Option<Vec<u8>>, to: Use<'_>) -> Result<Peer, Declined> {
        let command = command.ok_or(Declined::Unquotable)?;
        let lists = matches!(to, Use::Push(_))
            && self.reusable_login.as_ref().is_some_and(|reusable_login| reusable_login.lists);
        let words = if lists { script::LIST } else { script::HELLO };
        let mut peer = Peer::greet(&*self.shell, &command, words).await?;
        self.greeted.notify_one();
        if let Some(declined) = self.unfit(&mut peer, to).await? {
            self.leave(peer, lists && declined == Declined::Occupied).await;
            return Err(declined);
        }
        if self.only_if_fast && to.is_of_names() {
            peer.measure_round_trip().await?;
        }
        peer.greeting.methods.retain(|method| !to.is_outward() || *method == PUSH_METHOD);
        peer.choose_method(self.compress, !to.is_outward()).await?;
        peer.begin().await?;
        Ok(peer)
    }

    /// Why this stream is declined.
    async fn unfit(&self, peer: &mut Peer, to: Use<'_>) -> Result<Option<Declined>, ShellError> {
        let declined = match (peer.greeting.state, to) {
            (State::Ready(_), _) => None,
            (State::NoTar | State::Bare, _) => Some(Declined::NoTar),
            (State::Absent, _) => Some(Declined::Absent),
            (State::There, _) => Some(Declined::Occupied),
            (State::Staged(kind), Use::Push(push)) => {
                let number = peer.greeting.stage.as_deref();
                let found = number.and_then(|number| numbered_stage(&push.name, number).ok());
                let (name, in_doubt) = (push.name.clone(), kind == Kind::Bsd);
                found.map(|stage| {
                    let stage = Stage { name, stage, is_own: false, in_doubt, cut: None };
                    Declined::Staged(Box::new(stage))
                })
            }
            (State::Staged(_), _) => None,
        };
        // What only streams carry of directories, and what they compress, several sessions do not.
        let together = self.options.hard_links && matches!(to, Use::Tree);
        let only_streams = self.options.xattrs.any() || together;
        if declined.is_some()
            || !self.only_if_fast
            || only_streams
            || matches!(self.compress, Compress::Always(_))
            || to.is_of_names()
        {
            return Ok(declined);
        }
        let is_one_file = matches!(to, Use::Tree) && !peer.greeting.is_directory;
        if is_one_file && !peer.greeting.is_big {
            return Ok(None);
        }
        let round_trip = peer.measure_round_trip().await?;
        if round_trip <= LONG_ROUND_TRIP {
            return Ok(None);
        }
        let has_big_files = match to {
            Use::Push(push) => {
                let (path, name) = (push.path.clone(), push.to.clone());
                let options = self.options.clone();
                blocking(move || large::is_in(&path, &name, &options)).await
            }
            _ => is_one_file || peer.has_big_files().await?,
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
            Ok::<_, ShellError>(SftpLogin { running: peer.running, listing })
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

/// An entry of a directory, or `.` for all that is in it, as commands take it.
fn name_or_all(name: Option<&Name>) -> Vec<u8> {
    name.map_or(b".".to_vec(), |name| plain_path(name.as_bytes()))
}

/// Creates a directory that may exist; its path, if it did not.
pub(crate) fn make_directory(
    root: &std::path::Path,
    path: &RemotePath,
) -> Result<Option<PathBuf>, Unable> {
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

/// Opens the parent directory of a path, and returns it with the last name; for a path that ends
/// with `.` or `..` the directory itself, with `.`.
fn opened(path: &std::path::Path) -> base::Result<(std::os::fd::OwnedFd, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    // `Path` ignores a `.` at the end.
    let is_directory = path.as_os_str().as_bytes().ends_with(b"/.");
    let name = path.file_name().filter(|_| !is_directory);
    let (directory, name) = match (path.parent(), name) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            (PathBuf::from("."), name.as_bytes().to_vec())
        }
        (Some(parent), Some(name)) => (parent.to_owned(), name.as_bytes().to_vec()),
        _ => (path.to_owned(), b".".to_vec()),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, &directory, flags, Mode::empty());
    Ok((opened.map_err(local::errno)?, name))
}

impl Streamed {
    fn of(end: stream::End<Counters>) -> Streamed {
        let stream::End { done: counters, why, elapsed, method, .. } = end;
        let Counters { outcome, missed, .. } = counters;
        let why = why.or_else(|| (missed > 0).then(|| format!("{missed} missed")));
        let outcome = Outcome { elapsed, ..outcome };
        let done = StreamOutcome { outcome, method, why, stage: None };
        if done.why.is_none() { Streamed::Whole(done) } else { Streamed::Partly(done) }
    }
}

impl StreamOutcome {
    /// The outcome of both, if a run has copied what the stream has missed: what the run found
    /// unchanged was copied by the stream.
    pub fn followed_by(self, run: Outcome) -> Outcome {
        let (mine, mut counts) = (self.outcome.counts, run.counts);
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
        // Not what a full disk at the other side has not taken.
        counts.bytes_copied += mine.bytes_copied.min(counts.bytes_unchanged);
        Outcome { counts, ..run.and(self.outcome) }
    }
}

#[cfg(test)]
mod tests;
