//! The operations of [`Remote`], each through [`FaultyRemote::pass`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DirEntry, Errno, Fh, FileKind, Location, Lock,
    LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote, RemotePath, RenameMode,
    Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;
use tokio::sync::watch;

use super::plan::{Order, Orders};
use super::{FaultyRemote, Handle, Link, State};
use crate::call::Call;

/// A call's place in the queues of its handles; dropping it admits the next call.
struct Turn {
    behind: Vec<watch::Receiver<()>>,
    _place: Option<watch::Sender<()>>,
}

impl State {
    /// The calls that wait to reach the inner remote with `handle`, in order.
    fn waiting(&mut self, handle: Handle) -> Vec<watch::Receiver<()>> {
        let mut queue = self.queues.remove(&handle).unwrap_or_default();
        queue.retain(|place| place.has_changed().is_ok());
        queue
    }

    /// Queues for `handles`, if they have queues or this call will create one.
    fn queue_up(&mut self, handles: &[Handle], will_wait: bool) -> Turn {
        let queues: Vec<_> =
            handles.iter().map(|handle| (*handle, self.waiting(*handle))).collect();
        let behind: Vec<_> = queues.iter().flat_map(|(_, queue)| queue.clone()).collect();
        if behind.is_empty() && !will_wait {
            return Turn { behind, _place: None };
        }
        let (place, seen) = watch::channel(());
        for (handle, mut queue) in queues {
            queue.push(seen.clone());
            self.queues.insert(handle, queue);
        }
        Turn { behind, _place: Some(place) }
    }
}

/// A value that was not delivered yet; undone if it never is.
struct Undelivered<T, U: FnMut(T)> {
    value: Option<T>,
    undo: U,
}

impl<T, U: FnMut(T)> Undelivered<T, U> {
    fn deliver(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T, U: FnMut(T)> Drop for Undelivered<T, U> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            (self.undo)(value);
        }
    }
}

impl Orders {
    async fn stop(&self) {
        if let Some((number, call, stepper)) = &self.stepper {
            stepper.stop(*number, *call).await;
        }
    }
}

impl Order {
    async fn carry_out(&self) -> Result<()> {
        for barrier in &self.barriers {
            barrier.pass().await;
        }
        self.errno.map_or(Ok(()), Err)
    }
}

impl<R: Remote + ?Sized> FaultyRemote<R> {
    /// Passes `operation`, which is `call` on `handles`, to the inner remote, subject to
    /// instructions. `undo` handles a reply that cannot be delivered.
    async fn pass<T: Send>(
        &self,
        call: Call,
        handles: &[Handle],
        operation: impl Future<Output = Result<T>> + Send,
        undo: impl FnMut(T) + Send,
    ) -> Result<T> {
        self.calls.count(call);
        let mut link = self.link.subscribe();
        // The sender is a part of this remote.
        let _ = link.wait_for(|link| !link.stalled).await;
        let at_start = *link.borrow_and_update();
        let (orders, turn) = {
            let mut state = self.state.lock();
            let mut orders = state.plan.orders(call);
            let stepper = state.stepper.clone();
            orders.stepper = stepper.map(|stepper| (stepper.number(), call, stepper));
            let stale = handles.iter().find_map(|handle| state.stale.get(handle).copied());
            if let Some(errno) = stale {
                return Err(errno);
            }
            if at_start.down {
                return Err(Errno::EHOSTDOWN);
            }
            let will_wait = orders.stepper.is_some() || !orders.before.barriers.is_empty();
            let turn = state.queue_up(handles, will_wait);
            (orders, turn)
        };
        tokio::select! {
            biased;
            _ = link.wait_for(|link| link.cuts != at_start.cuts) => Err(Errno::EHOSTDOWN),
            result = follow(orders, turn, operation, undo) => result,
        }
    }

    /// Passes an operation that is not counted and has no instructions. A cut affects it.
    async fn over_the_link<T: Send>(
        &self,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let mut link = self.link.subscribe();
        let at_start = *link.borrow_and_update();
        if at_start.down {
            return Err(Errno::EHOSTDOWN);
        }
        tokio::select! {
            biased;
            _ = link.wait_for(|link| link.cuts != at_start.cuts) => Err(Errno::EHOSTDOWN),
            result = operation => result,
        }
    }

