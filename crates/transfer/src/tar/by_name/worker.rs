//! The stream of one source: when it starts, and the names that are sent to it.

use std::io::{BufReader, Write};
use std::sync::Arc;
use std::time::Instant;

use base::FileKind;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::pull::Placer;
use super::{Link, Pending, PullByName, PushByName, StreamEnd, push};
use crate::compress::{self, Encoder, Method};
use crate::digest::AbortOnDrop;
use crate::flow::Side;
use crate::run::Core;
use crate::shell::Running;
use crate::step::{Action, Step};
use crate::tar::peer::{Peer, close_reason, line};
use crate::tar::stream::{self, Input, Output};
use crate::tar::{Declined, LONG_ROUND_TRIP, READ_BYTES, Streaming, Use, script, unclean};

/// A stream is worth its login from this number of files on. A login takes 100 ms and more, in which a
/// server opens at least this many.
const WORTH_FILES: usize = 256;

/// Files up to this size are small: they are streamed, and larger ones go in pieces.
const SMALL_BYTES: u64 = 1 << 20;

/// As [`SMALL_BYTES`] with a long round trip: there several sessions copy all but the smallest files
/// faster than one stream, which is bound by its window.
const SMALL_FAR_BYTES: u64 = 64 << 10;

/// Files of one stream. Each takes some 250 bytes of memory until tar has succeeded.
const STREAM_FILES: usize = 1 << 18;

/// As [`STREAM_FILES`], for a push. Its files get their names after all have arrived, so this is what an
/// interruption costs.
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

type Called = Result<(Peer, Option<Method>), Declined>;

/// One source's stream. See the [module](self).
pub(super) struct Worker {
    kind: Kind,
    /// Steps that were for the stream.
    seen: usize,
    /// Files up to this size are for the stream.
    small_bytes: u64,
    state: State,
}

/// The direction of the stream.
#[derive(Clone)]
enum Kind {
    Pull(PullByName),
    /// From the source of this number.
    Push(PushByName, usize),
}

impl Kind {
    fn streaming(&self) -> &Streaming {
        match self {
            Kind::Pull(pull) => &pull.streaming,
            Kind::Push(push, _) => &push.streaming,
        }
    }

    /// Whether the other side is a local directory.
    fn can(&self, core: &Core) -> bool {
        match self {
            Kind::Pull(_) => core.sink.is_some(),
            Kind::Push(_, source) => core.job.sources[*source].tree.local.is_some(),
        }
    }

    /// Files of one stream.
    fn most(&self) -> usize {
        match self {
            Kind::Pull(_) => STREAM_FILES,
            Kind::Push(..) => STREAM_FILES_OUT,
        }
    }
}

enum State {
    /// It is not worth a login yet.
    Idle,
    /// The login is in progress.
    Calling(AbortOnDrop<Called>),
    /// The server has answered.
    Called(Box<(Peer, Option<Method>)>),
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
    pub(super) fn pull(pull: PullByName) -> Worker {
        Worker { kind: Kind::Pull(pull), seen: 0, small_bytes: SMALL_BYTES, state: State::Idle }
    }

    pub(super) fn push(push: PushByName, source: usize) -> Worker {
        let kind = Kind::Push(push, source);
        Worker { kind, seen: 0, small_bytes: SMALL_BYTES, state: State::Idle }
    }

    /// The side at the server.
    pub(super) fn remote_side(&self) -> Side {
        match self.kind {
            Kind::Pull(_) => Side::Source,
            Kind::Push(..) => Side::Target,
        }
    }

    /// Whether a step is for it.
    pub(super) fn need(&self, core: &Core, step: &Step) -> Need {
        let options = &core.job.options;
        let forced = !self.kind.streaming().only_if_fast;
        // The archive shows hard links only if all names of a file are in it.
        let together = options.hard_links && matches!(self.kind, Kind::Pull(_));
        // What is in the way is for the run, and so is what can be gone on with, unless it cannot
        // come by the run at all.
        let is_begun = step.partials.iter().any(|partial| partial.reliable() > 0);
        // The server's tar would give set-ID bits to files of any owner.
        let sets_ids = matches!(self.kind, Kind::Push(..)) && core.set_ids_of(&step.attr).is_some();
        if !self.kind.can(core)
            || sets_ids
            || step.there.is_some_and(|there| there.is_dir())
            || (is_begun && !options.xattrs.any() && !together)
        {
            return Need::None;
        }
        let usual = if forced { Need::This } else { Need::Many };
        match (&step.action, step.attr.kind) {
            (Action::MakeLink(_), _) => usual,
            (Action::Copy(_), FileKind::Regular) if options.xattrs.any() || together => Need::This,
            (Action::Copy(_), FileKind::Regular)
                if forced || step.attr.size <= self.small_bytes =>
            {
                usual
            }
            (Action::Copy(_), FileKind::Regular) => Need::None,
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
            self.state = State::Calling(AbortOnDrop(tokio::spawn(call(self.kind.clone()))));
        }
        if let State::Calling(calling) = &self.state
            && (need == Need::This || calling.0.is_finished())
        {
            tokio::select! {
                biased;
                () = core.stopped() => return Ok(()),
                answered = self.answered() => answered?,
            }
        }
        match std::mem::replace(&mut self.state, State::Never) {
            State::Called(called) => {
                let (peer, method) = *called;
                self.state = State::Open(Stream::new(core.clone(), &self.kind, peer, method));
            }
            state => self.state = state,
        }
        Ok(())
    }

