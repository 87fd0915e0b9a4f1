//! Opening a file again after its handles below were lost.
//!
//! One task does it for a file, begun by the first caller who needs it; the others wait for its end.
//! It goes on when they give up, and ends with the [`Steady`](crate::Steady).
//!
//! 1. The file is opened by its name once for each handle, never made and never cut; with more
//!    permissions for that moment where it has to be (`permission`). What is there must be what the
//!    file must look like now (`expect`), or have become that by growing.
//! 2. Appends whose answers were lost are looked for in the file (`appends`).
//! 3. If the server was started anew since, what it had acknowledged and not synced is compared
//!    (`verify`).
//! 4. The log is sent again, in its order, with what has joined it meanwhile.

mod appends;
mod permission;
mod verify;

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use base::{Access, Attr, Errno, Fh, OpenFlags, Remote, RemotePath, Result};
use tokio::time::Instant;

use crate::Core;
use crate::call::Asked;
use crate::change::send;
use crate::expect::Expect;
use crate::file::{Body, Handle, Phase, State, Tail};
use crate::link::is_loss;
use crate::log::{Change, Replay};

/// Changes that are sent again before the first of them is answered: enough to fill a long way with
/// writes of 128 KiB.
const AT_ONCE: usize = 64;

/// When what is not the file any more was changed.
const LOST: &str = "while there was no connection";
const CLOSED: &str = "while it was not open there";

/// How an attempt has ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    /// To be tried again.
    Failed(Errno),
    /// It is not the file any more, for this reason.
    Dead(String),
}

/// Returns when one attempt to open the file again has ended, which is begun here if none is under
/// way: `Ok` when the file is open, or dead.
pub(crate) async fn attempt(core: &Arc<Core>, body: &Arc<Body>) -> Result<()> {
    let before = {
        let mut state = body.lock();
        match state.phase {
            Phase::Open | Phase::Dead => return Ok(()),
            Phase::Opening => {}
            Phase::Lost => {
                state.phase = Phase::Opening;
                begin(core, body);
            }
        }
        state.attempts
    };
    loop {
        let settled = body.settled.notified();
        tokio::pin!(settled);
        // Registered before the look, so that nothing in between is missed.
        settled.as_mut().enable();
        {
            let state = body.lock();
            if state.attempts != before {
                return state.why.map_or(Ok(()), Err);
            }
        }
        settled.await;
    }
}

fn begin(core: &Arc<Core>, body: &Arc<Body>) {
    let (core, mut wanted) = (core.clone(), core.wanted.clone());
    let mut under_way = UnderWay { body: body.clone(), outcome: Outcome::Failed(Errno::EHOSTDOWN) };
    tokio::spawn(async move {
        tokio::select! {
            outcome = open_again(&core, &under_way.body) => under_way.outcome = outcome,
            _ = wanted.changed() => {}
        }
        if let Outcome::Dead(why) = &under_way.outcome {
            under_way.body.tell(&core, &format!("{why} {LOST}"));
        }
    });
}

/// An attempt; its outcome is told when this is dropped, whatever has happened.
struct UnderWay {
    body: Arc<Body>,
    outcome: Outcome,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.body.lock();
        state.attempts += 1;
        (state.phase, state.why) = match self.outcome {
            // Set already, in the moment in which nothing was left to be sent.
            Outcome::Open => (state.phase, None),
            Outcome::Dead(_) => (Phase::Dead, None),
            Outcome::Failed(errno) => (Phase::Lost, Some(errno)),
        };
        if state.phase == Phase::Lost {
            state.epoch += 1;
            if state.log.replay_lost() {
                state.lost_at = Some(Instant::now());
            }
        }
        let waiting = state.log.moved();
        drop(state);
        self.body.settled.notify_waiters();
        waiting.notify_waiters();
    }
}

impl Body {
    /// It cannot be opened again for this handle; what its callers are told from now on. Who writes is
    /// not told what he could have been told when he opened it: what he has written is at stake.
    fn refuses(&self, core: &Core, handle: &Handle, errno: Errno) -> Errno {
        if !handle.flags.access.writes() {
            return errno;
        }
        self.tell(core, &format!("cannot be opened for writing again: {errno}"));
        Errno::EIO
    }

    /// Tells in the log what has become of it.
    fn tell(&self, core: &Core, what: &str) {
        let name = self.lock().name.clone();
        let name = name.map_or_else(|| "a removed file".to_owned(), |name| name.to_string());
        tracing::warn!("{}: {name}: {what}", core.config.name);
    }
}

