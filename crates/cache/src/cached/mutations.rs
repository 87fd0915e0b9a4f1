//! Changes: passed on to the remote. The records that they affect are forgotten before and after.

use base::{AttrChange, Errno, Fh, RemotePath, RenameMode, Result};
use bytes::Bytes;

use super::Core;
use super::changes::{Change, Scope};
use crate::{SourceId, Validator};

impl Core {
    /// Offline no change is possible.
    pub(crate) fn may_change(&self) -> Result<()> {
        if self.config.offline { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Begins a change: all records of `scopes` are invalid from now on.
    pub(crate) fn begin(&self, scopes: Vec<Scope>) -> Change {
        let change = self.changes.begin(scopes);
        self.forget(change.scopes());
        change
    }

    /// Ends a change that was answered, with success or not.
    pub(crate) fn end(&self, change: Change) {
        self.forget(change.scopes());
        change.done();
    }

    fn forget(&self, scopes: &[Scope]) {
        for source in self.both_sources() {
            for item in scopes {
                match item {
                    Scope::Subtree(path) => {
                        self.abandon(source, path);
                        self.store.forget(source, path);
                    }
                    Scope::Names(dir) => {
                        self.store.forget_listing(source, dir);
                        self.store.forget_attr(source, dir);
                    }
                }
            }
        }
        self.change_times.note(scopes);
        for item in scopes {
            match item {
                Scope::Subtree(path) => self.pending_listings.forget(path),
                Scope::Names(dir) => {
                    self.pending_listings.forget_listing(dir);
                    self.invalidate_attr(dir);
                }
            }
        }
        for item in scopes {
            let (Scope::Subtree(path) | Scope::Names(path)) = item;
            self.validators.forget(path);
            self.server_digests.forget(path);
        }
    }

    /// Discards the fetched part of the file: its next content may have the same size and, if a
    /// writer sets it back, the same mtime.
    fn abandon(&self, source: &SourceId, path: &RemotePath) {
        let of_content = self.store.file(source, path).map(|known| known.validator());
        let of_name = self.recorded_attr(source, path).map(|known| Validator::of(&known.attr));
        for validator in of_content.into_iter().chain(of_name.filter(|it| Some(*it) != of_content))
        {
            if self.store.present_bytes(source, path, validator) > 0 {
                self.store.fetch(source, path, validator).abandon();
            }
        }
    }

    /// The names that are of directories, as far as the records say; to be called before a change
    /// begins, which forgets them. When a directory is renamed or removed, the fetched parts of
    /// files below it are [abandoned](crate::Store::abandon_below), since another directory may get
    /// its name. That is done after the change has begun: later fetches belong to the change.
    fn possible_directories<'a>(
        &'a self,
        names: &[&'a RemotePath],
    ) -> Vec<(&'a SourceId, &'a RemotePath)> {
        let mut found = Vec::new();
        for name in names {
            for source in self.both_sources() {
                let known = self.recorded_attr(source, name);
                if known.is_none_or(|known| known.attr.is_dir()) {
                    found.push((source, *name));
                }
            }
        }
        found
    }

    async fn changing<T>(
        &self,
        scopes: Vec<Scope>,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let change = self.begin(scopes);
        let result = operation.await;
        self.end(change);
        result
    }

    /// The scopes of creating or removing a name.
    fn of_name(path: &RemotePath) -> Vec<Scope> {
        let parent = path.parent().map(Scope::Names);
        [Scope::Subtree(path.clone())].into_iter().chain(parent).collect()
    }

    pub(crate) async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(fh)?;
        // A file open for writing is open at the server.
        let fh = file.open_server_handle().await?;
        self.inner.write(fh, offset, data).await
    }

    pub(crate) async fn fsync(&self, fh: Fh) -> Result<()> {
        let fh = self.files.get(fh)?.open_server_handle().await?;
        self.inner.fsync(fh).await
    }

    pub(crate) async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.may_change()?;
        let begun = self.begin(vec![Scope::Subtree(path.clone())]);
        match change.size {
            Some(_) => self.files.switch_to_server(path).await,
            None => self.files.open_on_server(path).await,
        }
        let result = self.inner.setattr(path, change).await;
        self.end(begun);
        result
    }

    pub(crate) async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.may_change()?;
        let file = self.files.get(fh)?;
        let scopes: Vec<Scope> = file.path().into_iter().map(Scope::Subtree).collect();
        let begun = self.begin(scopes.clone());
        if !file.is_changing() {
            // Other files open under its name. For a file open for writing that was done at its
            // open.
            for item in &scopes {
                if let Scope::Subtree(path) = item {
                    self.files.open_on_server(path).await;
                }
            }
        }
        let result = match file.open_server_handle().await {
            Ok(fh) => self.inner.fsetattr(fh, change).await,
            Err(error) => Err(error),
        };
        self.end(begun);
        result
    }

    pub(crate) async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.may_change()?;
        self.changing(Core::of_name(path), self.inner.mkdir(path, perm)).await
    }

    pub(crate) async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.may_change()?;
        let directories = self.possible_directories(&[path]);
        let rmdir = async {
            self.store.abandon_below(&directories);
            self.inner.rmdir(path).await
        };
        self.changing(Core::of_name(path), rmdir).await
    }

    pub(crate) async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.may_change()?;
        self.changing(Core::of_name(path), self.inner.symlink(target, path)).await
    }

    pub(crate) async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.may_change()?;
        let change = self.begin(Core::of_name(path));
        self.files.open_on_server(path).await;
        let result = self.inner.unlink(path).await;
        if result.is_ok() {
            self.files.removed(path);
        }
        self.end(change);
        result
    }

    pub(crate) async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.may_change()?;
        let mut scopes = Core::of_name(new);
        scopes.push(Scope::Subtree(existing.clone()));
        let change = self.begin(scopes);
        self.files.switch_to_server(existing).await;
        let result = self.inner.link(existing, new).await;
        if result.is_ok() {
            self.note_linked(existing);
            self.note_linked(new);
        }
        self.end(change);
        result
    }

    pub(crate) async fn rename(
        &self,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
    ) -> Result<()> {
        self.may_change()?;
        let mut scopes = Core::of_name(from);
        scopes.extend(Core::of_name(to));
        let directories = self.possible_directories(&[from, to]);
        let change = self.begin(scopes);
        self.store.abandon_below(&directories);
        self.files.open_on_server(from).await;
        self.files.open_on_server(to).await;
        let result = self.inner.rename(from, to, mode).await;
        if result.is_ok() {
            self.files.renamed(from, to);
            for linked in self.linked_within(from) {
                if let Some(moved) = linked.moved(from, to) {
                    self.note_linked(&moved);
                }
            }
        }
        self.end(change);
        result
    }

    pub(crate) async fn copy(
        &self,
        (from, from_offset): (Fh, u64),
        (to, to_offset): (Fh, u64),
        len: u64,
    ) -> Result<u64> {
        let (from, to) = (self.files.get(from)?, self.files.get(to)?);
        let (from, to) = (from.open_server_handle().await?, to.open_server_handle().await?);
        self.inner.copy(from, from_offset, to, to_offset, len).await
    }
}
