//! Open files: the source of their bytes, and the handle at the server, which may be opened late.
//!
//! A file whose content is cached is open without a handle at the server, as long as no change made
//! here affects it. It shows one content, that of the time of the open; or the present one, once an
//! answer of the server has shown that others have changed the same file.
//!
//! Invariants:
//! 1. Before a change through this mount that affects a path, the open files of that path are
//!    opened at the server ([`Files::open_on_server`]), so that they stay the same files; where the
//!    content may change, they are read from the server from then on. So are those that are open
//!    by another name of the same file, where the server shows that.
//! 2. At most one open at the server is in flight for a file, and it runs to its end also if its
//!    callers are cancelled. The handle is of the content that the file was opened with; or of the
//!    same file with another content, as far as the server shows that, which is read from the
//!    server then; or the result is `ESTALE`.
//! 3. A handle at the server is closed when the last reference to its [`File`] is dropped.

use std::sync::Arc;

use base::{
    Access, Attr, Errno, Fh, Mutex, OpenFlags, Remote, RemotePath, RenameMode, Result, Table,
};
use tokio::sync::watch;

use super::changes::{Change, Changes, Scope};
use super::write_behind::Fetch;
use crate::{Object, Validator};

/// The source of an open file's bytes.
#[derive(Clone)]
pub(crate) enum Content {
    /// The server.
    Server,
    /// The store.
    Whole(Object),
    /// A part is in the store, and bytes read from the server are added to it.
    Part(Arc<Fetch>),
}

type OpenResult = watch::Receiver<Option<Result<Fh>>>;

struct FileState {
    /// `None` once the name was removed here.
    path: Option<RemotePath>,
    fh: Option<Fh>,
    content: Content,
    /// An open at the server in flight.
    attempt: Option<OpenResult>,
    /// For a file open for writing: the change of its path, which lasts as long as it is open.
    change: Option<Change>,
}

/// An open file. See the [module](self).
pub(crate) struct File {
    inner: Arc<dyn Remote>,
    /// The attributes at the time of the open.
    pub(crate) attr: Attr,
    pub(crate) access: Access,
    /// The server is never queried.
    pub(crate) offline: bool,
    state: Mutex<FileState>,
}

impl File {
    pub(crate) fn inner(&self) -> &Arc<dyn Remote> {
        &self.inner
    }

    pub(crate) fn validator(&self) -> Validator {
        Validator::of(&self.attr)
    }

    /// Whether the file that its name leads to, with the attributes `attr`, is this one. If others
    /// may have changed the content of the same file, the present content is shown from now on.
    /// Without an identity, a file with another size or mtime is another file, and one with another
    /// change alone is the same.
    pub(crate) fn recognize(&self, attr: &Attr) -> bool {
        let (known, reported) = (self.validator(), Validator::of(attr));
        let by_id = self.attr.is_same_file(attr);
        let is_same = by_id.unwrap_or_else(|| known.has_size_and_mtime_of(&reported));
        let knows_changes = known.change.is_some() && reported.change.is_some();
        if is_same && known != reported && (by_id.is_some() || knows_changes) {
            self.read_from_server();
        }
        is_same
    }

    /// Its present name, as far as this mount has changed it.
    pub(crate) fn path(&self) -> Option<RemotePath> {
        self.state.lock().path.clone()
    }

    pub(crate) fn content(&self) -> Content {
        self.state.lock().content.clone()
    }

    /// Whether it is below `dir`, and some of its bytes come from the store.
    pub(crate) fn is_stored_below(&self, dir: &RemotePath) -> bool {
        let state = self.state.lock();
        !matches!(state.content, Content::Server)
            && state.path.as_ref().is_some_and(|at| at.is_below(dir))
    }

    /// Whether it is open for writing.
    pub(crate) fn is_changing(&self) -> bool {
        self.state.lock().change.is_some()
    }

    /// The handle at the server, if it is open.
    pub(crate) fn server_handle(&self) -> Option<Fh> {
        self.state.lock().fh
    }

    /// Whether the file with the attributes `attr` is this one, and has several names.
    pub(crate) fn is_linked_to(&self, attr: &Attr) -> bool {
        !attr.has_one_name() && self.attr.is_same_file(attr) == Some(true)
    }