/// A handle below that nobody has taken over yet; closed when dropped.
pub(crate) struct Fresh<'a> {
    inner: &'a dyn Remote,
    fh: Option<Fh>,
}

impl<'a> Fresh<'a> {
    pub(crate) fn new(inner: &'a dyn Remote, fh: Fh) -> Fresh<'a> {
        Fresh { inner, fh: Some(fh) }
    }

    pub(crate) fn fh(&self) -> Fh {
        self.fh.expect("it is only taken by value")
    }

    pub(crate) fn take(mut self) -> Fh {
        self.fh.take().expect("it is only taken by value")
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(fh) = self.fh {
            self.inner.close(fh);
        }
    }
}

/// The file as opened again for one of its handles, or why it was not.
type Reopened<'a> = (Arc<Handle>, Result<Fresh<'a>>);

/// What was found by a name.
enum Found<'a> {
    /// The file, opened for each handle that it can be opened for.
    It {
        attr: Option<Attr>,
        opened: Vec<Reopened<'a>>,
    },
    /// Another one, or none.
    NotIt(String),
    Failed(Errno),
}

/// How often a file is looked for that is changed, or gets other names, meanwhile.
const MAX_LOOKS: u32 = 8;

async fn open_again(core: &Arc<Core>, body: &Arc<Body>) -> Outcome {
    appends::wait(body).await;
    let lost = |state: &State| {
        let lost = state.slots.values().filter(|slot| slot.epoch < state.epoch);
        lost.filter_map(|slot| slot.handle.upgrade()).collect()
    };
    match look(core, body, lost, false).await {
        Ok((seen, opened)) => go_on(core, body, seen, opened).await,
        Err(outcome) => outcome,
    }
}

/// Opens the file again for one handle that was closed by a flush, while nothing is lost.
pub(crate) async fn open_one(core: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
    let body = &handle.body;
    let next = body.lock().quiet_next(0);
    // What another client has put to the end meanwhile is no reason not to append more.
    let may_grow = handle.flags.append;
    let (seen, mut opened) = match look(core, body, |_| vec![handle.clone()], may_grow).await {
        Ok(found) => found,
        Err(Outcome::Failed(errno)) => return Err(errno),
        Err(Outcome::Dead(why)) => {
            body.tell(core, &format!("{why} {CLOSED}"));
            return Err(Errno::ESTALE);
        }
        Err(Outcome::Open) => unreachable!("a look opens nothing for good"),
    };
    let fresh = opened.pop().ok_or(Errno::EBADF)?.1?;
    if let Some(unused) = handle.opened_as(fresh.take()) {
        core.inner.close(unused);
    }
    let mut state = body.lock();
    state.is_found(&seen);
    if let Some(attr) = &seen.attr {
        match state.is_quiet_since(next, 0) {
            true => state.seen(attr),
            false => state.expect = state.expect.or(Expect::of(attr)),
        }
    }
    Ok(())
}

/// Looks for the file by its names, and opens it for the handles that are `wanted`. `may_grow`: what
/// has only become longer and newer is taken for it.
async fn look<'a>(
    core: &'a Arc<Core>,
    body: &Body,
    wanted: impl Fn(&State) -> Vec<Arc<Handle>>,
    may_grow: bool,
) -> std::result::Result<(Seen, Vec<Reopened<'a>>), Outcome> {
    for looks in 1.. {
        let (names, moves, handles, ended) = {
            let state = body.lock();
            let names: Vec<RemotePath> = state.name.iter().chain(&state.perhaps).cloned().collect();
            (names, state.moves, wanted(&state), state.ended)
        };
        let mut why = "removed here".to_owned();
        for name in names {
            match find(core, body, &name, &handles, may_grow).await {
                Found::It { attr, opened } => {
                    return Ok((Seen { name, moves, attr, ended }, opened));
                }
                Found::NotIt(not_it) => why = not_it,
                Found::Failed(errno) => return Err(Outcome::Failed(errno)),
            }
        }
        // What another connection has answered meanwhile may have been done after the look.
        let state = body.lock();
        if (state.moves, state.ended) == (moves, ended) || looks == MAX_LOOKS {
            return Err(Outcome::Dead(why));
        }
    }
    unreachable!("the last look returns")
}

