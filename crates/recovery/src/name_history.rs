//! What was lately seen of names, for the moment in which the answer to a change of them is lost.
//!
//! Nothing is asked for here, and nobody is answered from here: it only says what was there before.
//! The newest word counts. What was asked for before a change of ours, and answered after it, may be
//! from before it: it counts as of the moment in which it was asked for, and what the change does is
//! put on top, which changes nothing if it was there already. Only that a name was not there, which a
//! rename has taken away, tells nothing of what was there before it.
//!
//! What is done to a file by another of its names is not followed. So names that were linked here are
//! remembered for themselves: of what they lead to only the kind is known.
//!
//! All parts are bounded, the oldest is forgotten: a name that is changed was nearly always looked
//! up just before.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{Attr, AttrChange, DirEntry, FileKind, RemotePath};

use crate::expect::Expect;

/// Names that are remembered: about 150 KiB.
const MAX_NAMES: usize = 1024;

/// Entries of listings that are remembered, for those who list a directory and then remove all that
/// is in it: so many bytes with their names, some 16,384 entries.
const MAX_LISTED_BYTES: usize = 16_384 * 160;

/// Names of files with several names that are remembered: about 100 KiB.
const MAX_LINKED: usize = 1024;

/// What was seen of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Absent,
    There(Expect),
}

impl Seen {
    pub(crate) fn there(attr: &Attr) -> Seen {
        Seen::There(Expect::of(attr))
    }

    pub(crate) fn made(kind: FileKind) -> Seen {
        Seen::There(Expect::made(kind))
    }
}

#[derive(Debug)]
enum Word {
    Seen(RemotePath, Seen),
    /// Attributes were set.
    Changed(RemotePath, AttrChange),
    /// The first is called as the second now, with all that is below it.
    Renamed(RemotePath, RemotePath),
    /// The second is a name of the first.
    Linked(RemotePath, RemotePath),
}

#[derive(Debug)]
struct Note {
    number: u64,
    place: Place,
    word: Word,
}

#[derive(Debug)]
struct Listed {
    number: u64,
    place: Place,
    dir: RemotePath,
    entries: Vec<DirEntry>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    notes: VecDeque<Note>,
    listings: VecDeque<Listed>,
    listed_bytes: usize,
    /// Names of files that have, or had, several.
    linked: VecDeque<RemotePath>,
}

impl State {
    /// A name of a file that has, or had, several.
    fn note_linked(&mut self, path: RemotePath) {
        if self.linked.contains(&path) {
            return;
        }
        self.linked.push_back(path);
        if self.linked.len() > MAX_LINKED {
            self.linked.pop_front();
        }
    }

    fn linked_renamed(&mut self, from: &RemotePath, to: &RemotePath) {
        // The old names stay: a rename of one name of a file to another one changes nothing.
        let moved: Vec<_> = self.linked.iter().filter_map(|path| path.moved(from, to)).collect();
        self.linked.retain(|path| path.moved(to, from).is_none());
        moved.into_iter().for_each(|path| self.note_linked(path));
    }
}

/// A moment in the order of what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// In the order of what counts: what was seen stands where it was asked for, and a change of ours
/// where it was answered, which is behind all that was asked for before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place(u64, bool);

impl Place {
    fn seen_since(asked: Moment) -> Place {
        Place(asked.0, false)
    }

    fn changed(number: u64) -> Place {
        Place(number, true)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<State>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, word: Word, asked: Option<Moment>) {
        let forgotten = {
            let mut state = self.lock();
            let number = state.next;
            state.next += 1;
            let place = asked.map_or(Place::changed(number), Place::seen_since);
            let before = state.notes.iter().rposition(|note| note.place <= place);
            state.notes.insert(before.map_or(0, |at| at + 1), Note { number, place, word });
            if state.notes.len() > MAX_NAMES { state.notes.pop_front() } else { None }
        };
        drop(forgotten);
    }

    /// This is what we have made of it.
    pub(crate) fn note(&self, path: &RemotePath, seen: Seen) {
        if seen == Seen::Absent {
            self.lock().linked.retain(|linked| linked != path);
        }
        self.add(Word::Seen(path.clone(), seen), None);
    }

    /// This was answered to a question of that moment.
    pub(crate) fn note_seen(&self, path: &RemotePath, seen: Seen, asked: Moment) {
        self.add(Word::Seen(path.clone(), seen), Some(asked));
    }

    /// Attributes of `path` were set.
    pub(crate) fn changed(&self, path: &RemotePath, change: AttrChange) {
        self.add(Word::Changed(path.clone(), change), None);
    }

