//! Translates the absolute links and the owners of one branch of a union.
//!
//! With a single host, `vfs` does both: it knows one remote root and one login. In a union each
//! branch has its own, so they are translated here, below the union:
//!
//! - An absolute link target below the branch's remote root becomes relative to the link. Both are
//!   in the same branch, so that the link leads to the same file in the mount.
//! - With `idmap=user`, the ids of the remote login become those of the local user, and back.
//!
//! Roots are known when a host was connected. Logins are queried when needed, since a host may be
//! unreachable at first.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Location, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, OpenGuard, Opened,
    Remote, RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;
use host::Host;
use tokio::sync::OnceCell;
use vfs::RemoteRoot;

use super::disk::LoginRecord;

/// A branch with translated links and owners.
pub(super) struct View {
    pub inner: Arc<dyn Remote>,
    /// The paths of the branch's root on its hosts; links are left as they are while none is known.
    pub roots: Vec<RemoteRoot>,
    /// `None` leaves owners as they are.
    pub owners: Option<Owners>,
}

/// The login whose ids are those of the local user.
pub(super) struct Owners {
    hosts: Vec<Arc<Host>>,
    /// Where the ids are recorded.
    record: Option<LoginRecord>,
    map: OnceCell<vfs::IdMap>,
}

impl View {
    /// Once the login is known, this does not wait.
    async fn attr_here(&self, attr: Attr) -> Result<Attr> {
        match &self.owners {
            None => Ok(attr),
            Some(owners) => owners.map().await?.attr_to_local(&vfs::Shown::default(), attr),
        }
    }

    async fn change_there(&self, change: AttrChange) -> Result<AttrChange> {
        match &self.owners {
            Some(owners) if change.uid.or(change.gid).is_some() => {
                let map = owners.map().await?;
                let uid = change.uid.map(|uid| map.uids.to_remote(uid)).transpose()?;
                let gid = change.gid.map(|gid| map.gids.to_remote(gid)).transpose()?;
                Ok(AttrChange { uid, gid, ..change })
            }
            _ => Ok(change),
        }
    }
}

impl Owners {
    /// Queries the hosts if necessary, until one answers.
    pub fn of_login(hosts: Vec<Arc<Host>>, record: Option<LoginRecord>) -> Owners {
        Owners { hosts, record, map: OnceCell::new() }
    }

    /// Has been asked already.
    pub fn known(map: vfs::IdMap) -> Owners {
        Owners { hosts: Vec::new(), record: None, map: OnceCell::new_with(Some(map)) }
    }

    async fn map(&self) -> Result<&vfs::IdMap> {
        self.map
            .get_or_try_init(|| async {
                let mut why = Errno::EHOSTDOWN;
                for host in &self.hosts {
                    match super::user_map(host, self.record.as_ref()).await {
                        Ok(map) => return Ok(map),
                        Err(error) => why = error,
                    }
                }
                Err(why)
            })
            .await
    }
}

