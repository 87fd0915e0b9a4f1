//! Asking all branches for one path, and whose answer counts.
//!
//! **What a tree shows.** A directory of the tree is made of the directories that its branches have
//! there. A name in it is that of the first of these branches, in the order of search, which has
//! the name. If what that one has is a directory, those of the others which have a directory there
//! are merged with it; anything else that they have is hidden. If it is no directory, it hides
//! whatever the others have, and with it all that they have below.
//!
//! So a branch takes part in a path only if each directory on the way is one in that branch too,
//! and is not hidden. Servers follow symbolic links in the middle of a path, which would make a
//! hidden link a way to show what is somewhere else; that is why the directories on the way are
//! asked for, unless they are [known](crate::known). All of that goes out at once: a look-up is one
//! round trip, however many branches there are and however deep the path is.

use std::sync::Arc;

use base::{Attr, Errno, RemotePath, Result};

use crate::branch::{Live, Reached};
use crate::fan::{Call, Fan};
use crate::known::{Heard, Route};
use crate::steps::Steps;
use crate::tree::Tree;

/// The question to a branch for the path itself: of the path inside it, which was seen to be a
/// directory or not.
pub(crate) trait Leaf<T>:
    Fn(&Arc<Live>, RemotePath, bool) -> Call<'static, Result<T>> + Sync
{
}

impl<T, F: Fn(&Arc<Live>, RemotePath, bool) -> Call<'static, Result<T>> + Sync> Leaf<T> for F {}

/// Asks for the attributes.
pub(crate) fn lstat_leaf(live: &Arc<Live>, at: RemotePath, _: bool) -> Call<'static, Result<Attr>> {
    let remote = live.remote.clone();
    Box::pin(async move { remote.lstat(&at).await })
}

/// How much of what is known may stand for asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// All of it.
    Known,
    /// Not for the directory that the path is in.
    NotParent,
}

/// What one branch answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<T> {
    /// So many names from the beginning of the path, at most all but the last, lead through
    /// directories.
    pub(crate) dirs: usize,
    pub(crate) end: End<T>,
}

/// How the path ends in a branch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<T> {
    /// What was asked for is there.
    Found(T),
    /// The name after the directories is not there.
    Absent,
    /// The name after the directories is no directory, though more names follow.
    NoDirectory,
    /// The branch refused, or failed.
    Failed(Errno),
    /// The branch is not part of the tree now.
    LeftOut,
}

impl<T> Answer<T> {
    fn failed(errno: Errno) -> Answer<T> {
        Answer { dirs: 0, end: End::Failed(errno) }
    }

    /// The same, of what was found only what `outline` says.
    pub(crate) fn outline<O>(&self, outline: impl FnOnce(&T) -> O) -> Answer<O> {
        let end = match &self.end {
            End::Found(found) => End::Found(outline(found)),
            End::Absent => End::Absent,
            End::NoDirectory => End::NoDirectory,
            End::Failed(errno) => End::Failed(*errno),
            End::LeftOut => End::LeftOut,
        };
        Answer { dirs: self.dirs, end }
    }

    /// For a fixed path: what is no directory is hidden.
    pub(crate) fn hide_unless(mut self, is_directory: impl FnOnce(&T) -> bool) -> Answer<T> {
        if let End::Found(found) = &self.end
            && !is_directory(found)
        {
            self.end = End::Absent;
        }
        self
    }
}

/// One path, to be asked for.
pub(crate) struct Query<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) steps: Steps<'t>,
    pub(crate) fixed: bool,
    /// Names from the beginning, at most all but the last, that lead through fixed directories.
    fixed_above: usize,
    asked: Vec<Asked<'t>>,
    changes: u64,
}

/// A branch to ask, and how.
struct Asked<'t> {
    slot: usize,
    live: &'t Arc<Live>,
    route: Route,
}

