//! The order in which a program visits a tree: which small files come next, and which directories
//! without a listing.
//!
//! All programs go depth first. `tar`, `cp -r` and `grep -r` enter a directory at its position
//! among the names; `rsync` enters it after all files beside it ([`Depth`]). The prediction is made
//! from the cached listings.

use std::ops::Range;

use base::{Attr, Name, RemotePath};

use crate::config::Timeout;
use crate::dir_cache::{CachedEntry, CachedListing, Order};
use crate::tree::Tree;

/// When the files below a directory are visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Depth {
    /// At the position of the directory among the names (`tar`).
    #[default]
    InPlace,
    /// After the files beside the directory (`rsync`).
    FilesFirst,
}

/// What a traversal looks for.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// The files with attributes for which this returns true. At a directory without a cached
    /// listing the traversal ends.
    Files(&'a dyn Fn(&Attr) -> bool),
    /// The directories without a valid listing; without a time-out, those without any listing.
    Unlisted(Option<Timeout>),
}

/// See the [module](self).
pub(super) struct Traversal<'a> {
    tree: &'a mut Tree,
    order: Order,
    depth: Depth,
    target: Target<'a>,
    /// Directories that may still be entered.
    directories_left: usize,
    /// How many are still to be found.
    left: usize,
    found: Vec<(RemotePath, u64)>,
}

/// An entry that comes next in a directory.
enum Entry {
    File(Name, u64),
    Directory(Name),
}

impl<'a> Traversal<'a> {
    /// A traversal that enters at most this number of `directories`.
    pub(super) fn new(
        tree: &'a mut Tree,
        order: Order,
        depth: Depth,
        target: Target<'a>,
        directories: usize,
    ) -> Traversal<'a> {
        let found = Vec::new();
        Traversal { tree, order, depth, target, directories_left: directories, left: 0, found }
    }

    /// What comes next from the position `from` in `dir` on: up to `max` paths, with their sizes in
    /// the listing.
    pub(super) fn find(
        mut self,
        dir: &RemotePath,
        from: usize,
        max: usize,
    ) -> Vec<(RemotePath, u64)> {
        self.left = max;
        let mut at = dir.clone();
        let mut continues = self.visit(dir, from);
        while continues && let (Some(parent), Some(name)) = (at.parent(), at.file_name()) {
            let Some(position) = self.position(&parent, &name) else { break };
            let files_too = self.depth == Depth::InPlace;
            continues = self.visit_entries(&parent, position + 1, files_too, true);
            at = parent;
        }
        self.found
    }

    /// The cached listing of `dir`.
    fn listing(&mut self, dir: &RemotePath) -> Option<&CachedListing> {
        if self.order == Order::Number {
            self.tree.ensure_number_order(dir);
        }
        self.tree.listing_at(dir)
    }

    fn position(&mut self, dir: &RemotePath, name: &Name) -> Option<usize> {
        let order = self.order;
        self.listing(dir)?.position(name, order)
    }

    /// Visits `dir` from the position `from` on, and all below. `false` if the traversal ends here.
    fn visit(&mut self, dir: &RemotePath, from: usize) -> bool {
        match self.depth {
            Depth::InPlace => self.visit_entries(dir, from, true, true),
            Depth::FilesFirst => {
                self.visit_entries(dir, from, true, false)
                    && self.visit_entries(dir, 0, false, true)
            }
        }
    }

    fn visit_entries(
        &mut self,
        dir: &RemotePath,
        from: usize,
        files: bool,
        directories: bool,
    ) -> bool {
        self.entries(dir, from, files, directories).into_iter().all(|entry| match entry {
            Entry::File(name, bytes) => self.add(dir.join(&name), bytes),
            Entry::Directory(name) => self.enter(dir.join(&name)),
        })
    }

    fn enter(&mut self, dir: RemotePath) -> bool {
        if self.directories_left == 0 {
            return false;
        }
        self.directories_left -= 1;
        match self.target {
            Target::Files(_) => self.listing(&dir).is_some() && self.visit(&dir, 0),
            Target::Unlisted(timeout) if self.tree.has_valid_listing(&dir, timeout) => {
                self.visit(&dir, 0)
            }
            Target::Unlisted(_) => self.add(dir, 0),
        }
    }

    fn add(&mut self, path: RemotePath, bytes: u64) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.found.push((path, bytes));
        true
    }

    /// The entries that come next in `dir` from this position on, as many as may be needed.
    fn entries(
        &mut self,
        dir: &RemotePath,
        from: usize,
        files: bool,
        directories: bool,
    ) -> Vec<Entry> {
        // One more than there is room for ends the traversal.
        let max = self.left + self.directories_left + 1;
        let (order, target) = (self.order, self.target);
        let Some(listing) = self.listing(dir) else { return Vec::new() };
        match target {
            Target::Files(is_wanted) => {
                let entry = |entry: &CachedEntry| {
                    if entry.attr.is_dir() {
                        directories.then(|| Entry::Directory(entry.name.clone()))
                    } else {
                        (files && is_wanted(&entry.attr.get()))
                            .then(|| Entry::File(entry.name.clone(), entry.attr.get().size))
                    }
                };
                listing.entries_from(from, order).filter_map(entry).take(max).collect()
            }
            Target::Unlisted(_) => {
                let next = listing.directories_from(from, order).take(max);
                next.map(|entry| Entry::Directory(entry.name.clone())).collect()
            }
        }
    }

    /// Whether there are subdirectories at these positions of `dir` with files that would be
    /// visited. If a program skipped them, it visits files first.
    pub(super) fn skips_subtree_files(
        &mut self,
        dir: &RemotePath,
        positions: Range<usize>,
    ) -> bool {
        let order = self.order;
        let Some(listing) = self.listing(dir) else { return false };
        let between = listing.entries_from(positions.start, order).take(positions.len());
        let between = between.filter(|entry| entry.attr.is_dir());
        let directories: Vec<Name> = between.map(|entry| entry.name.clone()).collect();
        directories.iter().any(|name| self.has_files(&dir.join(name), 0))
    }

    /// Whether `dir` is at or behind the position `from` of `parent` and there are files behind it.
    /// If a program entered `dir` before them, it enters directories in place.
    pub(super) fn skips_following_files(
        &mut self,
        parent: &RemotePath,
        from: usize,
        dir: &RemotePath,
    ) -> bool {
        let name = dir.file_name().filter(|_| dir.parent().as_ref() == Some(parent));
        let position = name.and_then(|name| self.position(parent, &name));
        position.is_some_and(|position| position >= from && self.has_files(parent, position + 1))
    }

    fn has_files(&mut self, dir: &RemotePath, from: usize) -> bool {
        let (order, Target::Files(is_wanted)) = (self.order, self.target) else { return false };
        let Some(listing) = self.listing(dir) else { return false };
        listing.entries_from(from, order).any(|entry| is_wanted(&entry.attr.get()))
    }
}
