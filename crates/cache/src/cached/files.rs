//! Open files: where their bytes come from, and the handle at the server, which may be opened late.
//!
//! A file whose content is here is open without any handle at the server, as long as nothing is
//! changed here that concerns it. What it shows is one content, the one that the file had when it
//! was opened.
//!
//! Invariants:
//! 1. Before anything is changed through this mount that concerns a path, the files that are open
//!    by it here are opened at the server ([`Files::bring_over`]), so that they stay the files
//!    that they were; where the content may change, they are read from there from then on.
//! 2. At most one handle is being opened for a file, whoever needs it at the same time; what was
//!    begun is seen through. It is of the content that the file was opened with, or of none:
//!    `ESTALE`.
//! 3. A handle at the server is closed when the last share of its [`File`] is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Access, Attr, Errno, Fh, OpenFlags, Remote, RemotePath, Result, Table};
use tokio::sync::watch;

use super::changes::Change;
use super::filling::Filling;
use crate::{Object, Validator};

/// Where the bytes of an open file are.
#[derive(Clone)]
pub(crate) enum Content {
    /// At the server.
    Server,
    /// Here, all of them.
    Whole(Object),
    /// Some are here, and those that are read from the server are put to them.
    Part(Arc<Filling>),
}

type Outcome = watch::Receiver<Option<Result<Fh>>>;

struct State {
    /// `None` once the name was removed here.
    path: Option<RemotePath>,
    fh: Option<Fh>,
    content: Content,
    /// An open at the server on its way.
    attempt: Option<Outcome>,
    /// For one that is written through: what is being changed as long as it is open.
    change: Option<Change>,
    /// All of the content was verified before it was opened.
    proven: bool,
}

/// An open file. See the [module](self).
pub(crate) struct File {
    inner: Arc<dyn Remote>,
    /// The attributes at the open.
    pub(crate) attr: Attr,
    pub(crate) access: Access,
    /// The server is never asked.
    pub(crate) offline: bool,
    state: Mutex<State>,
}

/// What a file is made of.
pub(crate) struct Parts {
    pub(crate) path: RemotePath,
    pub(crate) attr: Attr,
    pub(crate) access: Access,
    pub(crate) fh: Option<Fh>,
    pub(crate) content: Content,
    pub(crate) change: Option<Change>,
    pub(crate) offline: bool,
}

impl File {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inner(&self) -> &Arc<dyn Remote> {
        &self.inner
    }

    pub(crate) fn validator(&self) -> Validator {
        Validator::of(&self.attr)
    }

    /// Its name now, as far as this mount has changed it.
    pub(crate) fn path(&self) -> Option<RemotePath> {
        self.lock().path.clone()
    }

    pub(crate) fn content(&self) -> Content {
        self.lock().content.clone()
    }

    /// All of its content has been verified.
    pub(crate) fn prove(&self) {
        self.lock().proven = true;
    }

    /// Whether it was.
    pub(crate) fn is_proven(&self) -> bool {
        self.lock().proven
    }

    /// Whether it is changed through this handle.
    pub(crate) fn is_changing(&self) -> bool {
        self.lock().change.is_some()
    }

    /// The handle at the server, if it is open.
    pub(crate) fn opened(&self) -> Option<Fh> {
        self.lock().fh
    }

    /// The content is another one from now on, or not known.
    pub(crate) fn read_from_server(&self) {
        self.put_content(Content::Server);
    }

    fn put_content(&self, content: Content) {
        // Dropped without the lock.
        let _old = std::mem::replace(&mut self.lock().content, content);
    }

    /// What was `filling` is whole now.
    pub(crate) fn is_whole(&self, filling: &Arc<Filling>, object: Object) {
        let mut state = self.lock();
        let same = matches!(&state.content, Content::Part(part) if Arc::ptr_eq(part, filling));
        if same {
            let _part = std::mem::replace(&mut state.content, Content::Whole(object));
        }
    }

    /// What was taken for whole is damaged: it is fetched again, into `filling`.
    pub(crate) fn is_damaged(&self, filling: Option<Arc<Filling>>) {
        let mut state = self.lock();
        if matches!(state.content, Content::Whole(_)) {
            let repair = filling.map_or(Content::Server, Content::Part);
            let _object = std::mem::replace(&mut state.content, repair);
        }
    }

