//! Directories of the target during a run.
//!
//! A directory is created when the first step in it needs it, and gets its mode and times after the
//! last step in it: both follow from the references to its [`Dir`]. A child refers to its parent,
//! also while the child is being finished, since the parent's final mode may deny access to the
//! child.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Attr, AttrChange, Errno, Remote, RemotePath, Result};
use tokio::sync::{OnceCell, mpsc};

use crate::step::Action;
use crate::xattr;

/// What must be done before anything in it can be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Need {
    /// It exists.
    #[default]
    Nothing,
    /// It has to be created.
    Make,
    /// Something that is no directory has its name.
    Replace,
    /// It is there, and its mode keeps its owner out; this one does not.
    Widen(u32),
}

/// What it comes from, and what is to become of it.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    /// The number of its source in the job, and its path there.
    pub(crate) source: usize,
    pub(crate) from: RemotePath,
    pub(crate) attr: Attr,
    pub(crate) there: Option<Attr>,
    pub(crate) action: Action,
}

/// The place of a directory, and its known attributes.
#[derive(Default)]
pub(crate) struct Place {
    /// Relative to the target.
    pub(crate) name: RemotePath,
    pub(crate) path: RemotePath,
    pub(crate) need: Need,
    /// Held until this one is finished.
    pub(crate) parent: Option<Arc<Dir>>,
    pub(crate) last: Option<Last>,
}

/// A directory of the target.
pub(crate) struct Dir {
    pub(crate) place: Place,
    target: Arc<dyn Remote>,
    ready: OnceCell<Result<()>>,
    changed: AtomicBool,
    /// The extended attributes that a stream has brought for it; none where the stream has set
    /// them.
    pub(crate) xattrs: OnceLock<xattr::List>,
    over: mpsc::UnboundedSender<DirDone>,
}

/// A directory in which all is done.
pub(crate) struct DirDone {
    pub(crate) place: Place,
    /// How making it went, if that was needed.
    pub(crate) ready: Option<Result<()>>,
    /// It was created or its mode was widened, or an entry of it was changed.
    pub(crate) changed: bool,
    /// See [`Dir::xattrs`].
    pub(crate) xattrs: Option<xattr::List>,
}

impl Dir {
    pub(crate) fn new(
        place: Place,
        target: Arc<dyn Remote>,
        over: mpsc::UnboundedSender<DirDone>,
    ) -> Arc<Dir> {
        let (ready, changed, xattrs) = (OnceCell::new(), AtomicBool::new(false), OnceLock::new());
        Arc::new(Dir { place, target, ready, changed, xattrs, over })
    }

    /// Where directories below this one are sent after all steps in them.
    pub(crate) fn over(&self) -> mpsc::UnboundedSender<DirDone> {
        self.over.clone()
    }

    /// Whether it was there, as a directory, when it was looked at.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self.place.need, Need::Nothing | Need::Widen(_))
    }

    /// Whether its final mode, or that of a directory that it is in, keeps its owner out.
    pub(crate) fn will_be_closed(&self) -> bool {
        let Place { last, parent, .. } = &self.place;
        last.as_ref().is_some_and(|last| last.attr.perm & 0o100 == 0)
            || parent.as_ref().is_some_and(|parent| parent.will_be_closed())
    }

    /// Creates it and its ancestors if they do not exist.
    pub(crate) async fn ready(&self) -> Result<()> {
        *self.ready.get_or_init(|| Box::pin(self.prepare())).await
    }

    /// As [`Dir::ready`], before an entry in it is changed.
    pub(crate) async fn ready_for_change(&self) -> Result<()> {
        self.ready().await?;
        self.changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn prepare(&self) -> Result<()> {
        let Place { path, need, parent, .. } = &self.place;
        if let Some(parent) = parent {
            match need {
                Need::Nothing => parent.ready().await?,
                _ => parent.ready_for_change().await?,
            }
        }
        match need {
            Need::Nothing => return Ok(()),
            Need::Widen(perm) => {
                let change = AttrChange { perm: Some(*perm), ..AttrChange::default() };
                self.target.setattr(path, change).await?;
            }
            Need::Replace => {
                match self.target.unlink(path).await {
                    // Another run may have removed it, or made the directory.
                    Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => {}
                    Err(errno) => return Err(errno),
                }
                self.make().await?;
            }
            Need::Make => self.make().await?,
        }
        self.changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn make(&self) -> Result<()> {
        let Place { path, last, .. } = &self.place;
        let made = match last {
            Some(_) => self.target.mkdir(path, 0o700).await,
            // No source gives it attributes.
            None => self.target.mkdir_default(path).await,
        };
        match made {
            // Created by another program, or by a call that was given up.
            Err(Errno::EEXIST) => match self.target.lstat(path).await?.is_dir() {
                true => Ok(()),
                false => Err(Errno::EEXIST),
            },
            made => made,
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let over = DirDone {
            place: std::mem::take(&mut self.place),
            ready: self.ready.get().copied(),
            changed: *self.changed.get_mut(),
            xattrs: self.xattrs.take(),
        };
        // The receiver is gone when the run was dropped.
        let _ = self.over.send(over);
    }
}