    /// `from` is called `to` now, with all that is below it.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        self.lock().linked_renamed(from, to);
        self.add(Word::Renamed(from.clone(), to.clone()), None);
    }

    /// `new` is a name of `existing`.
    pub(crate) fn linked(&self, existing: &RemotePath, new: &RemotePath) {
        {
            let mut state = self.lock();
            state.note_linked(existing.clone());
            state.note_linked(new.clone());
        }
        self.add(Word::Linked(existing.clone(), new.clone()), None);
    }

    /// Entries of a listing that was begun in that moment.
    pub(crate) fn note_listing(&self, dir: &RemotePath, entries: &[DirEntry], begun: Moment) {
        let (dir, entries) = (dir.clone(), entries.to_vec());
        let mut forgotten = Vec::new();
        {
            let mut state = self.lock();
            let number = state.next;
            state.next += 1;
            let bytes = entries.iter().map(listed_bytes).sum();
            state.listed_bytes += bytes;
            let place = Place::seen_since(begun);
            let before = state.listings.iter().rposition(|listed| listed.place <= place);
            let listed = Listed { number, place, dir, entries, bytes };
            state.listings.insert(before.map_or(0, |at| at + 1), listed);
            while state.listed_bytes > MAX_LISTED_BYTES
                && let Some(oldest) = state.listings.pop_front()
            {
                state.listed_bytes -= oldest.bytes;
                forgotten.push(oldest);
            }
        }
        drop(forgotten);
    }

    /// Whether `path` leads to a file that has, or had, other names made here.
    pub(crate) fn is_linked(&self, path: &RemotePath) -> bool {
        self.lock().linked.contains(path)
    }

    /// After all that was seen so far, and before all that will be.
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.lock().next)
    }

    /// The last that was seen of `path` before `moment`. Goes through all that is remembered.
    pub(crate) fn before(&self, path: &RemotePath, moment: Moment) -> Option<Seen> {
        let state = self.lock();
        let mut search = Search::of(path);
        let old = |number| number < moment.0;
        let mut listings =
            state.listings.iter().rev().filter(|listed| old(listed.number)).peekable();
        for note in state.notes.iter().rev().filter(|note| old(note.number)) {
            while let Some(listed) = listings.next_if(|listed| listed.place >= note.place) {
                if let Some(seen) = search.listed(listed) {
                    return Some(seen);
                }
            }
            match search.noted(&note.word) {
                Found::Nothing => {}
                Found::Seen(seen) => return Some(seen),
                Found::Unknown => return None,
            }
        }
        listings.find_map(|listed| search.listed(listed))
    }
}

/// What an entry takes.
fn listed_bytes(entry: &DirEntry) -> usize {
    size_of::<DirEntry>() + entry.name.as_bytes().len()
}

enum Found {
    Nothing,
    Seen(Seen),
    /// What is older does not count.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Renamed {
    No,
    /// It, or what it is a name of, was there then.
    Itself,
    /// A directory above it.
    Above,
}

/// A way back through what was seen.
struct Search {
    /// What it was called then.
    path: RemotePath,
    /// By which change of ours it has got the name that it had later.
    renamed: Renamed,
    /// A newer listing of its directory was without it.
    missing: bool,
    /// What was set since, the newest first.
    changes: Vec<AttrChange>,
}

impl Search {
    fn of(path: &RemotePath) -> Search {
        let (path, renamed) = (path.clone(), Renamed::No);
        Search { path, renamed, missing: false, changes: Vec::new() }
    }

    fn found(&self, seen: Seen) -> Seen {
        match seen {
            Seen::Absent => Seen::Absent,
            Seen::There(mut expect) => {
                let changes = self.changes.iter().rev();
                changes.for_each(|change| expect.set(change, &|_| false));
                Seen::There(expect)
            }
        }
    }

    fn noted(&mut self, word: &Word) -> Found {
        match word {
            Word::Seen(path, Seen::There(_)) if *path == self.path && self.missing => {
                return Found::Unknown;
            }
            // Asked for before that change was answered: it had happened already, or it could not
            // have.
            Word::Seen(path, seen) if *path == self.path => match (seen, self.renamed) {
                (Seen::Absent, Renamed::Itself) => {}
                (Seen::Absent, Renamed::Above) => return Found::Unknown,
                _ => return Found::Seen(self.found(*seen)),
            },
            Word::Changed(path, change) if *path == self.path => self.changes.push(*change),
            Word::Linked(existing, new) if *new == self.path => {
                self.go_on_as(existing.clone(), Renamed::Itself);
            }
            Word::Renamed(from, to) => {
                if let Some(before) = self.path.moved(to, from) {
                    let itself = self.path == *to;
                    self.go_on_as(before, if itself { Renamed::Itself } else { Renamed::Above });
                } else if self.path == *from {
                    return Found::Seen(Seen::Absent);
                } else if self.path.moved(from, to).is_some() {
                    return Found::Unknown;
                }
            }
            Word::Seen(..) | Word::Changed(..) | Word::Linked(..) => {}
        }
        Found::Nothing
    }