    /// Whether it had several names when it was opened, by which it can be recognized.
    pub(crate) fn has_other_names(&self) -> bool {
        self.is_linked_to(&self.attr)
    }

    /// Reads the file from the server from now on: its content is another one, or unknown.
    pub(crate) fn read_from_server(&self) {
        self.put_content(Content::Server);
    }

    fn put_content(&self, content: Content) {
        // Dropped without the lock.
        let _old = std::mem::replace(&mut self.state.lock().content, content);
    }

    /// The content of `fetch` is complete.
    pub(crate) fn complete(&self, fetch: &Arc<Fetch>, object: Object) {
        let mut state = self.state.lock();
        let same = matches!(&state.content, Content::Part(part) if Arc::ptr_eq(part, fetch));
        if same {
            let _part = std::mem::replace(&mut state.content, Content::Whole(object));
        }
    }

    /// The whole content is damaged: it is fetched again, into `fetch`.
    pub(crate) fn refetch(&self, fetch: Option<Arc<Fetch>>) {
        let mut state = self.state.lock();
        if matches!(state.content, Content::Whole(_)) {
            let repair = fetch.map_or(Content::Server, Content::Part);
            let _object = std::mem::replace(&mut state.content, repair);
        }
    }

    /// The handle at the server; opened now if it was not before. An existing handle is returned in
    /// the first poll.
    pub(crate) async fn open_server_handle(self: &Arc<Self>) -> Result<Fh> {
        let mut attempt = {
            let mut state = self.state.lock();
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
                        let mut state = file.state.lock();
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
        if moved || !self.recognize(&opened.attr) {
            self.inner.close(opened.fh);
            return Err(Errno::ESTALE);
        }
        Ok(opened.fh)
    }

    /// Closes the handle at the server, if there is one, and returns the server's answer.
    pub(crate) async fn finish(&self) -> Result<()> {
        let fh = self.state.lock().fh.take();
        match fh {
            Some(fh) => self.inner.finish(fh).await,
            None => Ok(()),
        }
    }

    /// Flushes the handle at the server, if there is one, and returns the server's answer.
    pub(crate) async fn flush(&self) -> Result<()> {
        let fh = self.state.lock().fh.filter(|_| self.access.writes());
        match fh {
            Some(fh) => self.inner.flush(fh).await,
            None => Ok(()),
        }
    }

    /// Takes the change that lasts as long as the file is open.
    fn end_change(&self) -> Option<Change> {
        self.state.lock().change.take()
    }
}

/// Whether `attr` shows which file it is of, or that the file has changed; size and mtime aside.
pub(crate) fn is_identified(attr: &Attr) -> bool {
    attr.inode.is_some_and(|inode| inode.id.is_some() || inode.change.is_some())
}

impl Drop for File {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let Some(fh) = state.fh.take() {
            self.inner.close(fh);
        }
    }
}

/// All open files of one [`Cached`](crate::Cached), bounded by the layer above, which closes them.
pub(crate) struct Files {
    table: Table<File>,
    inner: Arc<dyn Remote>,
    offline: bool,
}

impl Files {
    /// With `offline` the server is never queried.
    pub(crate) fn new(inner: Arc<dyn Remote>, offline: bool) -> Files {
        Files { table: Table::default(), inner, offline }
    }

    /// Adds a file under a new handle. `fh` is its handle at the server. If the file is open for
    /// writing by another name, it is read from the server.
    pub(crate) fn add(
        &self,
        path: &RemotePath,
        attr: Attr,
        access: Access,
        fh: Option<Fh>,
        content: Content,
        change: Option<Change>,
    ) -> (Fh, Arc<File>) {
        let (path, attempt) = (Some(path.clone()), None);
        let state = Mutex::new(FileState { path, fh, content, attempt, change });
        let (inner, offline) = (self.inner.clone(), self.offline);
        let file = Arc::new(File { inner, attr, access, offline, state });
        let number = self.table.number();
        self.table.insert(number, file.clone());
        let is_written = |other: &File| other.is_linked_to(&attr) && other.is_changing();
        if !matches!(file.content(), Content::Server) && !self.matching(is_written).is_empty() {
            file.read_from_server();
        }
        (Fh(number), file)
    }

