//! The daemon's side of `status`, `branch` and `cache`: reports the state of a mount and changes its
//! branches.
//!
//! When a branch was added or removed, everything cached above the union is invalidated, in the
//! kernel too (`vfs::Vfs::invalidate_all`), before the reply is sent: the caller sees the change.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use base::RemotePath;
use cli::{Problem, printable};
use control::job::{CacheJob, Tally};
use control::place::Place;
use control::server::Asked;
use control::status::MountStatus;
use control::{Change, Setting, Word};
use tokio::sync::{Mutex, watch};
use union::{Mode, Presence, Union};
use vfs::Vfs;

use crate::adapter::Adapter;
use crate::cache_command::job;
use crate::sources;
use crate::stack::Stack;
use crate::status::gather;

/// A mount that the control socket reports and changes.
pub struct Controlled {
    stack: Arc<Stack>,
    vfs: Arc<Vfs>,
    adapter: Arc<Adapter>,
    since: Instant,
    /// Held during a change, so that there is only one at a time.
    changing: Mutex<()>,
}

impl Controlled {
    /// A mount that shows `stack` through `vfs` and `adapter`; its uptime starts now.
    pub fn new(stack: Arc<Stack>, vfs: Arc<Vfs>, adapter: Arc<Adapter>) -> Controlled {
        Controlled { stack, vfs, adapter, since: Instant::now(), changing: Mutex::default() }
    }
}

#[async_trait]
impl Asked for Controlled {
    fn status(&self) -> MountStatus {
        gather::status(&self.stack, &self.vfs, &self.adapter, self.since)
    }

    async fn change(&self, change: Change) -> Result<(), Problem> {
        let _alone = self.changing.try_lock().map_err(|_| {
            Problem::new("branches", "another change is in progress")
                .hint("try again when it has finished")
        })?;
        match change {
            Change::Add { source } => {
                self.stack.add(sources::parse(OsStr::new(&source))?).await?;
            }
            Change::Remove { source } => {
                // All that is cached is invalidated below, including what this touches.
                let _ = self.union(&source)?.remove(&source).map_err(refusal(&source))?;
                self.stack.forget(&source);
            }
            Change::Set { source, word } => {
                let union = self.union(&source)?;
                let set = match word {
                    Word::Rw => union.set_mode(&source, Mode::Rw),
                    Word::Ro => union.set_mode(&source, Mode::Ro),
                    Word::Nc => union.set_mode(&source, Mode::NoCreate),
                    Word::Optional => union.set_presence(&source, Presence::Optional),
                    Word::Required => union.set_presence(&source, Presence::Required),
                };
                set.map_err(refusal(&source))?;
            }
        }
        self.vfs.invalidate_all();
        Ok(())
    }

    async fn cache(&self, job: CacheJob, told: watch::Sender<Tally>) -> Result<Tally, Problem> {
        job::run(&self.stack, job, &told).await
    }

    async fn place(&self, path: RemotePath) -> Result<Place, Problem> {
        self.stack.place(&path).await
    }

    async fn flush(&self) {
        self.vfs.flush_all().await;
    }

    fn refresh(&self) {
        self.vfs.invalidate_all();
    }

    fn settings(&self) -> Vec<Setting> {
        Vec::new()
    }

    fn set(&self, _options: &[String], _is_remount: bool) -> Result<(), Problem> {
        Ok(())
    }
}

impl Controlled {
    fn union(&self, source: &str) -> Result<&Union, Problem> {
        self.stack.union.as_deref().ok_or_else(|| {
            let what = format!("branch '{}'", printable(source));
            Problem::new(what, "this mount has a single source and no branches")
        })
    }
}

fn refusal(source: &str) -> impl Fn(union::Error) -> Problem + use<> {
    let what = format!("branch '{}'", printable(source));
    move |error| match error {
        union::Error::Unknown(_) => Problem::new(&what, "no such branch")
            .hint("`sshoal branch list MOUNTPOINT` shows the names of the branches"),
        union::Error::NoBranch => Problem::new(&what, "it is the last branch of the mount")
            .hint("`sshoal umount` ends the mount"),
        error => Problem::new(&what, error.to_string()),
    }
}
