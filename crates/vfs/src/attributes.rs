//! getattr, setattr, access.

use std::sync::Arc;

use base::{Attr, AttrChange, Errno, FileKind, Result};
use tokio::time::Instant;

use crate::inode::Inode;
use crate::{Change, Handle, Ino, Stat, Vfs, change_there};

impl Vfs {
    /// The attributes of `ino`.
    pub async fn getattr(&self, ino: Ino) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let attr = self.attr(&inode).await?;
        self.stat(&inode, &attr)
    }

    /// The attributes of `inode`, from the cache while they count.
    pub(crate) async fn attr(&self, inode: &Arc<Inode>) -> Result<Attr> {
        let cached = inode.state().fresh_attr(Instant::now());
        match cached {
            Some(attr) => Ok(attr),
            None => self.fetch_attr(inode).await,
        }
    }

    /// The attributes of `inode`, from the server, with all writes of this mount in them.
    pub(crate) async fn fetch_attr(&self, inode: &Arc<Inode>) -> Result<Attr> {
        inode.writes.drained().await;
        let tick = self.ticks.now();
        let fh = inode.state().open.first().map(|open| open.fh);
        // A handle is of the file itself, whatever its name leads to by now. It may be gone with
        // its session, in which case the name is what is left.
        let by_handle = match fh {
            Some(fh) => self.remote.fstat(fh).await.ok(),
            None => None,
        };
        let attr = match by_handle {
            Some(attr) => attr,
            None => self.remote.lstat(&self.path(inode.ino)?).await?,
        };
        if attr.kind != inode.kind {
            self.tree().orphan(inode.ino);
            return Err(Errno::ESTALE);
        }
        self.learn(inode, &attr, tick);
        Ok(attr)
    }

    /// Changes attributes, through `handle` where the kernel names one.
    pub async fn setattr(
        &self,
        ino: Ino,
        change: AttrChange,
        handle: Option<Handle>,
    ) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let change = change_there(&self.config, change)?;
        if change.is_empty() {
            return self.getattr(ino).await;
        }
        let counted = {
            let state = inode.state();
            state.fresh_attr(Instant::now()).map(|_| state.valid_until())
        };
        let predicted = {
            let _change = Change::begin(&inode, &self.ticks);
            if change.size.is_some() {
                inode.state().forget_pages();
            }
            self.send_change(&inode, change, handle).await?;
            inode.state().apply(&change, counted.is_some() && inode.writes.is_idle())
        };
        if predicted && let Some(until) = counted {
            let mut state = inode.state();
            state.extend(until);
            if let Some(attr) = state.last_attr() {
                drop(state);
                return self.stat(&inode, &attr);
            }
        }
        let attr = self.fetch_attr(&inode).await?;
        self.stat(&inode, &attr)
    }

    async fn send_change(
        &self,
        inode: &Arc<Inode>,
        change: AttrChange,
        handle: Option<Handle>,
    ) -> Result<()> {
        // After the writes that come before it: by order on their own handle, else by waiting.
        let file = handle.and_then(|handle| self.files.get(handle.0).ok());
        if let Some(file) = &file {
            inode.writes.drained_but(file.number).await;
            return self.remote.fsetattr(file.fh, change).await;
        }
        inode.writes.drained().await;
        let path = self.tree().path(inode.ino);
        match path {
            Some(path) => self.remote.setattr(&path, change).await,
            None => {
                let writable = |open: &&crate::inode::OpenHandle| open.access.writes();
                let fh = {
                    let state = inode.state();
                    let any = state.open.iter().find(writable).or(state.open.first());
                    any.map(|open| open.fh)
                };
                self.remote.fsetattr(fh.ok_or(Errno::ESTALE)?, change).await
            }
        }
    }

    /// Whether `ino` may be accessed as `mask` (`R_OK | W_OK | X_OK`) says. Asked by the kernel
    /// only where it does not check permissions itself. The server decides about reading and
    /// writing when it is asked to; a file without any execute bit is not executed.
    pub async fn access(&self, ino: Ino, mask: u32) -> Result<()> {
        const X_OK: u32 = 1;
        let inode = self.inode(ino)?;
        if mask & X_OK == 0 || inode.kind != FileKind::Regular {
            return Ok(());
        }
        let attr = self.attr(&inode).await?;
        if self.stat(&inode, &attr)?.attr.perm & 0o111 == 0 { Err(Errno::EACCES) } else { Ok(()) }
    }
}
