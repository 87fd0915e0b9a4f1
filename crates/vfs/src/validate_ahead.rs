//! Files that are asked about before they are opened again.
//!
//! A compiler opens the same headers for every unit, `tar` and `rsync` go through a tree as they
//! did the last time. Under close-to-open each of these opens may be granted once the server has
//! told, within `open_revalidate`, that the file is unchanged; asked one by one, that is a round
//! trip for each. So it is remembered in which order files took their [turns](turns), and when one
//! is opened, those that followed it the last time are asked about too, all at the same time. So
//! are small files that come next in the order of a directory (see [`contents`](crate::contents)).
//!
//! Invariants:
//! 1. What an answer validates counts from when its question was sent, as any other answer does
//!    (`open_revalidate`). Nothing is granted here: the open that comes looks at what is known.
//! 2. Nobody waits for a question that was sent ahead but who opens that very file, and not for
//!    long. The question of an open goes out before those that are sent ahead with it.
//! 3. A file is asked about ahead [a few times](MOST_QUESTIONS) at most before it is opened again.
//!    So however wrong the guesses are, questions ahead are no more than so many for each turn.
//! 4. On their way are no more than the window of [`Turns`] has files.
//!
//! A file that takes its turns seldom follows many that take theirs often. So it is not asked about
//! while what is known of it counts, and after the first time only together with a file that has to
//! be waited for: that one was not opened for a while either, and is the better guess.
//!
//! Only files are asked about whose answer is of use: of which the kernel has pages, which the
//! login may read, and which have one name.

pub(crate) mod turns;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Attr, FileKind, RemotePath};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Ino;
use crate::config::{Consistency, PageCache};
use crate::grant::may_read;
use crate::inode::{Inode, State, Validator};
use crate::shared::Shared;
use crate::tree::Asked;
use crate::walk::PATIENCE;
use turns::{Turn, Turns};

/// Questions about a file between two of its turns. One costs a tenth of the wait that it spares.
const MOST_QUESTIONS: u8 = 3;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct ValidateAhead {
    turns: Mutex<Turns>,
}

impl ValidateAhead {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that was taken just now by a file that had had one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// The number of that one.
    before: u64,
    number: u64,
    /// The file itself is not validated.
    asks: bool,
}

impl Shared {
    /// Whether validations run out at all, and something is granted by them.
    fn validates_ahead(&self) -> bool {
        let runs_out =
            matches!(self.config.consistency, Consistency::CloseToOpen | Consistency::Timeout);
        runs_out
            && !self.config.open_revalidate.is_zero()
            && self.config.page_cache != PageCache::Never
    }

    /// The age from which on a validation is worth renewing: half of what it may have, so that
    /// those that were opened one after the other are asked about together the next time.
    fn worth_renewing(&self) -> Duration {
        self.config.open_revalidate / 2
    }

    /// `inode` is being opened for reading. If that is its turn, and it had one before, what
    /// followed then is to be [asked about](Shared::validate_next).
    pub(crate) fn take_turn(&self, inode: &Inode) -> Option<Taken> {
        if !self.validates_ahead() {
            return None;
        }
        let now = Instant::now();
        let mut state = inode.state();
        let validated = self.validated(&state, inode.kind).is_some();
        let since = state.validated_at().filter(|_| validated).unwrap_or(now);
        let before = state.turn();
        if before.is_some_and(|turn| since < turn.since() + self.worth_renewing()) {
            return None;
        }
        let mut turns = self.validate_ahead.turns();
        if before.is_some_and(|turn| turn.questions() > 0) {
            match turns.on_its_way(inode.ino) {
                _ if validated => turns.came_in_time(),
                Some(_) => turns.came_late(),
                None => turns.came_early(),
            }
        }
        let number = turns.take(inode.ino);
        state.set_turn(Turn::new(number, since, before));
        before.map(|turn| Taken { before: turn.number(), number, asks: !validated })
    }

    /// Asks about the files that followed last time, if it is time for that.
    pub(crate) fn validate_next(self: &Arc<Self>, taken: Option<Taken>) {
        let Some(Taken { before, number, asks }) = taken else { return };
        let (turns, window) = {
            let mut turns = self.validate_ahead.turns();
            if !asks && !turns.is_due() {
                return;
            }
            turns.between(before, number)
        };
        let most_questions = if asks { MOST_QUESTIONS } else { 1 };
        let wanted = self.wanted(turns, window, most_questions);
        if wanted.is_empty() {
            return;
        }
        let asked = self.asked();
        for (inode, path) in wanted {
            self.validate(inode, path, asked);
        }
    }

