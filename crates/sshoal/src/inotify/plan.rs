//! What is to be repeated, from what was reported.
//!
//! The two halves of a rename become one step. Changes of the content and of the attributes of one
//! file become one step, unless something happened to its name in between.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::{Event, Name, RemotePath};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    mkdirat, mknodat, openat2, renameat, unlinkat, utimensat,
};
use rustix::io::Result;
use vfs::{ForeignChange, Ino};

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: Ino,
    pub(super) path: RemotePath,
    pub(super) name: Name,
    dir_number: u64,
    /// The inode number of the entry.
    pub(super) number: Option<u64>,
}

impl Place {
    fn new(change: &ForeignChange) -> Place {
        let ForeignChange { dir, path, name, dir_number, number, .. } = change.clone();
        Place { dir, path, name, dir_number, number }
    }

    /// Whether it is this name.
    pub(super) fn is(&self, dir: u64, name: &[u8]) -> bool {
        self.dir.0 == dir && self.name.as_bytes() == name
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.dir_number).chain(self.number)
    }
}

/// What is done to the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Create,
    Remove,
    Rename { to: Place },
    Change { attributes: bool, modified: bool, written: bool },
}

/// Something to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) at: Place,
    pub(super) is_dir: bool,
    /// The source at which it happened.
    pub(super) source: u64,
    pub(super) action: Action,
}

impl Step {
    /// The names that are changed.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        let to = match &self.action {
            Action::Rename { to } => Some(to),
            _ => None,
        };
        std::iter::once(&self.at).chain(to)
    }

    /// The inodes whose watchers see it.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.places().flat_map(Place::numbers)
    }

    /// Executes it in the directory `dir`; a rename, to the directory `to`.
    pub(super) fn execute(&self, dir: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
        let name = self.at.name.as_bytes();
        match &self.action {
            Action::Create if self.is_dir => mkdirat(dir, name, Mode::RWXU),
            Action::Create => mknodat(dir, name, FileType::RegularFile, Mode::RUSR, 0),
            Action::Remove if self.is_dir => unlinkat(dir, name, AtFlags::REMOVEDIR),
            Action::Remove => unlinkat(dir, name, AtFlags::empty()),
            Action::Rename { to: place } => renameat(dir, name, to, place.name.as_bytes()),
            Action::Change { attributes, modified, written } => {
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                let touch = |last_access| {
                    let times = Timestamps { last_access, last_modification: now };
                    utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
                };
                let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // What is mounted there is of another file system.
                open_inside(dir, name, flags | OFlags::PATH)?;
                // The kernel reports a change of both times as one of the attributes, and of the
                // mtime alone as one of the content.
                if *attributes {
                    touch(now)?;
                }
                if *modified {
                    touch(unchanged)?;
                }
                if *written {
                    open_inside(dir, name, flags | OFlags::WRONLY | OFlags::NONBLOCK)?;
                }
                Ok(())
            }
        }
    }
}

/// Opens a name in `dir`; fails for a link, and for what is mounted there.
pub(super) fn open_inside(dir: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    openat2(dir, name, flags, Mode::empty(), resolve)
}

/// Whether the second half of a rename may follow.
pub(super) fn may_continue(changes: &[ForeignChange]) -> bool {
    let away = changes.iter().rfind(|change| change.event == Event::MovedAway);
    away.is_some_and(|away| {
        let is_second =
            |it: &ForeignChange| it.event == Event::MovedHere && it.cookie == away.cookie;
        away.cookie == 0 || !changes.iter().any(is_second)
    })
}

