//! Several names of one file, where hard links are preserved.
//!
//! The first name that the walk finds is copied. The others become hard links to the copy after all
//! files were copied. So none of them occupies a slot while it waits for the first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dir::Dir;
use crate::step::{Action, Step};
use base::{RemotePath, Timestamp};

/// The names of one file.
pub(crate) struct Names {
    /// Relative to the target.
    pub(crate) first: RemotePath,
    /// Size and time of the file when the first name was listed.
    content: (u64, Timestamp),
    /// The first name becomes another file than it was.
    new: bool,
    /// The directory of the first name, if its final mode would prevent links to the file. Held, so
    /// that it gets this mode after the links.
    _dir: Option<Arc<Dir>>,
    /// What the first name is at the target.
    there: Option<(u64, u64)>,
    done: AtomicBool,
}

impl Names {
    /// The first name is as it is to be.
    pub(crate) fn done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Whether there is a first name to make others of.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// Files with several names, by source, device and inode. Bounded by the number of such files.
#[derive(Default)]
pub(crate) struct Group(HashMap<(usize, u64, u64), Arc<Names>>);

impl Group {
    /// Makes the step the first of its names, or one of the others. To be called in the order in
    /// which steps are given out.
    ///
    /// Whether a name is one of the others at the target already cannot be seen over plain SFTP: if
    /// it looks right it is left, unless the first name becomes another file.
    pub(crate) fn enter(&mut self, step: &mut Step) {
        // A skipped name may lead to another file at the target.
        let Some((device, inode)) =
            step.identity.filter(|_| !matches!(step.action, Action::Skip(_)))
        else {
            return;
        };
        let copied = matches!(step.action, Action::Copy(_));
        let content = (step.attr.size, step.attr.mtime);
        match self.0.entry((step.source, device, inode)) {
            Entry::Vacant(vacant) => {
                let (first, done) = (step.name.clone(), AtomicBool::new(false));
                let there = step.identity_there;
                let dir = step.dir.will_be_closed().then(|| step.dir.clone());
                let names = Arc::new(Names { first, content, new: copied, _dir: dir, there, done });
                step.names = Some(vacant.insert(names).clone());
            }
            Entry::Occupied(names) => {
                let names = names.get();
                // Where names and attributes were listed at different times, this name may be of
                // another file by now.
                if step.attr.id().is_none() && names.content != content {
                    return;
                }
                let same = matches!(step.action, Action::Nothing | Action::SetAttr(_));
                let is_apart = names.there.zip(step.identity_there).is_some_and(|(a, b)| a != b);
                if copied || (same && (names.new || is_apart)) {
                    step.action = Action::HardLink { first: names.first.clone() };
                    step.names = Some(names.clone());
                }
            }
        }
    }
}
