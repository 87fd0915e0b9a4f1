//! What all branches have at a path, as operations need it that change something.

use base::{Attr, Errno, RemotePath, Result};

use crate::dir_cache::SlotSet;
use crate::policy::ActionPolicy;
use crate::query::{Outcome, Query, Trust, lstat_leaf};
use crate::tree::Tree;

/// How many branches are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All.
    All,
    /// All, or those up to the one that shows an entry which is not a directory.
    Shown,
}

/// An entry of one branch that is not hidden from above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) slot: usize,
    pub(crate) attr: Attr,
}

/// The entries of all branches at a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The branches with an entry, in the order of search: the first is shown.
    pub(crate) holders: Vec<Holder>,
    /// Branches that have the parent directory.
    pub(crate) parents: SlotSet,
    /// Branches that could have the entry: no parent is hidden or not a directory.
    pub(crate) possible: SlotSet,
    /// Branches that were queried.
    pub(crate) queried: SlotSet,
    /// Of those, the branches left out at present.
    pub(crate) left_out: SlotSet,
}

impl View {
    /// Queries all branches; each must answer. `ENOENT` and `ENOTDIR` concern the parent directory;
    /// [`View::holders`] says whether the name itself exists.
    pub(crate) async fn of(tree: &Tree, path: &RemotePath) -> Result<View> {
        View::query(tree, path, Extent::All).await
    }

    /// As [`View::of`], to change the entry that is shown, on its branch alone. If that is not a
    /// directory, it hides the entries of later branches, and their answers are not waited for.
    pub(crate) async fn of_shown(tree: &Tree, path: &RemotePath) -> Result<View> {
        View::query(tree, path, Extent::Shown).await
    }

    async fn query(tree: &Tree, path: &RemotePath, extent: Extent) -> Result<View> {
        let query = Query::new(tree, path, Trust::ExceptParent);
        let mut calls = query.send(&lstat_leaf);
        let (mut view, mut resolver) = (View::default(), query.resolver());
        let (mut reports, mut failed) = (Vec::new(), None);
        for index in 0..calls.len() {
            let answer = calls.take(index).await;
            reports.extend(query.report(index, &answer, Attr::is_dir));
            let (slot, _) = query.branch(index);
            view.queried = view.queried.with(slot);
            match answer.outcome {
                Outcome::LeftOut => view.left_out = view.left_out.with(slot),
                Outcome::NoDirectory => {}
                _ => {
                    view.possible = view.possible.with(slot);
                    if answer.dirs == query.components.parent_depth() {
                        view.parents = view.parents.with(slot);
                    }
                }
            }
            match resolver.add(answer) {
                None => {}
                Some(Ok(attr)) => view.holders.push(Holder { slot, attr }),
                Some(Err(errno)) => failed = failed.or(Some(errno)),
            }
            let is_file = view.holders.first().is_some_and(|shown| !shown.attr.is_dir());
            if extent == Extent::Shown && is_file && !query.fixed {
                break;
            }
        }
        query.record(&reports);
        match failed {
            Some(errno) => Err(errno),
            None if resolver.has_parent() => Ok(view),
            None => Err(resolver.not_found()),
        }
    }

    /// As [`View::of`], of an entry that exists. At a fixed path the entries are the directories,
    /// of which there may be none.
    pub(crate) async fn existing(tree: &Tree, path: &RemotePath) -> Result<View> {
        View::existing_in(tree, path, Extent::All).await
    }

    /// As [`View::existing`], of what a change under this policy needs.
    pub(crate) async fn to_change(
        tree: &Tree,
        path: &RemotePath,
        policy: ActionPolicy,
    ) -> Result<View> {
        let extent = match policy {
            ActionPolicy::First => Extent::Shown,
            ActionPolicy::All => Extent::All,
        };
        View::existing_in(tree, path, extent).await
    }

    async fn existing_in(tree: &Tree, path: &RemotePath, extent: Extent) -> Result<View> {
        let mut view = View::query(tree, path, extent).await?;
        match tree.is_fixed(path) {
            true => view.holders.retain(|holder| holder.attr.is_dir()),
            false => drop(view.require_shown()?),
        }
        Ok(view)
    }

    /// The entry that is shown.
    pub(crate) fn shown(&self) -> Option<Holder> {
        self.holders.first().copied()
    }

    /// The entry that is shown, or the error that there is none.
    pub(crate) fn require_shown(&self) -> Result<Holder> {
        let nobody = || if self.all_left_out() { Errno::EHOSTDOWN } else { Errno::ENOENT };
        self.shown().ok_or_else(nobody)
    }

    /// No branch is left that could have answered.
    fn all_left_out(&self) -> bool {
        !self.queried.is_empty() && self.queried == self.left_out
    }

    /// The entries hidden by, or merged with, the shown one.
    pub(crate) fn others(&self) -> &[Holder] {
        self.holders.get(1..).unwrap_or(&[])
    }

    /// The names of the branches that have an entry, for the log.
    pub(crate) fn names(&self, tree: &Tree) -> String {
        let names = self.holders.iter().map(|holder| tree.branch(holder.slot).name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }
}