    /// Like [`FaultyRemote::pass`], for an operation without handles whose reply needs no undo.
    async fn plain<T: Send>(
        &self,
        call: Call,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.pass(call, &[], operation, drop).await
    }

    /// Like [`FaultyRemote::plain`], for an operation on an open file.
    async fn on<T: Send>(
        &self,
        call: Call,
        fh: Fh,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.pass(call, &[Handle::File(fh)], operation, drop).await
    }

    fn forget(&self, handle: Handle) {
        let mut state = self.state.lock();
        state.handles.remove(&handle);
        state.stale.remove(&handle);
        state.queues.remove(&handle);
    }

    /// Runs `close` after the calls queued on `handle`.
    fn pass_close(&self, handle: Handle, close: impl FnOnce(&R) + Send + 'static) {
        let behind = {
            let mut state = self.state.lock();
            state.handles.remove(&handle);
            state.stale.remove(&handle);
            state.waiting(handle)
        };
        if behind.is_empty() {
            return close(&self.inner);
        }
        let inner = self.inner.clone();
        tokio::spawn(async move {
            all_gone(behind).await;
            close(&inner);
        });
    }
}

/// Waits until all of these places were dropped.
async fn all_gone(places: Vec<watch::Receiver<()>>) {
    for mut place in places {
        // No value is ever sent: the end of the channel is the signal.
        while place.changed().await.is_ok() {}
    }
}

/// Carries out instructions around `operation`.
async fn follow<T>(
    orders: Orders,
    turn: Turn,
    operation: impl Future<Output = Result<T>>,
    undo: impl FnMut(T),
) -> Result<T> {
    let Turn { behind, _place: mut place } = turn;
    all_gone(behind).await;
    orders.stop().await;
    orders.before.carry_out().await?;
    let mut operation = pin!(operation);
    let result = std::future::poll_fn(|context| {
        let polled = operation.as_mut().poll(context);
        // The first poll determined its place in the order.
        place = None;
        polled
    })
    .await;
    let (value, own_errno) = match result {
        Ok(value) => (Some(value), None),
        Err(errno) => (None, Some(errno)),
    };
    let answer = Undelivered { value, undo };
    orders.stop().await;
    let ordered = orders.after.carry_out().await;
    if let Some(errno) = own_errno {
        return Err(errno);
    }
    ordered?;
    Ok(answer.deliver().expect("it has a value, since there was no error"))
}