    /// Logs in, and waits for the server's answer.
    pub(super) async fn call(&mut self) -> Result<(), Declined> {
        if matches!(self.state, State::Idle) {
            self.state = State::Calling(AbortOnDrop(tokio::spawn(call(self.kind.clone()))));
        }
        self.answered().await
    }

    /// Waits for the answer, if a login is in progress.
    async fn answered(&mut self) -> Result<(), Declined> {
        let State::Calling(calling) = &mut self.state else { return Ok(()) };
        let called = (&mut calling.0).await;
        self.state = State::Never;
        match called {
            Ok(Ok(called)) => {
                if called.0.round_trip.is_some_and(|round_trip| round_trip > LONG_ROUND_TRIP) {
                    self.small_bytes = SMALL_FAR_BYTES;
                }
                self.state = State::Called(Box::new(called));
                Ok(())
            }
            Ok(Err(declined)) => Err(declined),
            Err(error) => Err(Declined::Lost(error.to_string())),
        }
    }

    /// Requests the step's file. False if the stream must end: it has its number of files, or accepts no
    /// more.
    pub(super) async fn add(&mut self, core: &Core, step: Step) -> bool {
        let State::Open(stream) = &mut self.state else { return false };
        stream.add(step);
        let takes = stream.buffer.len() < SEND_BYTES || stream.send(core).await;
        takes && stream.taken < self.kind.most()
    }

    pub(super) async fn flush(&mut self, core: &Core) {
        if let State::Open(stream) = &mut self.state {
            // That it takes no more is found by who adds next, or by who ends it.
            let _ = stream.send(core).await;
        }
    }

    /// Ends the stream, and waits for it. `None` if there is none, or the run is stopped. Another one can
    /// follow if this one succeeded.
    pub(super) async fn end(&mut self, core: &Core) -> Option<StreamEnd> {
        let state = std::mem::replace(&mut self.state, State::Idle);
        let State::Open(mut stream) = state else {
            self.state = state;
            return None;
        };
        stream.send(core).await;
        let Stream { names, pending, mut work, .. } = stream;
        drop(names);
        let delivered = tokio::select! {
            biased;
            () = core.stopped() => return None,
            delivered = &mut work.0 => delivered,
        };
        let mut delivered = match delivered {
            Ok(delivered) => delivered,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return None,
            },
        };
        delivered.left.extend(pending.steps().drain().map(|(_, step)| step));
        if delivered.why.is_some() {
            self.state = State::Never;
        }
        Some(delivered)
    }
}

/// Logs in and starts the command.
async fn call(kind: Kind) -> Called {
    let pull = match kind {
        Kind::Pull(pull) => pull,
        Kind::Push(push, _) => {
            let directory = script::plain_path(&push.directory);
            let streaming = &push.streaming;
            let command = script::take(&directory, &streaming.options);
            return streaming.prepare(&command.ok_or(Declined::Unquotable)?, Use::Files).await;
        }
    };
    let directory = script::plain_path(&pull.directory);
    let name = match &pull.name {
        Some(name) => script::plain_path(name.as_bytes()),
        None => b".".to_vec(),
    };
    let streaming = &pull.streaming;
    let command = script::list(&directory, &name, &streaming.options);
    streaming.prepare(&command.ok_or(Declined::Unquotable)?, Use::Names).await
}

