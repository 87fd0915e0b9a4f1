//! Watches: what changes in directories, by inotify.
//!
//! The kernel queues the events, and merges or drops them as `inotify(7)` says; nothing is queued
//! here. One thread reads them, and only while a request for the next events is unanswered. Events
//! of the session's own requests are reported like all others.
//!
//! Only file systems of this machine are watched: of others inotify reports what this machine
//! changes, which looks as if no other change had happened.
//!
//! Locking: the state's lock is held during a system call that adds or removes a watch, so that the
//! thread has not removed an id before it is known. Neither waits for another machine.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, OnceLock, PoisonError};
use std::time::Duration;

use base::Mutex;
use bytes::Bytes;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use sftp::codec::{Reply, WatchEvent, WatchEvents, WatchId, WatchRequest};

use crate::paths::{is_of_this_machine, own_path};
use crate::server::Server;
use crate::service_thread::ServiceThread;
use crate::status::{Failure, Result, success};

/// Watches of a session, at most. Each keeps an inode of some kilobytes in the kernel's memory.
const MAX_WATCHES: usize = 16_384;

/// Bytes of events in one reply, at most, as the kernel returns them: about as many as a packet may
/// have, since the next reply comes a round trip later. No event is longer in the reply.
const EVENT_BYTES: usize = 255 << 10;

/// How long events are gathered after the first.
const GATHER: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct State {
    ids: HashSet<i32>,
    /// The id of the request for the next events, if one is unanswered.
    next: Option<u32>,
    answered: u64,
    is_ending: bool,
}

/// The watches of a client. See the [module](self).
#[derive(Debug)]
pub(crate) struct Watches {
    /// Created for the first watch: a login may have few of them (128 by default), and a session
    /// without watches must not use one up.
    inotify: OnceLock<OwnedFd>,
    /// Readable when the session ends.
    end: OwnedFd,
    /// Reads events.
    pub(crate) thread: ServiceThread,
    state: Mutex<State>,
    /// There is a request for the next events, or the session ends.
    changed: Condvar,
}

impl Watches {
    /// Fails where the kernel has no inotify, the login has too many instances, or without `/proc`.
    pub(crate) fn new() -> rustix::io::Result<Watches> {
        rustix::fs::stat(own_path(init()?.as_fd()))?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (inotify, thread, state) =
            (OnceLock::new(), ServiceThread::default(), Mutex::default());
        Ok(Watches { inotify, end, thread, state, changed: Condvar::new() })
    }

    /// The session ends.
    pub(crate) fn end(&self) {
        self.state.lock().is_ending = true;
        self.changed.notify_all();
        // Fails only when it is readable already.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }

    fn add(&self, entry: &OwnedFd) -> Result<WatchId> {
        let kinds = WatchFlags::ATTRIB
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ONLYDIR
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut state = self.state.lock();
        if state.ids.len() >= MAX_WATCHES {
            return Err(Errno::NOSPC.into());
        }
        // Set under the state's lock only.
        let inotify = match self.inotify.get() {
            Some(inotify) => inotify,
            None => {
                let created = init()?;
                self.inotify.get_or_init(|| created)
            }
        };
        let id = inotify::add_watch(inotify, own_path(entry.as_fd()), kinds)?;
        state.ids.insert(id);
        Ok(WatchId(id as u32))
    }

    fn remove(&self, id: WatchId) -> Result<()> {
        let mut state = self.state.lock();
        let is_known = state.ids.remove(&(id.0 as i32));
        let Some(inotify) = self.inotify.get() else {
            return Err(Errno::INVAL.into());
        };
        match inotify::remove_watch(inotify, id.0 as i32) {
            // The entry was removed, and its last event was not read yet.
            Err(Errno::INVAL) if is_known => Ok(()),
            Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets a request wait for the next events.
    fn wait(&self, request: u32) -> Result<()> {
        if !self.thread.is_there() {
            return Err(Errno::AGAIN.into());
        }
        let mut state = self.state.lock();
        if self.inotify.get().is_none() {
            return Err(Errno::INVAL.into());
        }
        if state.next.is_some() {
            return Err(Errno::BUSY.into());
        }
        state.next = Some(request);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Answers requests for the next events, until the session ends.
    pub(crate) fn serve(&self, answer: impl Fn(u32, &Reply)) {
        let mut buffer = vec![MaybeUninit::uninit(); EVENT_BYTES];
        loop {
            let mut state = self.state.lock();
            while state.next.is_none() && !state.is_ending {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            // A request waits only after a watch was added.
            let Some(inotify) = self.inotify.get() else { return };
            let mut ready =
                [PollFd::new(inotify, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN)];
            let polled = poll(&mut ready, None);
            if polled.is_ok() && ready[1].revents().is_empty() {
                // A change has several events, and often others follow.
                std::thread::sleep(GATHER);
            }
            let mut state = self.state.lock();
            if state.is_ending {
                return;
            }
            let result = match polled {
                Ok(_) => read_events(inotify, &mut buffer),
                Err(error) => Err(error),
            };
            let reply = match result {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => Failure::System(error).reply(),
                Ok(events) => {
                    let ended = |event: &&WatchEvent| event.kind & ReadFlags::IGNORED.bits() != 0;
                    for event in events.iter().filter(ended) {
                        state.ids.remove(&(event.id.0 as i32));
                    }
                    state.answered += 1;
                    Reply::extended(&WatchEvents { number: state.answered, events })
                }
            };
            let Some(request) = state.next.take() else { continue };
            drop(state);
            answer(request, &reply);
        }
    }
}

fn init() -> rustix::io::Result<OwnedFd> {
    inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
}

/// All events of one read.
fn read_events(
    inotify: &OwnedFd,
    buffer: &mut [MaybeUninit<u8>],
) -> rustix::io::Result<Vec<WatchEvent>> {
    let mut reader = Reader::new(inotify, buffer);
    let mut events = Vec::new();
    loop {
        let event = reader.next()?;
        events.push(WatchEvent {
            id: WatchId(event.wd() as u32),
            kind: event.events().bits(),
            cookie: event.cookie(),
            name: event
                .file_name()
                .map_or_else(Bytes::new, |name| Bytes::copy_from_slice(name.to_bytes())),
        });
        if reader.is_buffer_empty() {
            return Ok(events);
        }
    }
}

impl Server {
    /// Executes a request about watches. `None` if it waits, and is answered later.
    pub(crate) fn watch(&self, id: u32, request: WatchRequest<'_>) -> Result<Option<Reply>> {
        let Some(watches) = &self.watches else { return Err(Errno::OPNOTSUPP.into()) };
        Ok(match request {
            WatchRequest::Add { path } => {
                let entry = self.paths.pin(path, false)?;
                if !is_of_this_machine(&entry)? {
                    return Err(Errno::OPNOTSUPP.into());
                }
                Some(Reply::extended(&watches.add(&entry)?))
            }
            WatchRequest::Remove { id } => watches.remove(id).map(|()| Some(success()))?,
            WatchRequest::Next => watches.wait(id).map(|()| None)?,
        })
    }
}