#[async_trait]
impl<R: Remote + ?Sized> Remote for FaultyRemote<R> {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.plain(Call::Lstat, self.inner.lstat(path)).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.plain(Call::Readlink, self.inner.readlink(path)).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let undo = |dh| self.inner.closedir(dh);
        let dh = self.pass(Call::Opendir, &[], self.inner.opendir(path), undo).await?;
        self.state.lock().handles.insert(Handle::Directory(dh));
        Ok(dh)
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let handles = [Handle::Directory(dh)];
        self.pass(Call::Readdir, &handles, self.inner.readdir(dh), drop).await
    }

    fn closedir(&self, dh: Dh) {
        self.calls.count(Call::Closedir);
        self.pass_close(Handle::Directory(dh), move |inner| inner.closedir(dh));
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let undo = |opened: Opened| self.inner.close(opened.fh);
        let opened = self.pass(Call::Open, &[], self.inner.open(path, flags), undo).await?;
        self.state.lock().handles.insert(Handle::File(opened.fh));
        Ok(opened)
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.on(Call::Fstat, fh, self.inner.fstat(fh)).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        self.on(Call::Read, fh, self.inner.read(fh, offset, len)).await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.on(Call::Write, fh, self.inner.write(fh, offset, data)).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.on(Call::Fsync, fh, self.inner.fsync(fh)).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.plain(Call::Fsyncdir, self.inner.fsyncdir(path)).await
    }

    fn close(&self, fh: Fh) {
        self.calls.count(Call::Close);
        self.pass_close(Handle::File(fh), move |inner| inner.close(fh));
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        let handle = Handle::File(fh);
        // Closed if the inner remote never gets the call.
        let undo = |fh| self.pass_close(handle, move |inner| inner.close(fh));
        let unsent = Undelivered { value: Some(fh), undo };
        let operation = async move {
            let call = self.inner.finish(fh);
            unsent.deliver();
            self.forget(handle);
            call.await
        };
        self.on(Call::Finish, fh, operation).await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.on(Call::Flush, fh, self.inner.flush(fh)).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.plain(Call::Setattr, self.inner.setattr(path, change)).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.on(Call::Fsetattr, fh, self.inner.fsetattr(fh, change)).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.plain(Call::Mkdir, self.inner.mkdir(path, perm)).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.plain(Call::Rmdir, self.inner.rmdir(path)).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.plain(Call::Unlink, self.inner.unlink(path)).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.plain(Call::Symlink, self.inner.symlink(target, path)).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.plain(Call::Link, self.inner.link(existing, new)).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.plain(Call::Rename, self.inner.rename(from, to, mode)).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.plain(Call::Statvfs, self.inner.statvfs(path)).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        let handles = [Handle::File(from.0), Handle::File(to.0)];
        self.pass(Call::Copy, &handles, self.inner.copy(from, to, len), drop).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.plain(Call::Mknod, self.inner.mknod(path, kind, perm, device)).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        self.on(Call::Fallocate, fh, self.inner.fallocate(fh, how, offset, len)).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        self.on(Call::Seek, fh, self.inner.seek(fh, offset, what)).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.inner.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.plain(Call::Getxattr, self.inner.getxattr(path, name)).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.plain(Call::Listxattr, self.inner.listxattr(path)).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.plain(Call::EntriesWithXattrs, self.inner.entries_with_xattrs(dir)).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.plain(Call::Setxattr, self.inner.setxattr(path, name, value, mode)).await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.plain(Call::Removexattr, self.inner.removexattr(path, name)).await
    }

    async fn read_file(&self, path: &RemotePath, max_bytes: u32) -> Result<Option<(Attr, Data)>> {
        self.plain(Call::ReadFile, self.inner.read_file(path, max_bytes)).await
    }

    fn reads_files(&self) -> bool {
        self.state.lock().reads_files.unwrap_or_else(|| self.inner.reads_files())
    }

    fn suggested_window(&self) -> Window {
        self.inner.suggested_window()
    }

    async fn locate(&self, path: &RemotePath) -> Result<Vec<Location>> {
        self.over_the_link(self.inner.locate(path)).await
    }

    fn is_disconnected(&self) -> bool {
        self.link.borrow().is_disconnected() || self.inner.is_disconnected()
    }

    fn why_disconnected(&self) -> Option<String> {
        self.state.lock().why_disconnected.clone().or_else(|| self.inner.why_disconnected())
    }

    fn may_be_lost(&self) -> bool {
        self.inner.may_be_lost()
    }

    async fn disconnected(&self) {
        let mut link = self.link.subscribe();
        tokio::select! {
            _ = link.wait_for(Link::is_disconnected) => {}
            () = self.inner.disconnected() => {}
        }
    }

    fn has_locks(&self) -> bool {
        self.inner.has_locks()
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        // If the reply is lost, the lock stays until its handle is closed, as it would be lost with
        // a session.
        self.on(Call::Lock, fh, self.inner.lock(fh, lock, wait)).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        self.on(Call::Unlock, fh, self.inner.unlock(fh, owner, range)).await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        self.on(Call::TestLock, fh, self.inner.test_lock(fh, lock)).await
    }

    async fn lost_lock(&self, fh: Fh) {
        self.inner.lost_lock(fh).await;
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.inner.watches()
    }

    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        let (run, is_withheld) = {
            let mut state = self.state.lock();
            state.write_verifier_calls += 1;
            if let Some(errno) = state.write_verifier_error {
                return Err(errno);
            }
            (state.write_verifier.clone(), state.withholds_write_verifier)
        };
        let answer = async {
            if is_withheld {
                std::future::pending::<()>().await;
            }
            match run {
                Some(run) => {
                    // A server does not answer at once.
                    tokio::task::yield_now().await;
                    Ok(Some(run))
                }
                None => self.inner.write_verifier().await,
            }
        };
        self.over_the_link(answer).await
    }
}
