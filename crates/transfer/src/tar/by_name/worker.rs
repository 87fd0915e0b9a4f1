//! The stream of one source: when it starts, and the names that are sent to it.

use std::sync::Arc;

use base::FileKind;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::pull::Placer;
use super::push::{self, FilePacker};
use super::{ByName, Messages, Pending, StreamEnd};
use crate::options::Xattrs;
use crate::outcome::Side;
use crate::run::Core;
use crate::shell::plain_path;
use crate::step::{Action, Step};
use crate::tar::peer::Peer;
use crate::tar::receive::{Confirmed, torn_since};
use crate::tar::stream::End;
use crate::tar::{Declined, LONG_ROUND_TRIP, Use, name_or_all, script};
use crate::task::AbortOnDrop;
use crate::xattr;

/// A stream is worth its login from this number of files on. A login takes 100 ms and more, in
/// which a server opens at least this many.
const WORTH_FILES: usize = 256;

/// Files up to this size are small: they are streamed, and larger ones go in pieces.
const SMALL_BYTES: u64 = 1 << 20;

/// As [`SMALL_BYTES`] with a long round trip: there several sessions copy all but the smallest
/// files faster than one stream, which is bound by its window.
const SMALL_FAR_BYTES: u64 = 64 << 10;

/// Files of one stream. Each takes 600 to 700 bytes of memory until tar has succeeded.
const STREAM_FILES: usize = 1 << 18;

/// As [`STREAM_FILES`], for a push. Its files get their names after all have arrived, so this is
/// what an interruption costs.
const STREAM_FILES_OUT: usize = 1 << 15;

/// Names that are sent together, in bytes.
const SEND_BYTES: usize = 16 << 10;

/// Batches of names that wait for tar.
const SENDINGS: usize = 4;

/// Whether a step is for the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It is not.
    None,
    /// It is, if there are many.
    Many,
    /// It is: nothing else is wanted, or can copy it.
    This,
}

impl Need {
    pub(super) fn is_wanted(self) -> bool {
        self != Need::None
    }
}

type Called = Result<Peer, Declined>;

/// One source's stream. See the [module](super).
pub(super) struct Worker {
    place: ByName,
    /// Of a push: the number of the source.
    pushed: Option<usize>,
    /// Steps that were for the stream.
    seen: usize,
    /// Files up to this size are for the stream.
    small_bytes: u64,
    state: State,
}

enum State {
    /// It is not worth a login yet.
    Idle,
    /// The login is in progress.
    Calling(AbortOnDrop<Called>),
    /// The server has answered.
    Called(Box<Peer>),
    Open(Stream),
    /// There is none, and there will be none.
    Never,
}

/// A stream that takes names.
struct Stream {
    names: mpsc::Sender<Vec<u8>>,
    buffer: Vec<u8>,
    pending: Arc<Pending>,
    taken: usize,
    work: AbortOnDrop<StreamEnd>,
}

impl Worker {
    /// A push of the source of this number; without one, a pull.
    pub(super) fn new(place: ByName, pushed: Option<usize>) -> Worker {
        Worker { place, pushed, seen: 0, small_bytes: SMALL_BYTES, state: State::Idle }
    }

    /// The side at the server.
    pub(super) fn remote_side(&self) -> Side {
        if self.pushed.is_some() { Side::Target } else { Side::Source }
    }