    /// The handle at the server; opened now if it was not yet. What is there from the beginning is
    /// there in the first poll.
    pub(crate) async fn server(self: &Arc<Self>) -> Result<Fh> {
        let mut attempt = {
            let mut state = self.lock();
            match (state.fh, self.offline, &state.attempt) {
                (Some(fh), ..) => return Ok(fh),
                (None, true, _) => return Err(Errno::EIO),
                (None, false, Some(attempt)) => attempt.clone(),
                (None, false, None) => {
                    let (done, attempt) = watch::channel(None);
                    state.attempt = Some(attempt.clone());
                    let file = self.clone();
                    tokio::spawn(async move {
                        let result = file.open_late().await;
                        let mut state = file.lock();
                        state.attempt = None;
                        state.fh = result.ok();
                        drop(state);
                        done.send_replace(Some(result));
                    });
                    attempt
                }
            }
        };
        let outcome = attempt.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| *outcome).unwrap_or(Err(Errno::EIO))
    }

    async fn open_late(&self) -> Result<Fh> {
        let path = self.path().ok_or(Errno::ESTALE)?;
        let opened = self.inner.open(&path, OpenFlags::existing(Access::Read)).await;
        let opened = match opened {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EISDIR) => {
                return Err(Errno::ESTALE);
            }
            opened => opened?,
        };
        let moved = self.path().as_ref() != Some(&path);
        if moved || Validator::of(&opened.attr) != self.validator() {
            self.inner.close(opened.fh);
            return Err(Errno::ESTALE);
        }
        Ok(opened.fh)
    }

    /// Gives the handle at the server back, if there is one, and returns what the server answers.
    pub(crate) async fn finish(&self) -> Result<()> {
        let fh = self.lock().fh.take();
        match fh {
            Some(fh) => self.inner.finish(fh).await,
            None => Ok(()),
        }
    }

    /// Returns what the server answers to a close of the handle there, if there is one.
    pub(crate) async fn flush(&self) -> Result<()> {
        let fh = self.lock().fh.filter(|_| self.access.writes());
        match fh {
            Some(fh) => self.inner.flush(fh).await,
            None => Ok(()),
        }
    }

    /// What was changed through it as long as it was open.
    fn end_change(&self) -> Option<Change> {
        self.lock().change.take()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(fh) = state.fh.take() {
            self.inner.close(fh);
        }
    }
}

/// All open files of one [`Cached`](crate::Cached), bounded by those above, who close them.
pub(crate) struct Files {
    table: Table<File>,
    inner: Arc<dyn Remote>,
}

impl Files {
    pub(crate) fn new(inner: Arc<dyn Remote>) -> Files {
        Files { table: Table::default(), inner }
    }

    /// Takes over what is open, and gives it a number.
    pub(crate) fn add(&self, parts: Parts) -> (Fh, Arc<File>) {
        let Parts { path, attr, access, fh, content, change, offline } = parts;
        let path = Some(path);
        let state = Mutex::new(State { path, fh, content, attempt: None, change, proven: false });
        let file = Arc::new(File { inner: self.inner.clone(), attr, access, offline, state });
        let number = self.table.number();
        self.table.insert(number, file.clone());
        (Fh(number), file)
    }

    pub(crate) fn get(&self, fh: Fh) -> Result<Arc<File>> {
        self.table.get(fh.0)
    }

    /// Takes it out of the table, and gives what was changed through it.
    pub(crate) fn remove(&self, fh: Fh) -> Option<(Arc<File>, Option<Change>)> {
        let file = self.table.remove(fh.0)?;
        let change = file.end_change();
        Some((file, change))
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.of(|_| true)
    }

    fn of(&self, wanted: impl Fn(&File) -> bool) -> Vec<Arc<File>> {
        let mut files = Vec::new();
        self.table.each(|file| {
            if wanted(file) {
                files.push(file.clone());
            }
        });
        files
    }

    /// Opens those at the server that are open at `path`, or below it, and have been read from
    /// here only. To be called before something about the path is changed.
    pub(crate) async fn bring_over(&self, path: &RemotePath) {
        let is_here = |file: &File| {
            let state = file.lock();
            let concerned = state.path.as_ref().is_some_and(|at| at.is_within(path));
            concerned && state.fh.is_none() && !file.offline
        };
        for file in self.of(is_here) {
            // If it cannot be opened, it is not the file that the name leads to now; it goes on
            // with the content that it has here.
            let _ = file.server().await;
        }
    }

    /// The same, for a change of the content: they are read from the server from now on.
    pub(crate) async fn let_go(&self, path: &RemotePath) {
        self.bring_over(path).await;
        let concerned = |file: &File| {
            let state = file.lock();
            state.fh.is_some() && state.path.as_ref().is_some_and(|at| at.is_within(path))
        };
        for file in self.of(concerned) {
            file.read_from_server();
        }
    }

    /// The name is gone, with all below it.
    pub(crate) fn removed(&self, path: &RemotePath) {
        for file in self.of(|_| true) {
            let mut state = file.lock();
            if state.path.as_ref().is_some_and(|at| at.is_within(path)) {
                state.path = None;
            }
        }
    }

    /// `from`, with all below it, is called `to` now; what was there is gone.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        if from == to {
            return;
        }
        for file in self.of(|_| true) {
            let mut state = file.lock();
            let Some(at) = &state.path else { continue };
            if let Some(moved) = at.moved(from, to) {
                state.path = Some(moved);
            } else if at.is_within(to) {
                state.path = None;
            }
        }
    }
}