    fn go_on_as(&mut self, path: RemotePath, renamed: Renamed) {
        (self.path, self.renamed) = (path, renamed);
        self.missing = false;
    }

    fn listed(&mut self, listed: &Listed) -> Option<Seen> {
        let (dir, name) = (self.path.parent()?, self.path.file_name()?);
        if listed.dir != dir {
            return None;
        }
        match listed.entries.iter().find(|entry| entry.name == name) {
            Some(entry) => Some(self.found(Seen::there(entry.attr.as_ref()?))),
            None => {
                self.missing = true;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Name, Timestamp};
    use testkit::path;

    fn attr(size: u64) -> Attr {
        let time = Timestamp::from_secs(1);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: time, mtime: time }
    }

    fn listing(names: &[&str], size: u64) -> Vec<DirEntry> {
        let name = |text: &&str| Name::new(text.as_bytes()).unwrap();
        let entry = |text| DirEntry { name: name(text), attr: Some(attr(size)) };
        names.iter().map(entry).collect()
    }

    fn list(known: &Known, dir: &RemotePath, entries: &[DirEntry]) {
        known.note_listing(dir, entries, known.moment());
    }

    fn of(known: &Known, path: &RemotePath) -> Option<Seen> {
        known.before(path, known.moment())
    }

    #[test]
    fn what_was_seen_later_does_not_count() {
        let known = Known::default();
        known.note(&path("d/a"), Seen::Absent);
        let moment = known.moment();
        known.note(&path("d/a"), Seen::there(&attr(1)));
        list(&known, &path("d"), &listing(&["a", "b"], 2));
        assert_eq!(known.before(&path("d/a"), moment), Some(Seen::Absent));
        assert_eq!(known.before(&path("d/b"), moment), None);
        assert_eq!(of(&known, &path("d/a")), Some(Seen::there(&attr(2))));
    }

    #[test]
    fn the_newest_word_counts() {
        let known = Known::default();
        assert_eq!(of(&known, &path("d/a")), None);
        known.note(&path("d/a"), Seen::there(&attr(1)));
        list(&known, &path("d"), &listing(&["a", "b"], 2));
        assert_eq!(of(&known, &path("d/a")), Some(Seen::there(&attr(2))));
        known.note(&path("d/a"), Seen::Absent);
        assert_eq!(of(&known, &path("d/a")), Some(Seen::Absent));
        assert_eq!(of(&known, &path("d/b")), Some(Seen::there(&attr(2))));
        assert_eq!(of(&known, &path("b")), None);
    }

    #[test]
    fn a_directory_takes_along_what_is_known_below_it() {
        let known = Known::default();
        known.note(&path("d"), Seen::made(FileKind::Directory));
        list(&known, &path("d"), &listing(&["b"], 2));
        known.note(&path("d/a"), Seen::there(&attr(1)));
        known.note(&path("e/a"), Seen::there(&attr(3)));
        known.renamed(&path("d"), &path("e"));
        assert_eq!(of(&known, &path("d")), Some(Seen::Absent));
        assert_eq!(of(&known, &path("e")), Some(Seen::made(FileKind::Directory)));
        assert_eq!(of(&known, &path("e/a")), Some(Seen::there(&attr(1))));
        assert_eq!(of(&known, &path("e/b")), Some(Seen::there(&attr(2))));
        assert_eq!(of(&known, &path("d/a")), None);
        // The directory that was replaced has taken along what was in it.
        known.note(&path("f/z"), Seen::there(&attr(4)));
        known.renamed(&path("e"), &path("f"));
        assert_eq!(of(&known, &path("f/z")), None);
    }

    #[test]
    fn a_second_name_and_what_was_set_are_reckoned_with() {
        let known = Known::default();
        known.note(&path("a"), Seen::there(&attr(1)));
        known.changed(&path("a"), AttrChange { perm: Some(0o600), ..AttrChange::default() });
        known.linked(&path("a"), &path("b"));
        let Some(Seen::There(expect)) = of(&known, &path("b")) else { panic!("it is known") };
        assert!(expect.explains(&Attr { perm: 0o600, ..attr(1) }));
        assert!(!expect.explains(&attr(1)));
    }

    #[test]
    fn what_a_newer_listing_is_without_is_not_known() {
        let known = Known::default();
        known.note(&path("d/a"), Seen::there(&attr(1)));
        list(&known, &path("d"), &listing(&["b"], 2));
        assert_eq!(of(&known, &path("d/a")), None);
        // A listing comes in parts, and only one of them has it.
        list(&known, &path("d"), &listing(&["a"], 3));
        list(&known, &path("d"), &listing(&["c"], 3));
        assert_eq!(of(&known, &path("d/a")), Some(Seen::there(&attr(3))));
    }

    /// The answers come in another order than the questions, and than what happened.
    #[test]
    fn an_answer_from_before_a_change_does_not_undo_it() {
        let known = Known::default();
        let asked = known.moment();
        known.note(&path("d/b"), Seen::there(&attr(2)));
        known.renamed(&path("d/b"), &path("d/a"));
        known.changed(&path("d/a"), AttrChange { perm: Some(0o600), ..AttrChange::default() });
        let now = Seen::there(&Attr { perm: 0o600, ..attr(2) });
        known.note_seen(&path("d/a"), Seen::there(&attr(1)), asked);
        assert_eq!(of(&known, &path("d/a")), Some(now));
        known.note_listing(&path("d"), &listing(&["a", "b"], 1), asked);
        assert_eq!(of(&known, &path("d/a")), Some(now));
        assert_eq!(of(&known, &path("d/b")), Some(Seen::Absent));
        // What was asked for since counts.
        known.note_seen(&path("d/a"), Seen::there(&attr(3)), known.moment());
        assert_eq!(of(&known, &path("d/a")), Some(Seen::there(&attr(3))));
    }

    /// A look at the old name, answered after the rename had happened, tells nothing of before it.
    #[test]
    fn what_a_rename_has_taken_away_was_there() {
        let known = Known::default();
        known.note(&path("d/a"), Seen::there(&attr(1)));
        let asked = known.moment();
        known.note_seen(&path("d/a"), Seen::Absent, asked);
        known.renamed(&path("d/a"), &path("d/b"));
        assert_eq!(of(&known, &path("d/b")), Some(Seen::there(&attr(1))));
        let asked = known.moment();
        known.note_seen(&path("d/x"), Seen::Absent, asked);
        known.renamed(&path("d"), &path("e"));
        assert_eq!(of(&known, &path("e/x")), None, "it may have gone with the directory");
    }

    #[test]
    fn names_that_were_linked_are_remembered() {
        let known = Known::default();
        known.linked(&path("d/a"), &path("d/b"));
        known.renamed(&path("d"), &path("e"));
        known.note(&path("e/a"), Seen::Absent);
        assert!(known.is_linked(&path("e/b")) && !known.is_linked(&path("e/a")));
        known.renamed(&path("x"), &path("e/b"));
        assert!(!known.is_linked(&path("e/b")), "another file has its name");
        for number in 0..MAX_LINKED {
            known.linked(&path("f"), &path(&format!("n{number}")));
        }
        assert_eq!(known.lock().linked.len(), MAX_LINKED);
    }

    #[test]
    fn both_parts_have_an_end() {
        let known = Known::default();
        for number in 0..MAX_NAMES + 10 {
            known.note(&path(&format!("n{number}")), Seen::Absent);
        }
        assert_eq!(of(&known, &path("n0")), None);
        assert_eq!(known.lock().notes.len(), MAX_NAMES);
        let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for number in 0..1000 {
            list(&known, &path(&format!("d{number}")), &listing(&names, 1));
        }
        assert!(known.lock().listed_bytes <= MAX_LISTED_BYTES);
        assert_eq!(of(&known, &path("d0/5")), None);
        assert!(of(&known, &path("d999/5")).is_some());
    }

    #[test]
    fn listings_are_bounded_in_bytes() {
        let known = Known::default();
        for number in 0..5_000 {
            let name = format!("{number:04}{}", "x".repeat(1_000));
            let name = base::Name::new(name.as_bytes()).unwrap();
            known.note_listing(&path("d"), &[DirEntry { name, attr: None }], known.moment());
        }
        let kept: usize = known.lock().listings.iter().map(|listed| listed.entries.len()).sum();
        assert!((1_000..=MAX_LISTED_BYTES / 1_000).contains(&kept), "{kept}");
    }
}
