//! An open directory: parts of its listing are asked for ahead and given out in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use base::{DirEntry, Errno, FileKind, Name, Result};
use sftp::{Call, NameEntry};
use tokio::sync::Mutex;

use crate::handles::OpenHandle;
use crate::session::Session;
use crate::{attr, errno, gather};

/// READDIRs in flight at first: most directories need one for their entries and one to learn that
/// there are no more.
const FIRST_DEPTH: usize = 2;

/// READDIRs in flight at most. OpenSSH's server answers with up to 100 entries each, so this
/// carries 1,600 entries a round trip.
const LAST_DEPTH: usize = 16;

/// Names that are no names are logged so often for one listing.
const LOGGED_NAMES: usize = 3;

/// Parts without one valid name in a row, before it is an error of the server.
const EMPTY_PARTS: usize = 64;

/// An open directory.
pub(crate) struct Listing {
    open: OpenHandle,
    /// The directory's path on the server, when links are to be shown as what they lead to.
    follow_in: Option<Vec<u8>>,
    last_depth: usize,
    /// A queue for those who read the same directory at the same time rather than a lock: held
    /// while an answer is awaited, so that each part is given out once and in order. Whoever gives
    /// up waiting leaves the state whole.
    state: Mutex<State>,
}

struct State {
    asked: VecDeque<Call<Option<Vec<NameEntry>>>>,
    depth: usize,
    /// Received and not yet given out.
    ready: Vec<DirEntry>,
    /// How it ended.
    end: Option<std::result::Result<(), Errno>>,
    invalid_names: usize,
}

impl Listing {
    /// Begins to ask at once.
    pub(crate) fn new(open: OpenHandle, follow_in: Option<Vec<u8>>, pipelined: bool) -> Listing {
        let depth = |pipelined_depth| if pipelined { pipelined_depth } else { 1 };
        let mut state = State {
            asked: VecDeque::new(),
            depth: depth(FIRST_DEPTH),
            ready: Vec::new(),
            end: None,
            invalid_names: 0,
        };
        state.ask(&open);
        Listing { open, follow_in, last_depth: depth(LAST_DEPTH), state: Mutex::new(state) }
    }

    pub(crate) fn slot(&self) -> usize {
        self.open.session.slot
    }

    pub(crate) fn session(&self) -> &Session {
        &self.open.session
    }

    /// The next entries, `None` at the end.
    pub(crate) async fn next(&self) -> Result<Option<Vec<DirEntry>>> {
        let mut state = self.state.lock().await;
        for _ in 0..EMPTY_PARTS {
            if !state.ready.is_empty() {
                if let Some(dir) = &self.follow_in {
                    self.resolve_links(dir, &mut state.ready).await;
                }
                return Ok(Some(std::mem::take(&mut state.ready)));
            }
            match state.end {
                Some(Ok(())) => return Ok(None),
                Some(Err(errno)) => return Err(errno),
                None => self.receive(&mut state).await,
            }
        }
        Err(Errno::EIO)
    }

    /// Waits for one answer and takes it into the state.
    async fn receive(&self, state: &mut State) {
        if state.asked.is_empty() {
            // Not in the state before it is sent: given up there, it would keep its turn for
            // room, and all others behind it.
            let mut call = self.open.session.client.readdir(&self.open.handle);
            poll_fn(|context| call.poll_send(context)).await;
            state.asked.push_back(call);
        }
        let mut asked_for_more = false;
        let answer = poll_fn(|context| {
            let answer = match state.asked.front_mut() {
                Some(first) => Pin::new(first).poll(context),
                None => Poll::Pending,
            };
            // Asking for more only when the answer is not there yet keeps small listings small.
            if answer.is_pending() && !asked_for_more {
                asked_for_more = true;
                state.ask(&self.open);
            }
            answer
        })
        .await;
        state.asked.pop_front();
        match answer {
            Ok(Some(names)) => {
                state.depth = (state.depth + 2).min(self.last_depth);
                state.take(names);
            }
            Ok(None) => state.finish(Ok(())),
            Err(error) => state.finish(Err(errno::from_handle(&error))),
        }
    }

    /// Gives links the attributes of what they lead to, where they lead to something.
    async fn resolve_links(&self, dir: &[u8], entries: &mut [DirEntry]) {
        let is_link =
            |entry: &&mut DirEntry| entry.attr.is_some_and(|attr| attr.kind == FileKind::Symlink);
        let links: Vec<_> = entries.iter_mut().filter(is_link).collect();
        let calls: Vec<_> = links
            .iter()
            .map(|entry| [dir, b"/", entry.name.as_bytes()].concat())
            .map(|path| self.open.session.client.stat(&path))
            .collect();
        for (entry, answer) in links.into_iter().zip(gather::all(calls).await) {
            if let Ok(attr) = answer.map_or(Err(Errno::ENOENT), |attrs| attr::from_wire(&attrs)) {
                entry.attr = Some(attr);
            }
        }
    }
}

impl State {
    /// Asks for as many parts as the depth allows and there is room for.
    fn ask(&mut self, open: &OpenHandle) {
        while self.asked.len() < self.depth {
            match gather::send_now(open.session.client.readdir(&open.handle)) {
                Some(call) => self.asked.push_back(call),
                None => return,
            }
        }
    }

    fn take(&mut self, names: Vec<NameEntry>) {
        for entry in names {
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            match Name::new(&entry.name) {
                Ok(name) => {
                    self.ready.push(DirEntry { name, attr: attr::from_wire(&entry.attrs).ok() });
                }
                Err(why) => {
                    if self.invalid_names < LOGGED_NAMES {
                        let name = entry.name[..entry.name.len().min(300)].escape_ascii();
                        tracing::warn!("the server listed {why}, left out: \"{name}\"");
                    }
                    self.invalid_names += 1;
                }
            }
        }
    }

    fn finish(&mut self, end: std::result::Result<(), Errno>) {
        self.end = Some(end);
        self.asked.clear();
    }
}
