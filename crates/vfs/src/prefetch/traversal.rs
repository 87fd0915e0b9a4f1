//! The order in which a program visits the files of a tree: which small files come next.
//!
//! All programs go depth first. `tar`, `cp -r` and `grep -r` enter a directory at its position
//! among the names; `rsync` enters it after all files beside it ([`Depth`]). Where a directory has
//! no cached listing, the prediction ends.

use std::ops::Range;

use base::{Attr, Name, RemotePath};

use crate::dir_cache::Order;
use crate::tree::Tree;

/// Directories that are entered in search of the next files, at most.
const MAX_DIRECTORIES: usize = 32;

/// When the files below a directory are visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Depth {
    /// At the position of the directory among the names (`tar`).
    #[default]
    InPlace,
    /// After the files beside the directory (`rsync`).
    FilesFirst,
}

/// See the [module](self).
pub(super) struct Traversal<'a> {
    tree: &'a mut Tree,
    order: Order,
    depth: Depth,
    is_wanted: &'a dyn Fn(&Attr) -> bool,
    /// Files still to be found.
    files_left: usize,
    /// Directories that may still be entered.
    directories_left: usize,
    files: Vec<(RemotePath, u64)>,
}

/// An entry that comes next in a directory.
enum Entry {
    File(Name, u64),
    Directory(Name),
}

impl<'a> Traversal<'a> {
    /// A traversal of the files that are `is_wanted` by their attributes.
    pub(super) fn new(
        tree: &'a mut Tree,
        order: Order,
        depth: Depth,
        is_wanted: &'a dyn Fn(&Attr) -> bool,
    ) -> Traversal<'a> {
        let directories_left = MAX_DIRECTORIES;
        Traversal {
            tree,
            order,
            depth,
            is_wanted,
            files_left: 0,
            directories_left,
            files: Vec::new(),
        }
    }

    /// The next files, up to `max`, from the position `from` in `dir` on, with their sizes.
    pub(super) fn files_from(
        mut self,
        dir: &RemotePath,
        from: usize,
        max: usize,
    ) -> Vec<(RemotePath, u64)> {
        self.files_left = max;
        let mut continues = match self.depth {
            Depth::InPlace => self.visit(dir, from, true),
            Depth::FilesFirst => self.files_in(dir, from) && self.visit(dir, 0, false),
        };
        let mut at = dir.clone();
        while continues && let (Some(parent), Some(name)) = (at.parent(), at.file_name()) {
            let position =
                self.tree.listing_at(&parent).and_then(|it| it.position(&name, self.order));
            let Some(position) = position else { break };
            continues = self.visit(&parent, position + 1, self.depth == Depth::InPlace);
            at = parent;
        }
        self.files
    }

    /// Visits `dir` from the position `from` on: its subdirectories, and with `files_too` its
    /// files. `false` if there is no room or no listing.
    fn visit(&mut self, dir: &RemotePath, from: usize, files_too: bool) -> bool {
        let max = self.files_left + 1;
        let entries = self.entries(dir, from, files_too, true);
        let is_all = entries.len() < max;
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
        if self.directories_left == 0 {
            return false;
        }
        self.directories_left -= 1;
        if self.order == Order::Number {
            self.tree.ensure_number_order(dir);
        }
        if self.tree.listing_at(dir).is_none() {
            return false;
        }
        match self.depth {
            Depth::InPlace => self.visit(dir, 0, true),
            Depth::FilesFirst => self.files_in(dir, 0) && self.visit(dir, 0, false),
        }
    }

    fn add(&mut self, dir: &RemotePath, name: &Name, bytes: u64) -> bool {
        if self.files_left == 0 {
            return false;
        }
        self.files_left -= 1;
        self.files.push((dir.join(name), bytes));
        true
    }

    /// The entries that come next in `dir` from this position on: at most one more than there is
    /// room for.
    fn entries(
        &mut self,
        dir: &RemotePath,
        from: usize,
        files: bool,
        directories_left: bool,
    ) -> Vec<Entry> {
        let max = self.files_left + 1;
        let Some(listing) = self.tree.listing_at(dir) else { return Vec::new() };
        let entry = |cached: &crate::dir_cache::CachedEntry| {
            if directories_left && cached.attr.is_dir() {
                Some(Entry::Directory(cached.name.clone()))
            } else if files && (self.is_wanted)(&cached.attr) {
                Some(Entry::File(cached.name.clone(), cached.attr.size))
            } else {
                None
            }
        };
        listing.entries_from(from, self.order).filter_map(entry).take(max).collect()
    }

    /// Whether there are subdirectories at these positions of `dir` with files that would be
    /// visited. If a program skipped them, it visits files first.
    pub(super) fn skips_subtree_files(
        &mut self,
        dir: &RemotePath,
        positions: Range<usize>,
    ) -> bool {
        let Some(listing) = self.tree.listing_at(dir) else { return false };
        let between = listing.entries_from(positions.start, self.order).take(positions.len());
        let between = between.filter(|cached| cached.attr.is_dir());
        let directories_left: Vec<Name> = between.map(|cached| cached.name.clone()).collect();
        directories_left.iter().any(|name| self.has_files(&dir.join(name), 0))
    }

    /// Whether `dir` is at or behind the position `from` of `parent` and there are files behind it.
    /// If a program entered `dir` before them, it enters directories in place.
    pub(super) fn skips_following_files(
        &mut self,
        parent: &RemotePath,
        from: usize,
        dir: &RemotePath,
    ) -> bool {
        if dir.parent().as_ref() != Some(parent) {
            return false;
        }
        let Some(name) = dir.file_name() else { return false };
        let position = self.tree.listing_at(parent).and_then(|it| it.position(&name, self.order));
        position.is_some_and(|position| position >= from && self.has_files(parent, position + 1))
    }

    fn has_files(&mut self, dir: &RemotePath, from: usize) -> bool {
        let Some(listing) = self.tree.listing_at(dir) else { return false };
        listing.entries_from(from, self.order).any(|cached| (self.is_wanted)(&cached.attr))
    }
}