impl<'t> Query<'t> {
    pub(crate) fn new(tree: &'t Tree, path: &'t RemotePath, trust: Trust) -> Query<'t> {
        let steps = Steps::new(path);
        let most = match trust {
            Trust::Known => steps.above(),
            Trust::NotParent => steps.above().saturating_sub(1),
        };
        let covering: Vec<_> = tree.covering(path).collect();
        let places = covering.iter().map(|(slot, live)| (*slot, live.depth));
        let (changes, routes) = tree.known.routes(&steps, places, most);
        let asked = covering.into_iter().zip(routes);
        let asked = asked.map(|((slot, live), route)| Asked { slot, live, route }).collect();
        let fixed_above = tree.fixed(path).min(steps.above());
        Query { tree, fixed: tree.is_fixed(path), steps, fixed_above, asked, changes }
    }

    /// How many branches are asked.
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    /// The branch of the `index`th answer.
    pub(crate) fn branch(&self, index: usize) -> (usize, &'t Arc<Live>) {
        let Asked { slot, live, .. } = &self.asked[index];
        (*slot, live)
    }

    /// When it was asked, for [`Known::learn`](crate::known::Known::learn).
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Asks all branches.
    pub(crate) fn ask<'q, T, L>(&'q self, leaf: &'q L) -> Fan<'q, Answer<T>>
    where
        T: Send + 'static,
        L: Leaf<T>,
    {
        let call = |asked: &'q Asked<'t>| -> Call<'q, Answer<T>> {
            Box::pin(async move {
                match asked.live.reach(self.walk(asked.live, asked.route, leaf)).await {
                    Reached::Answered(Ok(answer)) => answer,
                    Reached::Answered(Err(errno)) => Answer::failed(errno),
                    Reached::LeftOut => Answer { dirs: 0, end: End::LeftOut },
                }
            })
        };
        self.asked.iter().map(call).collect()
    }

    async fn walk<'q, T, L>(
        &'q self,
        live: &'q Arc<Live>,
        route: Route,
        leaf: &'q L,
    ) -> Result<Answer<T>>
    where
        T: Send + 'static,
        L: Leaf<T>,
    {
        let Route { mut trusted, missing, mut directory } = route;
        let from_place = live.depth.min(self.steps.above());
        if missing {
            let at = self.steps.inside(live.depth, trusted + 1);
            match live.remote.lstat(&at).await {
                Ok(attr) if attr.is_dir() => trusted += 1,
                Ok(_) => return Ok(Answer { dirs: trusted, end: End::NoDirectory }),
                Err(Errno::ENOENT) => return Ok(Answer { dirs: trusted, end: End::Absent }),
                Err(Errno::ENOTDIR) => trusted = from_place,
                Err(errno) => return Err(errno),
            }
        }
        loop {
            if let Some(answer) = self.walk_from(live, trusted, directory, leaf).await? {
                return Ok(answer);
            }
            // Something on the way is no directory, though what was known says that all are.
            if trusted == from_place && !directory {
                return Ok(Answer { dirs: self.steps.above(), end: End::Absent });
            }
            (trusted, directory) = (from_place, false);
        }
    }

    /// `None`: something is no directory that was taken for one.
    async fn walk_from<'q, T, L>(
        &'q self,
        live: &'q Arc<Live>,
        trusted: usize,
        directory: bool,
        leaf: &'q L,
    ) -> Result<Option<Answer<T>>>
    where
        T: Send + 'static,
        L: Leaf<T>,
    {
        let (skip, above) = (live.depth, self.steps.above());
        let leaf = leaf(live, self.steps.inside(skip, self.steps.depth()), directory);
        let on_the_way = (trusted + 1..=above).map(|count| -> Call<'q, Result<Attr>> {
            let at = self.steps.inside(skip, count);
            Box::pin(async move { live.remote.lstat(&at).await })
        });
        let on_the_way: Fan<'_, Result<Attr>> = on_the_way.collect();
        // A call that is not needed is not waited for: all of them are asked at once.
        let (way, end) = if trusted < above {
            tokio::join!(on_the_way.all(), leaf)
        } else {
            (Vec::new(), leaf.await)
        };
        for (dirs, attr) in (trusted..).zip(way) {
            let end = match attr {
                Ok(attr) if attr.is_dir() => continue,
                Ok(_) => End::NoDirectory,
                Err(Errno::ENOENT) => End::Absent,
                Err(Errno::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            };
            return Ok(Some(Answer { dirs, end }));
        }
        let end = match end {
            Ok(found) => End::Found(found),
            Err(Errno::ENOENT) => End::Absent,
            Err(Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        Ok(Some(Answer { dirs: above, end }))
    }

    pub(crate) fn verdict(&self) -> Verdict {
        Verdict {
            above: self.steps.above(),
            dirs: self.fixed_above,
            present: self.asked.is_empty(),
        }
    }

    /// Keeps what the answers tell of directories. `is_directory` tells what was found.
    pub(crate) fn learn<T>(
        &self,
        answers: &[Answer<T>],
        is_directory: impl Fn(&T) -> Option<bool>,
    ) {
        let leaf = |answer: &Answer<T>| match &answer.end {
            End::Found(found) => is_directory(found),
            End::Absent => Some(false),
            _ => None,
        };
        let all_known = self.asked.iter().all(|asked| asked.route.trusted == self.steps.above());
        if all_known && !answers.iter().any(|answer| leaf(answer) == Some(true)) {
            return;
        }
        let told = |(asked, answer): (&Asked<'_>, &Answer<T>)| {
            let (slot, place) = (asked.slot, asked.live.depth);
            let useful = !matches!(answer.end, End::Failed(_) | End::LeftOut);
            useful.then(|| Heard { slot, place, dirs: answer.dirs, leaf: leaf(answer) })
        };
        let heard: Vec<Heard> = self.asked.iter().zip(answers).filter_map(told).collect();
        self.tree.known.learn(self.changes, &self.steps, &heard);
    }
}

/// What the answers so far come to, taken in the order of search.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Names of the path but the last.
    above: usize,
    /// So many of them are shown as directories.
    dirs: usize,
    /// Somebody has answered, or there is nobody to.
    present: bool,
}