/// The steps for these changes.
pub(super) fn plan(changes: &[ForeignChange]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // The last step that changes each file.
    let mut changing: HashMap<(Ino, Name, u64), usize> = HashMap::new();
    let mut halves: HashMap<u32, &ForeignChange> = HashMap::new();
    let is_half = |change: &&ForeignChange| change.event == Event::MovedHere && change.cookie != 0;
    for change in changes.iter().filter(is_half) {
        halves.insert(change.cookie, change);
    }
    for change in changes {
        let ForeignChange { event, is_dir, cookie, source, .. } = change;
        let (at, is_dir, source) = (Place::new(change), *is_dir, *source);
        let key = (at.dir, at.name.clone(), source);
        let action = match event {
            Event::Created => Action::Create,
            // Done with the first half.
            Event::MovedHere if *cookie != 0 && halves.remove(cookie).is_none() => continue,
            Event::MovedHere => Action::Create,
            Event::Removed => Action::Remove,
            Event::MovedAway => match halves.remove(cookie) {
                Some(half) => {
                    changing.remove(&(half.dir, half.name.clone(), source));
                    Action::Rename { to: Place::new(half) }
                }
                None => Action::Remove,
            },
            Event::Attributes | Event::Modified | Event::Written => {
                let last = changing.get(&key).and_then(|last| steps.get_mut(*last));
                if let Some(Step {
                    action: Action::Change { attributes, modified, written }, ..
                }) = last
                    && !*written
                {
                    *attributes |= *event == Event::Attributes;
                    *modified |= *event == Event::Modified;
                    *written |= *event == Event::Written;
                    continue;
                }
                changing.insert(key, steps.len());
                let action = Action::Change {
                    attributes: *event == Event::Attributes,
                    modified: *event == Event::Modified,
                    written: *event == Event::Written,
                };
                steps.push(Step { at, is_dir, source, action });
                continue;
            }
            Event::Ended => continue,
        };
        changing.remove(&key);
        steps.push(Step { at, is_dir, source, action });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(event: Event, name: &str, cookie: u32) -> ForeignChange {
        ForeignChange {
            dir: Ino::ROOT,
            path: RemotePath::root(),
            dir_number: 1,
            name: Name::new(name.as_bytes()).unwrap(),
            number: None,
            event,
            is_dir: false,
            cookie,
            source: 0,
        }
    }

    fn planned(changes: &[(Event, &str, u32)]) -> Vec<String> {
        let changes: Vec<_> =
            changes.iter().map(|(event, name, cookie)| change(*event, name, *cookie)).collect();
        let text = |step: &Step| {
            let what = match &step.action {
                Action::Create => "create".to_owned(),
                Action::Remove => "remove".to_owned(),
                Action::Rename { to } => format!("rename to {}", to.name),
                Action::Change { attributes, modified, written } => {
                    let words =
                        [(attributes, "attributes"), (modified, "modified"), (written, "written")];
                    let words = words.into_iter().filter(|(is_so, _)| **is_so);
                    words.map(|(_, word)| word).collect::<Vec<_>>().join("+")
                }
            };
            format!("{} {what}", step.at.name)
        };
        plan(&changes).iter().map(text).collect()
    }

    #[test]
    fn changes_of_one_file_are_coalesced() {
        use Event::{Attributes, Created, Modified, Removed, Written};
        let changes = [
            (Created, "a", 0),
            (Modified, "a", 0),
            (Modified, "b", 0),
            (Modified, "a", 0),
            (Attributes, "a", 0),
            (Written, "a", 0),
            (Modified, "a", 0),
            (Removed, "a", 0),
            (Created, "a", 0),
            (Modified, "a", 0),
        ];
        let steps = [
            "a create",
            "a attributes+modified+written",
            "b modified",
            "a modified",
            "a remove",
            "a create",
            "a modified",
        ];
        assert_eq!(planned(&changes), steps);
    }

    #[test]
    fn the_halves_of_a_rename_are_joined() {
        use Event::{Modified, MovedAway, MovedHere};
        let changes = [
            (Modified, "b", 0),
            (MovedAway, "a", 7),
            (MovedAway, "out", 9),
            (MovedHere, "b", 7),
            (MovedHere, "in", 8),
            (Modified, "b", 0),
        ];
        let steps = ["b modified", "a rename to b", "out remove", "in create", "b modified"];
        assert_eq!(planned(&changes), steps);
        // A server that does not tell which halves belong together.
        assert_eq!(planned(&[(MovedAway, "a", 0), (MovedHere, "b", 0)]), ["a remove", "b create"]);
    }

    #[test]
    fn a_rename_may_be_reported_in_two_parts() {
        let [away, here] = [change(Event::MovedAway, "a", 7), change(Event::MovedHere, "b", 7)];
        assert!(may_continue(&[here.clone(), change(Event::MovedAway, "a", 8)]));
        assert!(may_continue(std::slice::from_ref(&away)) && !may_continue(&[away, here]));
        assert!(!may_continue(&[change(Event::Removed, "a", 0)]));
    }
}
