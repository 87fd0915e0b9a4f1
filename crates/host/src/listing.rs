//! An open directory: parts of its listing are asked for ahead and given out in order.
//!
//! OpenSSH's server leaves out of a listing what its `lstat` refuses. In a directory that the login
//! may read and not search that is everything, `.` and `..` too. So a listing without any entry,
//! these two included, is empty only if the directory can be searched; else it is `EACCES`.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use base::{DirEntry, Errno, FileKind, Name, Result};
use sftp::{Call, NameEntry, StatusCode};
use tokio::sync::Mutex;

use crate::config::Config;
use crate::handles::OpenHandle;
use crate::session::Session;
use crate::{attr, errno, gather};

/// READDIRs in flight at first: most directories need one for their entries and one to learn that
/// there are no more.
const FIRST_DEPTH: usize = 2;

/// READDIRs in flight at most. OpenSSH's server answers with up to 100 entries each, so this
/// carries 1,600 entries a round trip.
const LAST_DEPTH: usize = 16;

/// Parts without one valid name in a row, before it is an error of the server.
const EMPTY_PARTS: usize = 64;

/// An open directory.
pub(crate) struct Listing {
    open: OpenHandle,
    /// The directory's path on the server.
    path: Vec<u8>,
    /// Links are to be shown as what they lead to.
    follows: bool,
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
    /// The server has shown, by an entry or by `.`, that the directory can be searched.
    searchable: bool,
}

impl Listing {
    /// Begins to ask at once.
    pub(crate) fn new(open: OpenHandle, path: Vec<u8>, config: &Config) -> Listing {
        let pipelined = !config.sync_readdir;
        let depth = |pipelined_depth| if pipelined { pipelined_depth } else { 1 };
        let mut state = State {
            asked: VecDeque::new(),
            depth: depth(FIRST_DEPTH),
            ready: Vec::new(),
            end: None,
            searchable: false,
        };
        state.ask(&open);
        let last_depth = depth(LAST_DEPTH);
        let follows = config.follow_symlinks;
        Listing { open, path, follows, last_depth, state: Mutex::new(state) }
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
                if self.follows {
                    self.resolve_links(&mut state.ready).await;
                }
                return Ok(Some(std::mem::take(&mut state.ready)));
            }
            match state.end {
                Some(Ok(())) if !state.searchable => {
                    if self.may_not_search().await {
                        state.end = Some(Err(Errno::EACCES));
                    }
                    state.searchable = true;
                }
                Some(Ok(())) => return Ok(None),
                Some(Err(errno)) => return Err(errno),
                None => self.receive(&mut state).await,
            }
        }
        Err(Errno::EIO)
    }

    /// Whether the server refuses to look at the directory's own `.`.
    async fn may_not_search(&self) -> bool {
        let dot = [&self.path[..], b"/."].concat();
        let look = self.open.session.client.lstat(&dot).await;
        look.is_err_and(|error| error.status() == Some(StatusCode::PERMISSION_DENIED))
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
                state.take(names, &self.open.session);
            }
            Ok(None) => state.finish(Ok(())),
            Err(error) => state.finish(Err(errno::from_handle(&error))),
        }
    }

    /// Gives links the attributes of what they lead to, where they lead to something.
    async fn resolve_links(&self, entries: &mut [DirEntry]) {
        let is_link =
            |entry: &&mut DirEntry| entry.attr.is_some_and(|attr| attr.kind == FileKind::Symlink);
        let links: Vec<_> = entries.iter_mut().filter(is_link).collect();
        let calls: Vec<_> = links
            .iter()
            .map(|entry| [&self.path[..], b"/", entry.name.as_bytes()].concat())
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

    fn take(&mut self, names: Vec<NameEntry>, session: &Session) {
        self.searchable |= !names.is_empty();
        for entry in names {
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            match Name::new(&entry.name) {
                Ok(name) => {
                    self.ready.push(DirEntry { name, attr: attr::from_wire(&entry.attrs).ok() });
                }
                Err(why) => session.complain_of(why, &entry.name),
            }
        }
    }

    fn finish(&mut self, end: std::result::Result<(), Errno>) {
        self.end = Some(end);
        self.asked.clear();
    }
}
