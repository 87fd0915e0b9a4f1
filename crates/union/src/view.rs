//! What all branches have at a path: what an operation needs that changes something.

use base::{Attr, Errno, RemotePath, Result};

use crate::known::Slots;
use crate::query::{Answer, End, Query, Trust, Verdict, lstat_leaf};
use crate::tree::Tree;

/// What one branch has at a path that is not hidden from above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) slot: usize,
    pub(crate) attr: Attr,
}

/// What all branches have at a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Whoever has something there, in the order of search: the first is shown.
    pub(crate) holders: Vec<Holder>,
    /// Branches that have the directory which the path is in.
    pub(crate) parents: Slots,
    /// Branches that could have it: nothing else is in the way.
    pub(crate) possible: Slots,
    /// Branches that were asked.
    pub(crate) asked: Slots,
    /// Those of them which are left out now.
    pub(crate) left_out: Slots,
}

pub(crate) fn in_set(set: Slots, slot: usize) -> bool {
    set & (1 << slot) != 0
}

impl View {
    /// Asks all branches; each must answer. `ENOENT` and `ENOTDIR` are for the directory which the
    /// path is in; whether the name itself is there, [`View::holders`] tells.
    pub(crate) async fn of(tree: &Tree, path: &RemotePath) -> Result<View> {
        let query = Query::new(tree, path, Trust::NotParent);
        let answers = query.ask(&lstat_leaf).all().await;
        query.learn(&answers, |attr| Some(attr.is_dir()));
        let slots: Vec<usize> = (0..query.len()).map(|index| query.branch(index).0).collect();
        View::from_answers(query.steps.above(), query.verdict(), &slots, answers)
    }

    fn from_answers(
        above: usize,
        mut verdict: Verdict,
        slots: &[usize],
        answers: Vec<Answer<Attr>>,
    ) -> Result<View> {
        let mut view = View::default();
        for (&slot, answer) in slots.iter().zip(answers) {
            let bit = 1 << slot;
            view.asked |= bit;
            match answer.end {
                End::LeftOut => view.left_out |= bit,
                End::NoDirectory => {}
                _ => {
                    view.possible |= bit;
                    view.parents |= if answer.dirs == above { bit } else { 0 };
                }
            }
            match verdict.weigh(answer) {
                None => {}
                Some(Ok(attr)) => view.holders.push(Holder { slot, attr }),
                Some(Err(errno)) => return Err(errno),
            }
        }
        if verdict.has_parent() { Ok(view) } else { Err(verdict.nobody()) }
    }

    /// What is shown.
    pub(crate) fn shown(&self) -> Option<Holder> {
        self.holders.first().copied()
    }

    /// What is shown, which must be there.
    pub(crate) fn must_show(&self) -> Result<Holder> {
        let nobody = || if self.all_left_out() { Errno::EHOSTDOWN } else { Errno::ENOENT };
        self.shown().ok_or_else(nobody)
    }

    /// Nobody is left who could have told.
    fn all_left_out(&self) -> bool {
        self.asked != 0 && self.asked == self.left_out
    }

    /// What is hidden, or merged with what is shown.
    pub(crate) fn others(&self) -> &[Holder] {
        self.holders.get(1..).unwrap_or(&[])
    }

    /// The names of the branches that have it, for the log.
    pub(crate) fn names(&self, tree: &Tree) -> String {
        let names = self.holders.iter().map(|holder| tree.branch(holder.slot).name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }
}
