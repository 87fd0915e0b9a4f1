//! Changes: passed on to the remote. The records that they affect are forgotten before and after.

use base::{AttrChange, Errno, RemotePath, Result};

use super::Core;
use super::changes::{Change, Scope};
use crate::{KnownAttr, SourceId, Validator};

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
                        self.abandon(source, item, path);
                        self.store.forget(source, path);
                    }
                    Scope::Entry(path) => {
                        self.abandon(source, item, path);
                        self.store.forget_entry(source, path);
                    }
                    Scope::Names(dir) => {
                        self.store.forget_listing(source, dir);
                        self.store.forget_attr(source, dir);
                    }
                }
            }
        }
        for item in scopes {
            let path = match item {
                Scope::Subtree(path) => {
                    self.pending_listings.forget(path);
                    path
                }
                Scope::Entry(path) => {
                    self.pending_listings.forget_entry(path);
                    path
                }
                Scope::Names(dir) => {
                    self.pending_listings.forget_listing(dir);
                    self.invalid_dirs.insert(dir);
                    dir
                }
            };
            self.validators.forget(path);
            self.server_digests.forget(path);
        }
    }

    /// Discards the fetched part of the file at `path`, and of the others in `scope`: its next
    /// content may have the same size and, if a writer sets it back, the same mtime. Parts that
    /// earlier mounts have left are found by the records.
    fn abandon(&self, source: &SourceId, scope: &Scope, path: &RemotePath) {
        self.store.abandon_own(source, |at| scope.touches(at));
        let of_content = self.store.file(source, path).map(|known| known.validator());
        let of_name = self.recorded_attr(source, path).map(|known| Validator::of(&known.attr));
        let known = of_content.into_iter().chain(of_name.filter(|it| Some(*it) != of_content));
        // Parts of immutable trees have no sign of a change.
        for validator in known.flat_map(|it| [it, Validator { change: None, ..it }]) {
            if self.store.present_bytes(source, path, validator) > 0 {
                self.store.fetch(source, path, validator).abandon();
            }
        }
    }

    /// The names that are of directories, as far as the records say; to be called before a change
    /// begins, which forgets them. When a directory is renamed or removed, the fetched parts of
    /// files below it are abandoned (`Store::abandon_below`), since another directory may get
    /// its name. That is done after the change has begun: later fetches belong to the change.
    pub(crate) fn possible_directories<'a>(
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

    /// Makes a change of `scopes` by `operation`, which runs after their records were forgotten.
    pub(crate) async fn changing<T>(
        &self,
        scopes: Vec<Scope>,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.may_change()?;
        let change = self.begin(scopes);
        let result = operation.await;
        self.end(change);
        result
    }

    /// Offline no extended attribute is known.
    pub(crate) fn has_xattrs(&self) -> Result<()> {
        if self.config.offline { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Makes a change of the extended attribute `name` of `path`.
    pub(crate) async fn changing_xattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        operation: impl Future<Output = Result<()>> + Send,
    ) -> Result<()> {
        // Any but a user's own may be an access list, or have the effect of one.
        let may_remove_rights = !name.starts_with(b"user.");
        let scope = Core::of_attributes(path, may_remove_rights);
        let operation = async {
            self.files.open_on_server(&scope).await;
            operation.await
        };
        self.changing(vec![scope.clone()], operation).await
    }

    /// Whether `change` of `path` may remove a right to read the files there or below; to be called
    /// before the change begins, which forgets the present attributes.
    pub(crate) fn may_remove_rights(&self, path: &RemotePath, change: &AttrChange) -> bool {
        let AttrChange { perm, uid, gid, .. } = *change;
        if perm.is_none() && uid.is_none() && gid.is_none() {
            return false;
        }
        let is_harmless = |KnownAttr { attr, .. }| {
            perm.is_none_or(|perm| attr.perm & 0o555 & !perm == 0)
                && uid.is_none_or(|uid| attr.uid == uid)
                && gid.is_none_or(|gid| attr.gid == gid)
        };
        !self.known_attr(self.source(path), path).is_some_and(is_harmless)
    }

    /// The scope of changing attributes of `path`. Without the right to search a directory, no file
    /// below can be opened: it is open at the server before the change, and its cached content is
    /// not shown after it without an open there.
    pub(crate) fn of_attributes(path: &RemotePath, may_remove_rights: bool) -> Scope {
        if may_remove_rights { Scope::Subtree(path.clone()) } else { Scope::Entry(path.clone()) }
    }

    /// The scopes of creating or removing a name.
    pub(crate) fn of_name(path: &RemotePath) -> Vec<Scope> {
        let parent = path.parent().map(Scope::Names);
        [Scope::Subtree(path.clone())].into_iter().chain(parent).collect()
    }
}