/// Opens what is there for all `handles`, as far as it is the file.
async fn find<'a>(
    core: &'a Arc<Core>,
    body: &Body,
    name: &RemotePath,
    handles: &[Arc<Handle>],
    may_grow: bool,
) -> Found<'a> {
    let inner = &*core.inner;
    let (mut attr, mut all) = (None, Vec::new());
    for handle in handles {
        match permission::open(core, body, name, handle.flags_again()).await {
            Ok(opened) => {
                let fresh = Fresh::new(inner, opened.fh);
                match is_it(core, body, name, &opened.attr).await {
                    Ok(true) => {}
                    Ok(false) if may_grow && body.expect().has_grown_to(&opened.attr) => {}
                    Ok(false) => {
                        let how = body.expect().difference(&opened.attr);
                        return Found::NotIt(format!("changed on the server ({how})"));
                    }
                    Err(errno) => return Found::Failed(lost_again(errno)),
                }
                attr = attr.or(Some(opened.attr));
                all.push((handle.clone(), Ok(fresh)));
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                return Found::NotIt("gone from the server".to_owned());
            }
            Err(Errno::EISDIR | Errno::ELOOP | Errno::ENXIO) => {
                return Found::NotIt("replaced on the server".to_owned());
            }
            // It may be that file, but this is not to be had any more.
            Err(errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY)) => {
                all.push((handle.clone(), Err(body.refuses(core, handle, errno))));
            }
            Err(errno) => return Found::Failed(lost_again(errno)),
        }
    }
    Found::It { attr, opened: all }
}

/// Whether what was opened by this name is the file, or what has become of it by growing. An error
/// says that it could not be looked.
async fn is_it(core: &Core, body: &Body, name: &RemotePath, attr: &Attr) -> Result<bool> {
    let expect = body.expect();
    if expect.explains(attr) {
        return Ok(true);
    }
    let Some(tail) = body.lock().known_tail() else { return Ok(false) };
    if !expect.has_grown_to(attr) {
        return Ok(false);
    }
    let inner = &*core.inner;
    let opened = match inner.open(name, OpenFlags::existing(Access::Read)).await {
        Err(errno) if !is_loss(errno) && errno != Errno::ESTALE => return Ok(false),
        opened => opened?,
    };
    let fresh = Fresh::new(inner, opened.fh);
    let data = inner.read(fresh.fh(), tail.offset, Tail::LEN).await?;
    Ok(tail.is(&data.to_vec()))
}

/// A handle that is stale as soon as it is opened was lost with its connection.
fn lost_again(errno: Errno) -> Errno {
    if errno == Errno::ESTALE { Errno::EHOSTDOWN } else { errno }
}

/// What was seen of the file.
struct Seen {
    /// By this name, when its names had changed so often.
    name: RemotePath,
    moves: u64,
    attr: Option<Attr>,
    /// When so many changes had ended.
    ended: u64,
}

/// The file is there: looks after what is in doubt, takes the handles over, and sends the log.
async fn go_on(
    core: &Arc<Core>,
    body: &Arc<Body>,
    seen: Seen,
    opened: Vec<Reopened<'_>>,
) -> Outcome {
    if let Some(attr) = &seen.attr {
        if let Err(errno) = appends::look(core, body, &seen.name, attr).await {
            return Outcome::Failed(lost_again(errno));
        }
        if let Err(errno) = verify::look(core, body, &seen.name).await {
            return Outcome::Failed(lost_again(errno));
        }
    }
    // A handle's last share is not to be dropped while the state is locked.
    let (mut old, mut handles) = (Vec::new(), Vec::new());
    {
        let mut state = body.lock();
        let epoch = state.epoch;
        for (handle, opened) in opened {
            let slot = state.slots.get_mut(&handle.number);
            handles.push(handle);
            let Some(slot) = slot else { continue };
            match opened {
                Ok(fresh) => {
                    old.push(std::mem::replace(&mut slot.fh, fresh.take()));
                    slot.refused = None;
                }
                Err(errno) => slot.refused = Some(errno),
            }
            (slot.epoch, slot.closed) = (epoch, false);
        }
        state.is_found(&seen);
        // Unless it was changed since by who had begun before.
        if let Some(attr) = seen.attr.filter(|_| state.ended == seen.ended) {
            state.seen(&attr);
        }
    }
    drop(handles);
    old.into_iter().for_each(|fh| core.inner.close(fh));
    send_log(core, body).await
}