impl Stream {
    fn new(core: Arc<Core>, kind: &Kind, peer: Peer, method: Option<Method>) -> Stream {
        let (names, sendings) = mpsc::channel(SENDINGS);
        let pending = Arc::new(Pending::default());
        let here = pending.clone();
        let work = match kind {
            Kind::Pull(_) => tokio::spawn(pull_files(core, peer, method, here, sendings)),
            Kind::Push(_, source) => {
                tokio::spawn(push_files(core, *source, peer, method, here, sendings))
            }
        };
        let buffer = Vec::with_capacity(SEND_BYTES + 4096);
        Stream { names, buffer, pending, taken: 0, work: AbortOnDrop(work) }
    }

    fn add(&mut self, step: Step) {
        self.buffer.extend_from_slice(b"./");
        self.buffer.extend_from_slice(step.from.as_bytes());
        self.buffer.push(0);
        self.taken += 1;
        self.pending.steps().insert(step.from.clone(), step);
    }

    /// Sends the collected names. False if the stream accepts no more.
    async fn send(&mut self, core: &Core) -> bool {
        if self.buffer.is_empty() {
            return true;
        }
        let names = std::mem::replace(&mut self.buffer, Vec::with_capacity(SEND_BYTES + 4096));
        tokio::select! {
            biased;
            () = core.stopped() => false,
            sent = self.names.send(names) => sent.is_ok(),
        }
    }
}

/// Sends names to tar, and unpacks its archive, to the end of both.
async fn pull_files(
    core: Arc<Core>,
    peer: Peer,
    method: Option<Method>,
    pending: Arc<Pending>,
    sendings: mpsc::Receiver<Vec<u8>>,
) -> StreamEnd {
    let began = Instant::now();
    let rate = peer.rate;
    let Running { stdin, stdout, exit } = peer.running;
    let feeding = AbortOnDrop(tokio::spawn(feed(stdin, sendings)));
    let (guard, waiting, flow) = stream::cancellable();
    let unpacking = tokio::task::spawn_blocking(move || {
        let mut placer = Placer::new(&core, &pending);
        let input = BufReader::with_capacity(READ_BYTES, Input::new(stdout, waiting));
        let unpacked = compress::decoder(method, input)
            .and_then(|archive| placer.unpack(BufReader::with_capacity(READ_BYTES, archive)));
        (placer.into_ended(), unpacked)
    });
    let unpacked = unpacking.await;
    drop(guard);
    // An archive may end before the names do, if it is not one of tar's.
    drop(feeding);
    let ((brought, left), ended) = match unpacked {
        Ok(unpacked) => unpacked,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => ((Vec::new(), Vec::new()), Ok(())),
        },
    };
    let why = match ended {
        Err(error) => Some(error.to_string()),
        Ok(()) => unclean(exit.await),
    };
    let link =
        Link { bytes: flow.bytes(), elapsed: began.elapsed(), waited: flow.waited(), rate, method };
    StreamEnd { entries: brought.len() as u64, brought, left, why, link }
}

/// Sends the named files, and renames them to their names when tar has succeeded.
async fn push_files(
    core: Arc<Core>,
    source: usize,
    peer: Peer,
    method: Option<Method>,
    pending: Arc<Pending>,
    mut sendings: mpsc::Receiver<Vec<u8>>,
) -> StreamEnd {
    let (began, rate) = (Instant::now(), peer.rate);
    let Running { stdin, stdout, exit } = peer.running;
    let (guard, waiting, flow) = stream::cancellable();
    let packing = {
        let core = core.clone();
        tokio::task::spawn_blocking(move || {
            let mut done = push::Packed::default();
            let output = Output { stream: stdin, waiting };
            let output = Encoder::new(method.is_some(), output, rate);
            let packed = push::pack(&core, source, output, &pending, &mut sendings, &mut done);
            (done, packed.and_then(|output| output.finish()?.flush()))
        })
    };
    let packed = packing.await;
    drop(guard);
    let (push::Packed { sent, mut left }, ended) = match packed {
        Ok(packed) => packed,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => (push::Packed::default(), Ok(())),
        },
    };
    let mut why = match ended {
        Err(error) => Some(error.to_string()),
        Ok(()) => {
            let stdin: Box<dyn AsyncWrite + Send + Unpin> = Box::new(tokio::io::sink());
            let mut running = Running { stdin, stdout, exit };
            match line(&mut running).await {
                Ok(status) if status == b"0" => None,
                Ok(_) | Err(_) => Some(close_reason(running).await.why()),
            }
        }
    };
    let link =
        Link { bytes: flow.bytes(), elapsed: began.elapsed(), waited: flow.waited(), rate, method };
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
            left.extend(push::in_doubt(sent));
        }
    }
    StreamEnd { entries, brought: Vec::new(), left, why, link }
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
