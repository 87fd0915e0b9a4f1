//! An open directory: its entries are requested ahead and returned in order.
//!
//! OpenSSH's server omits entries for which its `lstat` fails. In a directory that the login may
//! read but not search, that is every entry, including `.` and `..`. So a listing without any entry
//! is empty only if the directory can be searched; otherwise it is `EACCES`.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use base::{DirEntry, Errno, FileKind, Name, Result};
use sftp::{Call, Extension, NameEntry, RemoteHandle, StatusCode};
use tokio::sync::Mutex;

use crate::config::Config;
use crate::handles::OpenHandle;
use crate::session::Session;
use crate::{attr, errno, pipelined};

/// READDIRs in flight at first: most directories need one for their entries and one for the end.
const FIRST_DEPTH: usize = 2;

/// Maximum number of READDIRs in flight. OpenSSH's server returns up to 100 entries for each, so
/// this is 1,600 entries for each round trip.
const LAST_DEPTH: usize = 16;

/// Replies in a row without a valid name, after which the listing fails.
const MAX_EMPTY_BATCHES: usize = 64;

/// An open directory.
pub(crate) struct Listing {
    open: OpenHandle,
    /// The directory's path on the server.
    path: Vec<u8>,
    /// Symbolic links are shown as their targets.
    follows: bool,
    last_depth: usize,
    /// An async lock as a queue of the readers of this listing: held while a reply is awaited, so
    /// that each batch is returned once and in order. A reader that is cancelled leaves the state
    /// consistent.
    state: Mutex<State>,
}

struct State {
    in_flight: VecDeque<Call<Option<Vec<NameEntry>>>>,
    depth: usize,
    /// Received and not yet returned.
    ready: Vec<DirEntry>,
    /// The end of the listing or its error.
    end: Option<std::result::Result<(), Errno>>,
    /// The server has proved, by an entry or by `.`, that the directory can be searched.
    searchable: bool,
}

impl Listing {
    /// Opens a directory. The first entries are requested at once: before it is open, if the server
    /// knows its handle by the request that opens it.
    pub(crate) async fn open(
        session: &Arc<Session>,
        path: Vec<u8>,
        config: &Config,
    ) -> sftp::Result<Listing> {
        let pipelined = !config.sync_readdir;
        let depth = |pipelined_depth| if pipelined { pipelined_depth } else { 1 };
        let mut state = State {
            in_flight: VecDeque::new(),
            depth: depth(FIRST_DEPTH),
            ready: Vec::new(),
            end: None,
            searchable: false,
        };
        let mut opening = session.client.opendir(&path);
        poll_fn(|context| opening.poll_send(context)).await;
        if session.offers(Extension::EarlyHandle)
            && let Some(handle) = opening.early_handle()
        {
            state.request_more(session, &handle);
        }
        let open = OpenHandle::new(session.clone(), opening.await?);
        state.request_more(session, &open.handle);
        let last_depth = depth(LAST_DEPTH);
        let follows = config.follow_symlinks;
        Ok(Listing { open, path, follows, last_depth, state: Mutex::new(state) })
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
        for _ in 0..MAX_EMPTY_BATCHES {
            if !state.ready.is_empty() {
                if self.follows {
                    self.resolve_links(&mut state.ready).await?;
                }
                return Ok(Some(std::mem::take(&mut state.ready)));
            }
            match state.end {
                Some(Ok(())) if !state.searchable => {
                    if self.may_not_search().await? {
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

    /// Whether the server denies access to the directory's own `.`.
    async fn may_not_search(&self) -> Result<bool> {
        let dot = [&self.path[..], b"/."].concat();
        match self.open.session.client.lstat(&dot).await {
            Err(error) if error.ends_connection() => Err(errno::from_sftp(&error)),
            answer => {
                Ok(answer.is_err_and(|error| error.status() == Some(StatusCode::PERMISSION_DENIED)))
            }
        }
    }

    /// Waits for one reply and adds it to the state.
    async fn receive(&self, state: &mut State) {
        if state.in_flight.is_empty() {
            // Not stored in the state before it was sent: if this future was dropped there, the
            // call would keep its place in the queue for room, before all others.
            let mut call = self.open.session.client.readdir(&self.open.handle);
            poll_fn(|context| call.poll_send(context)).await;
            state.in_flight.push_back(call);
        }
        let mut requested_more = false;
        let answer = poll_fn(|context| {
            let answer = match state.in_flight.front_mut() {
                Some(first) => Pin::new(first).poll(context),
                None => Poll::Pending,
            };
            // More requests only if the reply is not there yet: this keeps small listings small.
            if answer.is_pending() && !requested_more {
                requested_more = true;
                state.request_more(self.session(), &self.open.handle);
            }
            answer
        })
        .await;
        state.in_flight.pop_front();
        match answer {
            Ok(Some(names)) => {
                state.depth = (state.depth + 2).min(self.last_depth);
                state.take(names, &self.open.session);
            }
            Ok(None) => state.finish(Ok(())),
            Err(error) => state.finish(Err(errno::from_handle(&error))),
        }
    }

    /// Gives links the attributes of their targets, if those exist. Fails if the connection is lost
    /// before all are known.
    async fn resolve_links(&self, entries: &mut [DirEntry]) -> Result<()> {
        let is_link =
            |entry: &&mut DirEntry| entry.attr.is_some_and(|attr| attr.kind == FileKind::Symlink);
        let links: Vec<_> = entries.iter_mut().filter(is_link).collect();
        let calls: Vec<_> = links
            .iter()
            .map(|entry| [&self.path[..], b"/", entry.name.as_bytes()].concat())
            .map(|path| self.open.session.client.stat(&path))
            .collect();
        for (entry, answer) in links.into_iter().zip(base::join_in_order(calls).await) {
            match answer {
                Ok(attrs) => entry.attr = attr::from_wire(&attrs).ok().or(entry.attr),
                Err(error) if error.ends_connection() => return Err(errno::from_sftp(&error)),
                // A dangling link is shown as a link.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl State {
    /// Sends as many requests as the depth and the room allow.
    fn request_more(&mut self, session: &Session, handle: &RemoteHandle) {
        while self.in_flight.len() < self.depth {
            match pipelined::send_now(session.client.readdir(handle)) {
                Some(call) => self.in_flight.push_back(call),
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
                Err(why) => session.log_invalid_name(why, &entry.name),
            }
        }
    }

    fn finish(&mut self, end: std::result::Result<(), Errno>) {
        self.end = Some(end);
        self.in_flight.clear();
    }
}