    /// Out of small files that are likely to be opened next, with their sizes as they were listed,
    /// those that the kernel has no pages of. The others are asked about, where that is of use.
    pub(crate) fn without_kept(
        self: &Arc<Self>,
        mut files: Vec<(RemotePath, u64)>,
    ) -> Vec<(RemotePath, u64)> {
        if files.is_empty() || self.contents.may_miss_pages() {
            return files;
        }
        let (now, mut kept) = (Instant::now(), Vec::new());
        {
            let tree = self.tree();
            files.retain(|(path, bytes)| {
                let Some(inode) = tree.find(path).and_then(|ino| tree.get(ino)) else {
                    return true;
                };
                let mut state = inode.state();
                let known = state.last_attr().filter(|attr| attr.size == *bytes);
                if !known.is_some_and(|attr| self.has_pages(&state, &attr)) {
                    return true;
                }
                let turn = state.turn().filter(|turn| turn.questions() < MOST_QUESTIONS);
                if let Some(turn) = turn
                    && self.validates_ahead()
                    && self.is_worth_asking(&state, now)
                    && tree.has_one_path(inode.ino)
                {
                    state.set_turn(turn.asked_ahead());
                    drop(state);
                    kept.push((inode, path.clone()));
                }
                false
            });
        }
        if !kept.is_empty() {
            let asked = self.asked();
            for (inode, path) in kept {
                self.validate(inode, path, asked);
            }
        }
        files
    }

    /// Those of the next `window` files that are to be asked about. They are marked as such.
    fn wanted(
        &self,
        turns: Vec<(u64, Ino)>,
        window: usize,
        most_questions: u8,
    ) -> Vec<(Arc<Inode>, RemotePath)> {
        let now = Instant::now();
        let mut left = window;
        let mut wanted = Vec::new();
        let tree = self.tree();
        for (number, ino) in turns {
            if left == 0 {
                break;
            }
            let Some(inode) = tree.get(ino) else { continue };
            let mut state = inode.state();
            let Some(turn) = state.turn().filter(|turn| turn.number() == number) else { continue };
            left -= 1;
            let pause = turn.pause().min(self.config.open_revalidate * 2);
            let too_soon = now < turn.since() + pause / 2;
            let in_vain = turn.questions() >= most_questions;
            if too_soon || in_vain || !self.is_worth_asking(&state, now) {
                continue;
            }
            let Ok([path]) = <[RemotePath; 1]>::try_from(tree.paths(ino)) else { continue };
            state.set_turn(turn.asked_ahead());
            drop(state);
            wanted.push((inode, path));
        }
        wanted
    }

    /// Whether an open of a file with this state could be granted if the server told that it is
    /// unchanged, and cannot be for much longer.
    fn is_worth_asking(&self, state: &State, now: Instant) -> bool {
        let kind = FileKind::Regular;
        let old = match self.config.consistency {
            Consistency::CloseToOpen => state.validated(now, self.worth_renewing()).is_none(),
            _ => self.validated(state, kind).is_none(),
        };
        let grantable = |attr: &Attr| {
            may_read(&self.config, attr) && !self.wants_backing(attr) && self.has_pages(state, attr)
        };
        let late = state.open.iter().all(|open| open.remote.opened().is_none());
        old && late && state.changing() == 0 && state.last_attr().as_ref().is_some_and(grantable)
    }

    /// Begins to ask about `inode`, if there is room for that.
    fn validate(self: &Arc<Self>, inode: Arc<Inode>, path: RemotePath, asked: Asked) {
        let Some(ended) = self.validate_ahead.turns().begin(inode.ino) else { return };
        let shared = self.clone();
        self.background.start(async move {
            let _on_its_way = OnItsWay { shared: &shared, ino: inode.ino, _ended: ended };
            // Who opens it is told of any error.
            if let Ok(attr) = shared.remote.lstat(&path).await {
                shared.learn_validation(&inode, &path, &attr, asked);
            }
        });
    }

    /// Keeps what was told of the name `path` of `inode`.
    fn learn_validation(&self, inode: &Inode, path: &RemotePath, attr: &Attr, asked: Asked) {
        let mut tree = self.tree();
        let Some((dir, name)) = tree.name(inode.ino) else { return };
        let same_name = tree.path(inode.ino).as_ref() == Some(path);
        if !same_name || !tree.still(dir, &name, asked) || inode.kind != attr.kind {
            return;
        }
        {
            let state = inode.state();
            let open = state.open.iter().any(|open| open.remote.opened().is_some());
            let known = state.last_attr().map(|known| Validator::of(&known));
            // An open handle may be of another file than the name.
            if open && known != Some(Validator::of(attr)) || state.learned_at() > asked.at {
                return;
            }
        }
        tree.correct(dir, &name, Some(attr), asked);
        self.learn(inode, attr, asked);
        tree.rebind(dir, &name, inode.state().valid_until());
    }

    /// Waits for the answer to a question about `inode` that was sent ahead, though not for long.
    /// Whether there was one.
    pub(crate) async fn await_validation(&self, inode: &Inode) -> bool {
        let on_its_way = self.validate_ahead.turns().on_its_way(inode.ino);
        let Some(mut ended) = on_its_way else { return false };
        // Nothing is ever sent: it ends with its sender.
        let _ = tokio::time::timeout(PATIENCE, ended.changed()).await;
        true
    }
}

/// Takes a question off the list when it is over, however it ended.
struct OnItsWay<'a> {
    shared: &'a Shared,
    ino: Ino,
    /// Tells those who wait, after it is off the list.
    _ended: watch::Sender<()>,
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.shared.validate_ahead.turns().end(self.ino);
    }
}