    /// Whether a step is for it.
    pub(super) fn need(&self, core: &Core, step: &Step) -> Need {
        let options = &core.job.options;
        let forced = !self.place.streaming.only_if_fast;
        let is_pull = self.pushed.is_none();
        let is_local = match self.pushed {
            None => core.sink.is_some(),
            Some(source) => core.job.sources[source].tree.local.is_some(),
        };
        // Where nothing else reports hard links, the archive shows them if all names of a file are
        // in it.
        let together = options.hard_links && is_pull && !core.knows_links(step);
        let streams_xattrs = core.streams_xattrs(step.source);
        // What is in the way is for the run, and so is what can be gone on with, unless it cannot
        // come by the run at all.
        let in_the_way = step.own.is_none() && step.there.is_some_and(|there| there.is_dir());
        let is_begun = step.partials.iter().any(|partial| partial.reliable() > 0);
        let is_special =
            !matches!(step.attr.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        let needs_stream = streams_xattrs || (is_special && !core.makes_special(step));
        // The server's tar would give set-ID bits to files of any owner.
        let sets_ids = !is_pull && core.set_ids_of(&step.attr).is_some();
        if !is_local
            || sets_ids
            || (in_the_way && !needs_stream)
            || (is_begun && !streams_xattrs && !together)
        {
            return Need::None;
        }
        let usual = if forced { Need::This } else { Need::Many };
        match (&step.action, step.attr.kind) {
            (action, FileKind::Directory) if streams_xattrs && xattr::come_with(action) => {
                Need::This
            }
            (Action::MakeLink(_), _) if streams_xattrs && options.xattrs == Xattrs::All => {
                Need::This
            }
            (Action::MakeLink(_), _) => usual,
            (Action::Copy(_), FileKind::Regular) if streams_xattrs || together => Need::This,
            (Action::Copy(_), FileKind::Regular)
                if forced || step.attr.size <= self.small_bytes =>
            {
                usual
            }
            (Action::Copy(_), FileKind::Regular) => Need::None,
            (Action::Copy(_), _) if core.makes_special(step) && !streams_xattrs => usual,
            (Action::Copy(_), _) => Need::This,
            _ => Need::None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Starts the stream if it is worth it by now. Waits for its login if the step needs it.
    pub(super) async fn prepare(&mut self, core: &Arc<Core>, need: Need) -> Result<(), Declined> {
        self.seen += 1;
        if matches!(self.state, State::Idle) && (need == Need::This || self.seen >= WORTH_FILES) {
            self.state = self.calling();
        }
        if let State::Calling(calling) = &self.state
            && (need == Need::This || calling.0.is_finished())
        {
            core.unless_stopped(self.answered()).await.unwrap_or(Ok(()))?;
        }
        match std::mem::replace(&mut self.state, State::Never) {
            State::Called(peer) => {
                self.state = State::Open(Stream::new(core.clone(), self.pushed, *peer));
            }
            state => self.state = state,
        }
        Ok(())
    }

    /// Logs in, and waits for the server's answer.
    pub(super) async fn call(&mut self) -> Result<(), Declined> {
        if matches!(self.state, State::Idle) {
            self.state = self.calling();
        }
        self.answered().await
    }

    /// Logs in and starts the command.
    fn calling(&self) -> State {
        let ByName { streaming, directory, name } = self.place.clone();
        let (directory, name) = (plain_path(&directory), name_or_all(name.as_ref()));
        let (command, to) = match self.pushed {
            None => (script::list(&directory, &name, &streaming.options), Use::Names),
            Some(_) => (script::take(&directory, &streaming.options), Use::Files),
        };
        let call = async move { streaming.prepare(command, to).await };
        State::Calling(AbortOnDrop(tokio::spawn(call)))
    }

    /// Waits for the answer, if a login is in progress.
    async fn answered(&mut self) -> Result<(), Declined> {
        let State::Calling(calling) = &mut self.state else { return Ok(()) };
        let called = (&mut calling.0).await;
        self.state = State::Never;
        let peer = called.unwrap_or_else(|error| Err(Declined::Lost(error.to_string())))?;
        if peer.round_trip.is_some_and(|round_trip| round_trip > LONG_ROUND_TRIP) {
            self.small_bytes = SMALL_FAR_BYTES;
        }
        self.state = State::Called(Box::new(peer));
        Ok(())
    }

    /// Requests the step's file. False if the stream must end: it has its number of files, or
    /// accepts no more.
    pub(super) async fn add(&mut self, core: &Core, step: Step) -> bool {
        let State::Open(stream) = &mut self.state else { return false };
        stream.add(step);
        let takes = stream.buffer.len() < SEND_BYTES || stream.send(core).await;
        let most = if self.pushed.is_none() { STREAM_FILES } else { STREAM_FILES_OUT };
        takes && stream.taken < most
    }

    pub(super) async fn flush(&mut self, core: &Core) {
        if let State::Open(stream) = &mut self.state {
            // That it takes no more is found by who adds next, or by who ends it.
            let _ = stream.send(core).await;
        }
    }

    /// Ends the stream, and waits for it. `None` if there is none, or the run is stopped. Another
    /// one can follow if this one succeeded.
    pub(super) async fn end(&mut self, core: &Core) -> Option<StreamEnd> {
        let state = std::mem::replace(&mut self.state, State::Idle);
        let State::Open(mut stream) = state else {
            self.state = state;
            return None;
        };
        stream.send(core).await;
        let Stream { names, pending, work, .. } = stream;
        drop(names);
        let mut end = core.unless_stopped(work.join()).await?;
        let pending = std::mem::take(&mut *pending.0.lock());
        end.left.extend(pending.into_values().map(|mut step| {
            step.refused = end.messages.problem(&step.from, &step.name);
            step
        }));
        if end.why.is_some() {
            self.state = State::Never;
        }
        Some(end)
    }
}

impl Stream {
    fn new(core: Arc<Core>, pushed: Option<usize>, peer: Peer) -> Stream {
        let (names, sendings) = mpsc::channel(SENDINGS);
        let pending = Arc::new(Pending::default());
        let here = pending.clone();
        let work = match pushed {
            None => tokio::spawn(pull_files(core, peer, here, sendings)),
            Some(source) => tokio::spawn(push_files(core, source, peer, here, sendings)),
        };
        let buffer = Vec::with_capacity(SEND_BYTES + 4096);
        Stream { names, buffer, pending, taken: 0, work: AbortOnDrop(work) }
    }

    fn add(&mut self, step: Step) {
        self.buffer.extend_from_slice(b"./");
        self.buffer.extend_from_slice(step.from.as_bytes());
        self.buffer.push(0);
        self.taken += 1;
        self.pending.0.lock().insert(step.from.clone(), step);
    }

    /// Sends the collected names. False if the stream accepts no more.
    async fn send(&mut self, core: &Core) -> bool {
        if self.buffer.is_empty() {
            return true;
        }
        let names = std::mem::replace(&mut self.buffer, Vec::with_capacity(SEND_BYTES + 4096));
        core.unless_stopped(self.names.send(names)).await.is_some_and(|sent| sent.is_ok())
    }
}

/// Sends names to tar, and unpacks its archive, to the end of both.
async fn pull_files(
    core: Arc<Core>,
    mut peer: Peer,
    pending: Arc<Pending>,
    names: mpsc::Receiver<Vec<u8>>,
) -> StreamEnd {
    let stdin = std::mem::replace(&mut peer.running.stdin, Box::new(tokio::io::sink()));
    let feeding = AbortOnDrop(tokio::spawn(feed(stdin, names)));
    let torn_since = torn_since(peer.greeting.clock_secs);
    let placer = Placer::new(core, pending, torn_since);
    let reports_changes = peer.greeting.reports_changes();
    let End { done, why, messages, .. } = peer.receive(feeding, placer, Placer::unpack).await;
    let Placer { copied, left, .. } = done;
    let confirmed = Confirmed::by(why.is_none(), reports_changes, torn_since);
    let entries = copied.iter().filter(|one| one.end.is_ok()).count() as u64;
    StreamEnd { entries, copied, left, why, confirmed, messages: Messages::parse(&messages) }
}

/// Sends the named files, and renames them to their names when tar has succeeded.
async fn push_files(
    core: Arc<Core>,
    source: usize,
    peer: Peer,
    pending: Arc<Pending>,
    names: mpsc::Receiver<Vec<u8>>,
) -> StreamEnd {
    let (sent, left) = (Vec::new(), Vec::new());
    let packer = FilePacker { core: core.clone(), source, pending, sent, left };
    let pack = move |packer: &mut FilePacker, output| packer.pack(output, names);
    let End { done: FilePacker { sent, mut left, .. }, mut why, messages, .. } =
        peer.send(b"0", packer, pack).await;
    let messages = Messages::parse(&messages);
    let mut sent = sent;
    if why.is_some() && messages.name_only(sent.iter().map(|one| &one.temporary)) {
        // All others have arrived.
        why = None;
        let (failed, arrived) = sent.into_iter().partition(|one| messages.has(&one.temporary));
        left.extend(push::failed(&core, failed, &messages));
        sent = arrived;
    }
    let mut entries = sent.len() as u64;
    match why {
        None => {
            let unplaced = push::place(&core, sent).await;
            if entries > 0 && unplaced.len() as u64 == entries {
                // Shell and SFTP may see different roots: another stream would do no better.
                why = Some("nothing of what was sent is at the target".to_owned());
            }
            entries -= unplaced.len() as u64;
            left.extend(unplaced);
        }
        // All of it goes by the run, which begins by removing what there is.
        Some(_) => {
            entries = 0;
            left.extend(push::in_doubt(&core, sent));
        }
    }
    let (copied, confirmed) = (Vec::new(), Confirmed::Nothing);
    StreamEnd { entries, copied, left, why, confirmed, messages }
}

/// Writes names as they arrive; after the last one closes tar's input.
async fn feed(
    mut stdin: Box<dyn AsyncWrite + Send + Unpin>,
    mut sendings: mpsc::Receiver<Vec<u8>>,
) {
    while let Some(names) = sendings.recv().await {
        // If tar does not read them, the archive has ended, too.
        if stdin.write_all(&names).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}