    pub(crate) fn get(&self, fh: Fh) -> Result<Arc<File>> {
        self.table.get(fh.0)
    }

    /// Removes a file from the table, and returns its change.
    pub(crate) fn remove(&self, fh: Fh) -> Option<(Arc<File>, Option<Change>)> {
        let file = self.table.remove(fh.0)?;
        let change = file.end_change();
        Some((file, change))
    }

    /// The open files that are `wanted`.
    pub(crate) fn matching(&self, wanted: impl Fn(&File) -> bool) -> Vec<Arc<File>> {
        let mut files = Vec::new();
        self.table.each(|file| {
            if wanted(file) {
                files.push(file.clone());
            }
        });
        files
    }

    /// The server has returned `attr` for `path`. The open files there, or at another name of the
    /// file, that are the same file show its present content from now on: all of them fill the pages
    /// of one inode.
    pub(crate) fn recognize(&self, path: &RemotePath, attr: &Attr) {
        if !is_identified(attr) {
            return;
        }
        let may_be_same = |file: &File| file.attr.is_same_file(attr) != Some(false);
        for file in self.matching(may_be_same) {
            if file.is_linked_to(attr) || file.path().as_ref() == Some(path) {
                file.recognize(attr);
            }
        }
    }

    /// Opens the files at the server that are open in `scope`, and have no handle there. To be
    /// called before a change that affects them.
    pub(crate) async fn open_on_server(&self, scope: &Scope) {
        let is_local = |file: &File| {
            let state = file.state.lock();
            let affected = state.path.as_ref().is_some_and(|at| scope.touches(at));
            affected && state.fh.is_none() && !file.offline
        };
        for file in self.matching(is_local) {
            // If that fails, the name leads to another file now; this one keeps its cached content.
            let _ = file.open_server_handle().await;
        }
    }

    /// Does what [`Files::open_on_server`] does, and reads the files from the server from then on:
    /// for a change of the content.
    pub(crate) async fn switch_to_server(&self, path: &RemotePath) {
        self.open_on_server(&Scope::Subtree(path.clone())).await;
        let affected = |file: &File| {
            let state = file.state.lock();
            state.fh.is_some() && state.path.as_ref().is_some_and(|at| at.is_within(path))
        };
        for file in self.matching(affected) {
            file.read_from_server();
        }
    }

    /// Reads the open files of `attr`'s file from the server from now on, also those that are open by
    /// another name: its content may change.
    pub(crate) fn read_names_from_server(&self, attr: &Attr) {
        let affected = self.matching(|file| file.is_linked_to(attr));
        affected.iter().for_each(|file| file.read_from_server());
    }

    /// Reads the open files that have several names from the server from now on: the content of one
    /// of them may change, by a name that shows no identity.
    pub(crate) fn read_linked_from_server(&self) {
        let affected = self.matching(File::has_other_names);
        affected.iter().for_each(|file| file.read_from_server());
    }

    /// The name was removed, with all below it.
    pub(crate) fn removed(&self, path: &RemotePath) {
        for file in self.matching(|_| true) {
            let mut state = file.state.lock();
            if state.path.as_ref().is_some_and(|at| at.is_within(path)) {
                state.path = None;
            }
        }
    }

    /// `from`, with all below it, was renamed to `to`; a file that was there was replaced. To be
    /// called before the change of both names ends: that of a file open for writing goes on under
    /// its new name.
    pub(crate) fn renamed(
        &self,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
        changes: &Changes,
    ) {
        if from == to {
            return;
        }
        for file in self.matching(|_| true) {
            let mut state = file.state.lock();
            let Some(at) = &state.path else { continue };
            if let Some(moved) = mode.moved(at, from, to) {
                if let Some(change) = &mut state.change {
                    let of_new_name = changes.begin(vec![Scope::Subtree(moved.clone())]);
                    std::mem::replace(change, of_new_name).done();
                }
                state.path = Some(moved);
            } else if at.is_within(to) {
                state.path = None;
            }
        }
    }
}