impl Verdict {
    /// Takes the next answer. `Some` is the final one, unless it is of a directory, with which
    /// others are merged.
    pub(crate) fn weigh<T>(&mut self, answer: Answer<T>) -> Option<Result<T>> {
        let Answer { dirs, end } = answer;
        self.present |= !matches!(end, End::LeftOut);
        match end {
            End::LeftOut => None,
            End::Failed(errno) => Some(Err(errno)),
            End::Absent => {
                self.dirs = self.dirs.max(dirs);
                None
            }
            // The first that has the name, so this is what is shown.
            End::NoDirectory if dirs >= self.dirs => Some(Err(Errno::ENOTDIR)),
            End::NoDirectory => None,
            End::Found(found) => {
                self.dirs = self.above;
                Some(Ok(found))
            }
        }
    }

    /// Whether the directory that the path is in is shown.
    pub(crate) fn has_parent(&self) -> bool {
        self.dirs == self.above
    }

    /// What it comes to when nobody has the name. Branches that cannot be reached have not said
    /// that it is absent.
    pub(crate) fn nobody(&self) -> Errno {
        if self.present { Errno::ENOENT } else { Errno::EHOSTDOWN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(above: usize, fixed: usize, answers: Vec<(usize, End<u32>)>) -> Result<u32> {
        let mut verdict = Verdict { above, dirs: fixed, present: false };
        for (dirs, end) in answers {
            if let Some(result) = verdict.weigh(Answer { dirs, end }) {
                return result;
            }
        }
        Err(verdict.nobody())
    }

    use End::{Absent, Failed, Found, LeftOut, NoDirectory};

    #[test]
    fn the_first_in_order_that_has_the_name_is_shown() {
        assert_eq!(
            shown(2, 0, vec![(2, Absent), (0, Absent), (2, Found(3)), (2, Found(4))]),
            Ok(3)
        );
        assert_eq!(shown(0, 0, vec![(0, Found(1))]), Ok(1));
        assert_eq!(shown(1, 0, vec![(1, Absent), (0, Absent)]), Err(Errno::ENOENT));
    }

    #[test]
    fn a_file_hides_what_later_branches_have_below_its_name() {
        assert_eq!(shown(2, 0, vec![(1, NoDirectory), (2, Found(1))]), Err(Errno::ENOTDIR));
        assert_eq!(shown(2, 0, vec![(0, NoDirectory), (2, Found(1))]), Err(Errno::ENOTDIR));
        // But not where an earlier branch has a directory of that name, or a place is below it.
        assert_eq!(shown(2, 0, vec![(1, Absent), (0, NoDirectory), (2, Found(1))]), Ok(1));
        assert_eq!(
            shown(2, 0, vec![(1, Absent), (1, NoDirectory), (2, Found(1))]),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(shown(2, 1, vec![(0, NoDirectory), (2, Found(1))]), Ok(1));
    }

    #[test]
    fn nobody_speaks_for_a_branch_that_fails() {
        assert_eq!(
            shown(0, 0, vec![(0, Failed(Errno::EACCES)), (0, Found(1))]),
            Err(Errno::EACCES)
        );
        assert_eq!(shown(0, 0, vec![(0, Found(1)), (0, Failed(Errno::EACCES))]), Ok(1));
        assert_eq!(shown(0, 0, vec![(0, LeftOut), (0, Found(1))]), Ok(1));
        assert_eq!(shown(0, 0, vec![(0, LeftOut), (0, Absent)]), Err(Errno::ENOENT));
        assert_eq!(shown(0, 0, vec![(0, LeftOut), (0, LeftOut)]), Err(Errno::EHOSTDOWN));
    }
}