/// Operations as `async_trait` declares them, whose futures are those of the branch.
macro_rules! forward {
    ($(fn $name:ident<$($life:lifetime),*>($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name<'a, $($life,)* 'async_trait>(
            &'a self,
            $($arg: $kind),*
        ) -> Pin<Box<dyn Future<Output = $result> + Send + 'async_trait>>
        where
            'a: 'async_trait,
            $($life: 'async_trait,)*
            Self: 'async_trait,
        {
            self.inner.$name($($arg),*)
        })*
    };
}

#[async_trait]
impl Remote for View {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.attr_here(self.inner.lstat(path).await?).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        let target = self.inner.readlink(path).await?;
        let dir = path.parent().unwrap_or_default();
        let roots = self.roots.iter().filter_map(|root| root.get());
        let mut relative = roots.filter_map(|root| vfs::relative_target(root, &dir, &target));
        Ok(relative.next().unwrap_or(target))
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        // Before the batch is fetched, which would be lost if this failed or were dropped.
        let map = match &self.owners {
            Some(owners) => Some(owners.map().await?),
            None => None,
        };
        let mut batch = self.inner.readdir(dh).await?;
        if let Some(map) = map {
            for attr in batch.iter_mut().flatten().filter_map(|entry| entry.attr.as_mut()) {
                *attr = map.attr_to_local(&vfs::Shown::default(), *attr)?;
            }
        }
        Ok(batch)
    }

    fn closedir(&self, dh: Dh) {
        self.inner.closedir(dh);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let opened = self.inner.open(path, flags).await?;
        if self.owners.is_none() {
            return Ok(opened);
        }
        // Closed if the caller is cancelled, or if the login cannot be queried.
        let handle = OpenGuard::new(self.inner.as_ref(), opened.fh);
        let attr = self.attr_here(opened.attr).await?;
        Ok(Opened { fh: handle.take(), attr })
    }

    async fn open_stored(&self, path: &RemotePath, attr: &Attr) -> Option<Opened> {
        let Some(owners) = &self.owners else { return self.inner.open_stored(path, attr).await };
        let map = owners.map().await.ok()?;
        let (uid, gid) = (map.uids.to_remote(attr.uid).ok()?, map.gids.to_remote(attr.gid).ok()?);
        let opened = self.inner.open_stored(path, &Attr { uid, gid, ..*attr }).await?;
        Some(Opened { attr: *attr, ..opened })
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.attr_here(self.inner.fstat(fh).await?).await
    }

    fn close(&self, fh: Fh) {
        self.inner.close(fh);
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.inner.setattr(path, self.change_there(change).await?).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.inner.fsetattr(fh, self.change_there(change).await?).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.inner.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        let value = self.inner.getxattr(path, name).await?;
        match &self.owners {
            Some(owners) if vfs::is_acl(name) => owners.map().await?.acl_to_local(&value),
            _ => Ok(value),
        }
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let value = match &self.owners {
            Some(owners) if vfs::is_acl(name) => owners.map().await?.acl_to_remote(&value)?,
            _ => value,
        };
        self.inner.setxattr(path, name, value, mode).await
    }

    fn suggested_window(&self) -> Window {
        self.inner.suggested_window()
    }

    fn backing(&self, fh: Fh) -> Option<Arc<OwnedFd>> {
        self.inner.backing(fh)
    }

    fn is_disconnected(&self) -> bool {
        self.inner.is_disconnected()
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.inner.watches()
    }

    fn may_be_lost(&self) -> bool {
        self.inner.may_be_lost()
    }

    fn has_locks(&self) -> bool {
        self.inner.has_locks()
    }

    // A digest does not depend on owners.
    forward! {
        fn opendir<'b>(path: &'b RemotePath) -> Result<Dh>;
        fn read<>(fh: Fh, offset: u64, len: u32) -> Result<Data>;
        fn write<>(fh: Fh, offset: u64, data: Bytes) -> Result<()>;
        fn fsync<>(fh: Fh) -> Result<()>;
        fn fsyncdir<'b>(path: &'b RemotePath) -> Result<()>;
        fn finish<>(fh: Fh) -> Result<()>;
        fn flush<>(fh: Fh) -> Result<()>;
        fn mkdir<'b>(path: &'b RemotePath, perm: u32) -> Result<()>;
        fn rmdir<'b>(path: &'b RemotePath) -> Result<()>;
        fn unlink<'b>(path: &'b RemotePath) -> Result<()>;
        fn symlink<'b, 'c>(target: &'b [u8], path: &'c RemotePath) -> Result<()>;
        fn link<'b, 'c>(existing: &'b RemotePath, new: &'c RemotePath) -> Result<()>;
        fn rename<'b, 'c>(from: &'b RemotePath, to: &'c RemotePath, mode: RenameMode) -> Result<()>;
        fn statvfs<'b>(path: &'b RemotePath) -> Result<StatVfs>;
        fn copy<>(from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64>;
        fn mknod<'b>(
            path: &'b RemotePath, kind: FileKind, perm: u32, device: (u32, u32)
        ) -> Result<()>;
        fn fallocate<>(fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()>;
        fn seek<>(fh: Fh, offset: u64, what: Seek) -> Result<u64>;
        fn listxattr<'b>(path: &'b RemotePath) -> Result<Vec<Bytes>>;
        fn entries_with_xattrs<'b>(dir: &'b RemotePath) -> Result<Vec<Name>>;
        fn removexattr<'b, 'c>(path: &'b RemotePath, name: &'c [u8]) -> Result<()>;
        fn locate<'b>(path: &'b RemotePath) -> Result<Vec<Location>>;
        fn digest<'b, 'c>(
            path: &'b RemotePath, attr: &'c Attr, kind: DigestKind, effort: DigestEffort
        ) -> Result<Option<Bytes>>;
        fn disconnected<>() -> ();
        fn lock<>(fh: Fh, lock: Lock, wait: bool) -> Result<()>;
        fn unlock<>(fh: Fh, owner: LockOwner, range: LockRange) -> Result<()>;
        fn test_lock<>(fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>>;
        fn lost_lock<>(fh: Fh) -> ();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Access;
    use testkit::{MemRemote, path};

    const THERE: u32 = 4321;

    /// The login there is 4321, and the root there is `/srv/data`.
    fn view(remote: Arc<MemRemote>) -> View {
        let owners = Owners::known(super::super::local_user(THERE, THERE));
        View {
            inner: remote,
            roots: vec![RemoteRoot::new(b"/srv/data".to_vec().into())],
            owners: Some(owners),
        }
    }

    mod conformance {
        use std::sync::Arc;
        use testkit::MemRemote;
        use testkit::conformance::Fixture;

        async fn ground() -> Fixture {
            let remote = Arc::new(MemRemote::new());
            let counted = remote.clone();
            Fixture::new(Arc::new(super::view(remote))).counting(move || counted.open_handles())
        }

        testkit::conformance!(ground);
    }

    #[test]
    fn an_error_of_a_local_directory_is_none_of_a_lost_host() {
        for may_be_lost in [false, true] {
            let options = testkit::mem::Options { may_be_lost, ..Default::default() };
            let view = view(Arc::new(MemRemote::with(options)));
            assert_eq!(view.may_be_lost(), may_be_lost);
        }
    }

    /// A caller that goes on after the error gets the names all the same.
    #[tokio::test]
    async fn a_listing_loses_nothing_while_the_login_is_not_known() {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("f", "x");
        let owners = Some(Owners::of_login(Vec::new(), None));
        let view = View { inner: remote.clone(), roots: Vec::new(), owners };
        let dir = view.opendir(&path("")).await.unwrap();
        assert_eq!(view.readdir(dir).await.unwrap_err(), Errno::EHOSTDOWN);
        assert_eq!(remote.readdir(dir).await.unwrap().map(|batch| batch.len()), Some(1));
    }

    #[tokio::test]
    async fn the_login_there_is_the_local_user_in_all_attributes_and_changes() {
        let remote = Arc::new(MemRemote::new());
        let own = super::super::own_ids();
        remote.put_file("f", "x");
        let there = AttrChange { uid: Some(THERE), gid: Some(THERE), ..AttrChange::default() };
        remote.setattr(&path("f"), there).await.unwrap();
        let view = view(remote.clone());
        let ids = |attr: Attr| (attr.uid, attr.gid);
        assert_eq!(ids(view.lstat(&path("f")).await.unwrap()), own);
        let opened = view.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
        assert_eq!(ids(opened.attr), own);
        assert_eq!(ids(view.fstat(opened.fh).await.unwrap()), own);
        view.close(opened.fh);
        let dir = view.opendir(&path("")).await.unwrap();
        let batch = view.readdir(dir).await.unwrap().unwrap();
        assert!(batch.iter().filter_map(|entry| entry.attr).all(|attr| ids(attr) == own));
        view.closedir(dir);
        let other = AttrChange { uid: Some(7), gid: Some(8), ..AttrChange::default() };
        view.setattr(&path("f"), other).await.unwrap();
        assert_eq!(ids(view.lstat(&path("f")).await.unwrap()), (7, 8), "others stay");
        let back = AttrChange { uid: Some(own.0), gid: Some(own.1), ..AttrChange::default() };
        view.setattr(&path("f"), back).await.unwrap();
        assert_eq!(ids(remote.lstat(&path("f")).await.unwrap()), (THERE, THERE));
    }

    #[tokio::test]
    async fn absolute_links_below_the_root_become_relative() {
        let remote = Arc::new(MemRemote::new());
        remote.put_dir("a");
        let view = view(remote.clone());
        for (at, target, seen) in [
            ("a/1", "/srv/data/x", "../x"),
            ("2", "/srv/data/a/x", "a/x"),
            ("3", "/srv/database", "/srv/database"),
            ("4", "a/x", "a/x"),
        ] {
            remote.symlink(target.as_bytes(), &path(at)).await.unwrap();
            assert_eq!(view.readlink(&path(at)).await.unwrap(), seen.as_bytes(), "{at}");
        }
    }

    /// A login that is not told fails what it would be needed for, and leaves no handle open.
    #[tokio::test]
    async fn without_a_login_no_handle_is_left() {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("f", "x");
        let owners = Some(Owners::of_login(Vec::new(), None));
        let view = View { inner: remote.clone(), roots: Vec::new(), owners };
        assert_eq!(view.lstat(&path("f")).await, Err(Errno::EHOSTDOWN));
        let flags = OpenFlags::existing(Access::Read);
        assert_eq!(view.open(&path("f"), flags).await.map(drop), Err(Errno::EHOSTDOWN));
        assert_eq!(remote.open_handles(), 0);
    }
}
