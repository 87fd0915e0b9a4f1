//! Changes: passed on, and what is recorded of what they touch forgotten, before and after.

use base::{AttrChange, Errno, Fh, RemotePath, RenameMode, Result};
use bytes::Bytes;

use super::Core;
use super::changes::{Change, Item};
use crate::{SourceId, Validator};

impl Core {
    /// Offline nothing is changed.
    pub(crate) fn may_change(&self) -> Result<()> {
        if self.config.offline { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// A change begins: nothing that was told of `items` counts any longer.
    pub(crate) fn begin(&self, items: Vec<Item>) -> Change {
        let change = self.changes.begin(items);
        self.forget(change.items());
        change
    }

    /// It was answered, however.
    pub(crate) fn end(&self, change: Change) {
        self.forget(change.items());
        change.done();
    }

    fn forget(&self, items: &[Item]) {
        for source in self.both_sources() {
            for item in items {
                match item {
                    Item::Tree(path) => {
                        self.abandon(source, path);
                        self.store.forget(source, path);
                    }
                    Item::Names(dir) => {
                        self.store.forget_listing(source, dir);
                        self.store.forget_attr(source, dir);
                    }
                }
            }
        }
        self.changed_at.note(items);
        for item in items {
            match item {
                Item::Tree(path) => self.fresh.forget(path),
                Item::Names(dir) => {
                    self.fresh.forget_listing(dir);
                    self.doubt(dir);
                }
            }
        }
        for item in items {
            let (Item::Tree(path) | Item::Names(path)) = item;
            self.seen.forget(path);
            self.digesting.forget(path);
        }
    }

    /// What was fetched of the file so far is not continued: its next content may have the same
    /// size and, set back by whoever wrote it, the same time.
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

    /// Whichever of these names are of directories, as far as that is known; to be asked before a
    /// change begins, which forgets it. When one gets another name, or none, what was fetched of
    /// files below it is [abandoned](crate::Store::abandon_below): what is there next may be of
    /// another directory that got this one's. That is for after the beginning: what is fetched
    /// after that is of a change.
    fn perhaps_directories<'a>(
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
        items: Vec<Item>,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let change = self.begin(items);
        let result = operation.await;
        self.end(change);
        result
    }

    /// What is touched when a name is made or removed.
    fn of_name(path: &RemotePath) -> Vec<Item> {
        let parent = path.parent().map(Item::Names);
        [Item::Tree(path.clone())].into_iter().chain(parent).collect()
    }

    pub(crate) async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(fh)?;
        // One that is open to be written is open at the server.
        let fh = file.server().await?;
        self.inner.write(fh, offset, data).await
    }

    pub(crate) async fn fsync(&self, fh: Fh) -> Result<()> {
        let fh = self.files.get(fh)?.server().await?;
        self.inner.fsync(fh).await
    }

    pub(crate) async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.may_change()?;
        let begun = self.begin(vec![Item::Tree(path.clone())]);
        match change.size {
            Some(_) => self.files.let_go(path).await,
            None => self.files.bring_over(path).await,
        }
        let result = self.inner.setattr(path, change).await;
        self.end(begun);
        result
    }

    pub(crate) async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.may_change()?;
        let file = self.files.get(fh)?;
        let items: Vec<Item> = file.path().into_iter().map(Item::Tree).collect();
        let begun = self.begin(items.clone());
        if !file.is_changing() {
            // Others that are open by its name. For one that is written through, that was done
            // when it was opened.
            for item in &items {
                if let Item::Tree(path) = item {
                    self.files.bring_over(path).await;
                }
            }
        }
        let result = match file.server().await {
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
        let directories = self.perhaps_directories(&[path]);
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
        self.files.bring_over(path).await;
        let result = self.inner.unlink(path).await;
        if result.is_ok() {
            self.files.removed(path);
        }
        self.end(change);
        result
    }

    pub(crate) async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.may_change()?;
        let mut items = Core::of_name(new);
        items.push(Item::Tree(existing.clone()));
        let change = self.begin(items);
        self.files.let_go(existing).await;
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
        let mut items = Core::of_name(from);
        items.extend(Core::of_name(to));
        let directories = self.perhaps_directories(&[from, to]);
        let change = self.begin(items);
        self.store.abandon_below(&directories);
        self.files.bring_over(from).await;
        self.files.bring_over(to).await;
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
        let (from, to) = (from.server().await?, to.server().await?);
        self.inner.copy(from, from_offset, to, to_offset, len).await
    }
}
