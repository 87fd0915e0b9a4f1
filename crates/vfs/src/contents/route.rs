//! The way of a program through the files of a tree: which small files come next.
//!
//! All go depth first. `tar`, `cp -r` and `grep -r` go into a directory where it is among the names;
//! `rsync` does it after all files beside it ([`Depth`]). Where the listing of a directory is not
//! known, nothing is said of what comes after it.

use std::ops::Range;

use base::{Attr, Name, RemotePath};

use crate::snapshot::Order;
use crate::tree::Tree;

/// Directories that are looked into, at most, for the files to come.
const MAX_DIRECTORIES: usize = 32;

/// When the files below a directory come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Depth {
    /// Where the directory is among the names.
    #[default]
    InPlace,
    /// After the files that are beside the directory.
    FilesFirst,
}

/// See the [module](self).
pub(super) struct Route<'a> {
    tree: &'a mut Tree,
    order: Order,
    depth: Depth,
    is_wanted: &'a dyn Fn(&Attr) -> bool,
    /// Files to be found still.
    room: usize,
    /// Directories that may be looked into still.
    directories: usize,
    files: Vec<(RemotePath, u64)>,
}

/// What comes in a directory.
enum Entry {
    File(Name, u64),
    Directory(Name),
}

impl<'a> Route<'a> {
    /// With the files that are `is_wanted` by their attributes.
    pub(super) fn new(
        tree: &'a mut Tree,
        order: Order,
        depth: Depth,
        is_wanted: &'a dyn Fn(&Attr) -> bool,
    ) -> Route<'a> {
        let directories = MAX_DIRECTORIES;
        Route { tree, order, depth, is_wanted, room: 0, directories, files: Vec::new() }
    }

    /// The next files, up to `most`, from the place `from` in `dir` on, with their sizes.
    pub(super) fn files_from(
        mut self,
        dir: &RemotePath,
        from: usize,
        most: usize,
    ) -> Vec<(RemotePath, u64)> {
        self.room = most;
        let mut goes_on = match self.depth {
            Depth::InPlace => self.go(dir, from, true),
            Depth::FilesFirst => self.files_in(dir, from) && self.go(dir, 0, false),
        };
        let mut at = dir.clone();
        while goes_on && let (Some(above), Some(name)) = (at.parent(), at.file_name()) {
            let place = self.tree.lists(&above).and_then(|it| it.place(&name, self.order));
            let Some(place) = place else { break };
            goes_on = self.go(&above, place + 1, self.depth == Depth::InPlace);
            at = above;
        }
        self.files
    }

    /// Goes through `dir` from this place on: into its directories, and to its files too if these
    /// are meant. `false` when there is no room or the way is not known.
    fn go(&mut self, dir: &RemotePath, from: usize, files_too: bool) -> bool {
        let most = self.room + 1;
        let entries = self.entries(dir, from, files_too, true);
        let is_all = entries.len() < most;
        entries.into_iter().all(|entry| match entry {
            Entry::File(name, bytes) => self.add(dir, &name, bytes),
            Entry::Directory(name) => self.enter(&dir.join(&name)),
        }) && is_all
    }

    fn files_in(&mut self, dir: &RemotePath, from: usize) -> bool {
        let entries = self.entries(dir, from, true, false);
        entries.into_iter().all(|entry| match entry {
            Entry::File(name, bytes) => self.add(dir, &name, bytes),
            Entry::Directory(_) => true,
        })
    }

    fn enter(&mut self, dir: &RemotePath) -> bool {
        if self.directories == 0 {
            return false;
        }
        self.directories -= 1;
        if self.order == Order::Number {
            self.tree.order_by_number(dir);
        }
        if self.tree.lists(dir).is_none() {
            return false;
        }
        match self.depth {
            Depth::InPlace => self.go(dir, 0, true),
            Depth::FilesFirst => self.files_in(dir, 0) && self.go(dir, 0, false),
        }
    }

    fn add(&mut self, dir: &RemotePath, name: &Name, bytes: u64) -> bool {
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        self.files.push((dir.join(name), bytes));
        true
    }

    /// What comes in `dir` from this place on: no more than there is room for.
    fn entries(
        &mut self,
        dir: &RemotePath,
        from: usize,
        files: bool,
        directories: bool,
    ) -> Vec<Entry> {
        let most = self.room + 1;
        let Some(listing) = self.tree.lists(dir) else { return Vec::new() };
        let entry = |found: &crate::snapshot::Found| {
            if directories && found.attr.is_dir() {
                Some(Entry::Directory(found.name.clone()))
            } else if files && (self.is_wanted)(&found.attr) {
                Some(Entry::File(found.name.clone(), found.attr.size))
            } else {
                None
            }
        };
        listing.entries_from(from, self.order).filter_map(entry).take(most).collect()
    }

    /// Whether there are directories in these places of `dir` with files that come next in them.
    pub(super) fn leaves_out(&mut self, dir: &RemotePath, places: Range<usize>) -> bool {
        let Some(listing) = self.tree.lists(dir) else { return false };
        let between = listing.entries_from(places.start, self.order).take(places.len());
        let between = between.filter(|found| found.attr.is_dir());
        let directories: Vec<Name> = between.map(|found| found.name.clone()).collect();
        directories.iter().any(|name| self.has_files(&dir.join(name), 0))
    }

    /// Whether there are files from this place of `above` on, before and behind which is `dir`.
    pub(super) fn leaves_files(
        &mut self,
        above: &RemotePath,
        from: usize,
        dir: &RemotePath,
    ) -> bool {
        if dir.parent().as_ref() != Some(above) {
            return false;
        }
        let Some(name) = dir.file_name() else { return false };
        let place = self.tree.lists(above).and_then(|it| it.place(&name, self.order));
        place.is_some_and(|place| place >= from && self.has_files(above, place + 1))
    }

    fn has_files(&mut self, dir: &RemotePath, from: usize) -> bool {
        let Some(listing) = self.tree.lists(dir) else { return false };
        listing.entries_from(from, self.order).any(|found| (self.is_wanted)(&found.attr))
    }
}