impl State {
    /// The file is open again, by this name.
    fn is_found(&mut self, Seen { name, moves, .. }: &Seen) {
        // Unless it was renamed since.
        if self.moves == *moves {
            if self.perhaps.as_ref() == Some(name) {
                self.perhaps = None;
            }
            self.name = Some(name.clone());
        }
    }
}

async fn send_log(core: &Arc<Core>, body: &Arc<Body>) -> Outcome {
    loop {
        let (batch, handles) = {
            let mut state = body.lock();
            let batch = state.log.take_replays(AT_ONCE);
            if batch.is_empty() {
                state.phase = Phase::Open;
                return Outcome::Open;
            }
            let slots = state.slots.iter();
            let below = |fh, refused: Option<Errno>| refused.map_or(Ok(fh), Err);
            let handles: HashMap<u64, Result<Fh>> =
                slots.map(|(number, slot)| (*number, below(slot.fh, slot.refused))).collect();
            (batch, handles)
        };
        if let Err(errno) = send_batch(core, body, batch, &handles).await {
            return Outcome::Failed(lost_again(errno));
        }
    }
}

/// Sends these in order, and answers those who wait for them. An error says that it was lost again.
async fn send_batch(
    core: &Arc<Core>,
    body: &Body,
    batch: Vec<Replay>,
    handles: &HashMap<u64, Result<Fh>>,
) -> Result<()> {
    let mut calls: Vec<(usize, Asked<'_, ()>)> = Vec::new();
    for (index, replay) in batch.iter().enumerate() {
        match handles.get(&replay.handle.number) {
            Some(Ok(fh)) => {
                calls.extend(parts_of(core, *fh, replay).map(|call| (index, call)));
            }
            refused => {
                let errno = refused.and_then(|refused| refused.err()).unwrap_or(Errno::EBADF);
                calls.push((index, Box::pin(async move { Err(errno) })));
            }
        }
    }
    let mut results: Vec<Result<()>> = vec![Ok(()); batch.len()];
    for (index, result) in all(calls).await {
        results[index] = results[index].and(result);
    }
    let is_lost = |errno: Errno| is_loss(errno) || errno == Errno::ESTALE;
    let mut lost = Ok(());
    for (replay, result) in batch.iter().zip(results) {
        match result {
            Err(errno) if is_lost(errno) => lost = Err(errno),
            result => body.sent_again(core, replay, result),
        }
    }
    lost
}

/// The calls that carry out what is left of a change.
fn parts_of<'a>(core: &'a Core, fh: Fh, replay: &Replay) -> impl Iterator<Item = Asked<'a, ()>> {
    let inner = &*core.inner;
    what_is_left(replay).into_iter().map(move |change| send(inner, fh, &change))
}

/// What is left of a change, as changes of their own.
fn what_is_left(replay: &Replay) -> Vec<Change> {
    match &replay.change {
        Change::Write { offset, data } if replay.parts != [replay.change.range()] => {
            let part = |part: &Range<u64>| {
                let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
                Change::Write { offset: part.start, data: data.slice(from..to) }
            };
            replay.parts.iter().map(part).collect()
        }
        change => vec![change.clone()],
    }
}

impl Body {
    /// A change was sent again, and answered.
    fn sent_again(&self, core: &Arc<Core>, replay: &Replay, result: Result<()>) {
        let run = core.run.now(core);
        let told = core.run.may_be_told();
        let ahead = |time| core.clock.is_future(time);
        let mut state = self.lock();
        for change in what_is_left(replay) {
            match result {
                Ok(()) => {
                    let digest = told.then(|| change.digest()).flatten();
                    state.happened(replay.number, &change, digest, run.clone(), told, &ahead);
                }
                Err(_) => state.may_have_happened(replay.number, &change, &ahead),
            }
        }
        state.log.answer(replay.number, result);
    }
}

/// Polls all in order, until all are done.
async fn all<T>(mut calls: Vec<(usize, Asked<'_, T>)>) -> Vec<(usize, Result<T>)> {
    let mut results = Vec::with_capacity(calls.len());
    poll_fn(|context| {
        calls.retain_mut(|(index, call)| match call.as_mut().poll(context) {
            Poll::Ready(result) => {
                results.push((*index, result));
                false
            }
            Poll::Pending => true,
        });
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results
}
