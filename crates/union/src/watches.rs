//! Watches of the tree's directories, each made of watches on its branches.
//!
//! A directory is watched only if each branch that it could be on is reachable and has it watched,
//! or does not have it. A branch that does not have it may get it later: the watch of the directory
//! above reports that, and ends this one, so that it begins anew with that branch.
//!
//! A *part* is a watch on one branch. A *connection* of the tree stands for a set of connections of
//! branches: the parts of its watches are on these, and all of them have denied or watched their
//! directories. It is lost with the first of them. So the loss of a branch concerns only
//! directories that the branch could have. A change of the set of branches loses all.
//!
//! For each connection of a branch one task waits for the reports.

mod state;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use base::{Changes, Errno, Mutex, OnDrop, RemotePath, Result, WatchId, Watches};
use tokio::task::AbortHandle;

use crate::branch::TreeBranch;
use crate::fan_out::FanOut;
use crate::tree::{SharedTree, Tree};
use state::{Part, State};

/// The watches of a [`Union`](crate::Union). See the [module](self).
pub(crate) struct UnionWatches {
    tree: SharedTree,
    state: Mutex<State>,
    /// For the tasks that wait for reports.
    itself: Weak<UnionWatches>,
}

impl UnionWatches {
    pub(crate) fn new(tree: SharedTree) -> Arc<UnionWatches> {
        Arc::new_cyclic(|itself| UnionWatches {
            tree,
            state: Mutex::default(),
            itself: itself.clone(),
        })
    }

    /// The set of branches has changed: another one may have the names that were trusted.
    pub(crate) fn lose_all(&self, tree: &Tree) {
        let is_left = |number| tree.given().iter().any(|branch| branch.number == number);
        self.state.lock().lose_all(is_left);
    }

    /// A branch is left out: answers from now on lack what only this branch has.
    pub(crate) fn lose_branch(&self, number: u64) {
        self.state.lock().lose_branch(number);
    }

    /// The answer about the directory at `path` lacks what some branch has there.
    pub(crate) fn note_incomplete(&self, path: &RemotePath) {
        self.state.lock().note_incomplete(path);
    }

    /// Waits for the reports of the connection of a branch until it is lost.
    fn await_reports(&self, part: &Part) -> AbortHandle {
        let (itself, watches, at) = (self.itself.clone(), part.watches.clone(), part.connection());
        let task = tokio::spawn(async move {
            loop {
                let next = watches.next(at.1).await;
                let Some(this) = itself.upgrade() else { return };
                match next {
                    Ok(Changes::Events(events)) => this.state.lock().report(at, events),
                    Ok(Changes::Overflow) => this.state.lock().overflow(at),
                    Err(why) => {
                        this.state.lock().lose(at, why);
                        return this.end_unused().await;
                    }
                }
            }
        });
        task.abort_handle()
    }

    /// Ends the watches on branches that are not used any more.
    async fn end_unused(&self) {
        loop {
            let parts = self.state.lock().begin_ending();
            let _ending = OnDrop(|| self.state.lock().finish_ending());
            if parts.is_empty() {
                return;
            }
            let ends = parts.iter().map(|part| part.watches.end(part.watch));
            FanOut::of(ends).all().await;
        }
    }
}

impl Drop for UnionWatches {
    fn drop(&mut self) {
        self.state.get_mut().readers.values().for_each(AbortHandle::abort);
    }
}

/// The watches of a branch.
async fn offered_by(branch: &TreeBranch) -> Result<Arc<dyn Watches>> {
    if branch.is_left_out() {
        return Err(Errno::EHOSTDOWN);
    }
    if let Some(watches) = branch.watches.get() {
        return Ok(watches.clone());
    }
    if branch.remote.watches().is_none() && !branch.has_answered.load(Ordering::Relaxed) {
        // A branch that is not connected yet does not offer any, and is connected by a request.
        let answer = branch.call(branch.remote.lstat(&RemotePath::root())).await;
        if let Err(errno) = answer
            && branch.is_lost(errno)
        {
            return Err(errno);
        }
        branch.has_answered.store(true, Ordering::Relaxed);
    }
    let is_away = branch.remote.is_disconnected();
    let none = || if is_away { Errno::EHOSTDOWN } else { Errno::EOPNOTSUPP };
    let watches = branch.remote.watches().ok_or_else(none)?;
    Ok(branch.watches.get_or_init(|| watches).clone())
}

/// Watches `dir` on a branch; `None` if the branch does not have it.
async fn watch_on(
    branch: &Arc<TreeBranch>,
    watches: &Arc<dyn Watches>,
    dir: &RemotePath,
) -> Result<Option<Part>> {
    let at = branch.subpath(dir);
    match branch.call(watches.watch(&at)).await {
        Ok(watch) => Ok(Some(Part { branch: branch.number, watch, watches: watches.clone() })),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[async_trait]
impl Watches for UnionWatches {
    async fn watch(&self, dir: &RemotePath) -> Result<WatchId> {
        let number = self.state.lock().begin_start(dir);
        let starting = OnDrop(|| self.state.lock().end_start(number));
        // After the start began, so that a change of the set is noticed.
        let tree = self.tree.get();
        let offered = tree.covering(dir).map(async |(_, branch)| {
            let watches = offered_by(branch).await?;
            Ok((branch, watches))
        });
        let offered = FanOut::of(offered).all().await;
        let offered: Vec<(&Arc<TreeBranch>, _)> = offered.into_iter().collect::<Result<_>>()?;
        for (branch, _) in &offered {
            branch.watched_by.get_or_init(|| self.itself.clone());
        }
        let watched = offered.iter().map(|(branch, watches)| watch_on(branch, watches, dir));
        let answers = FanOut::of(watched).all().await;
        let (mut parts, mut failed, mut lacking) = (Vec::new(), None, Vec::new());
        for ((branch, _), answer) in offered.iter().zip(answers) {
            match answer {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => lacking.push(branch.number),
                Err(errno) => failed = failed.or(Some(errno)),
            }
        }
        if parts.is_empty() && !tree.is_fixed(dir) {
            failed = failed.or(Some(Errno::ENOENT));
        }
        let begun = {
            let mut state = self.state.lock();
            for part in &parts {
                let reader = state.readers.entry(part.connection());
                reader.or_insert_with(|| self.await_reports(part));
            }
            let is_left_out = offered.iter().any(|(branch, _)| branch.is_left_out());
            let result = match (failed, state.basis(&parts, &lacking)) {
                (Some(errno), _) => Err(errno),
                _ if is_left_out => Err(Errno::EHOSTDOWN),
                // The caller tries again soon.
                (None, None) => Err(Errno::EHOSTDOWN),
                (None, Some(basis)) => state.begin(number, dir, &parts, basis),
            };
            if result.is_err() {
                state.release(&parts);
            }
            result
        };
        drop(starting);
        self.end_unused().await;
        begun
    }

    async fn end(&self, watch: WatchId) {
        self.state.lock().end(watch.number);
        self.end_unused().await;
    }

    async fn next(&self, connection: u64) -> Result<Changes> {
        loop {
            let arrived = {
                let mut state = self.state.lock();
                if let Some(next) = state.take(connection) {
                    return next;
                }
                state.arrived(connection).ok_or(Errno::EHOSTDOWN)?
            };
            arrived.notified().await;
        }
    }
}
