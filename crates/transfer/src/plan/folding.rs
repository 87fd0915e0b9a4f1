//! Names that some file systems do not distinguish: by case (macOS, Windows, vfat, ext4 with
//! casefold), by the form of accented letters (macOS), or by dots and blanks at the end (Windows,
//! vfat). Pure.
//!
//! Only the server knows whether its file system does so. This module finds the names to query:
//! those of a source that are not at the target, each with a surplus name of the target that may be
//! the same. Nothing is lost if it misses a pair: the directory is listed once more before anything
//! in it is deleted ([`crate::collisions`]). Letters are compared in lower case. Accents are not
//! composed here: two names that are equal up to their first letter outside of ASCII may be the
//! same if one has combining accents. The work is proportional to the number of names: a directory
//! may have very many that begin with such a letter.

use std::collections::{HashMap, HashSet};

use base::{Attr, Name};

/// Names outside of ASCII that are paired for one name, at most.
const FORMS_MAX: usize = 16;

/// Pairs of names that may be one.
#[derive(Debug, Default)]
pub(super) struct Folding {
    /// A surplus name of the target, a name of the source, and what the source has there; in the
    /// order of surplus names.
    pairs: Vec<(Name, Name, Attr)>,
}

impl Folding {
    /// The pairs of surplus names and names that the source has listed, both in the order of names.
    pub(super) fn new(surplus: &[Name], listed: &[(Name, Attr)]) -> Folding {
        if surplus.is_empty() {
            return Folding::default();
        }
        let mut by_folded: HashMap<String, Vec<&(Name, Attr)>> = HashMap::new();
        let mut by_form: HashMap<Form, Vec<&(Name, Attr)>> = HashMap::new();
        for entry in listed {
            let Some(folded) = folded(&entry.0) else { continue };
            if let Some(form) = Form::of(&folded) {
                let entries = by_form.entry(form).or_default();
                if entries.len() < FORMS_MAX {
                    entries.push(entry);
                }
            }
            by_folded.entry(folded).or_default().push(entry);
        }
        let mut pairs = Vec::new();
        for name in surplus {
            let Some(folded) = folded(name) else { continue };
            let other = Form::of(&folded).map(Form::other);
            let others = other.and_then(|other| by_form.get(&other));
            let entries = by_folded.get(&folded).into_iter().chain(others).flatten();
            let entries = entries.take(FORMS_MAX);
            pairs.extend(entries.map(|(other, attr)| (name.clone(), other.clone(), *attr)));
        }
        Folding { pairs }
    }

    /// Each surplus name with a name of the source.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.pairs.iter().map(|(surplus, name, _)| (surplus, name))
    }

    /// What the source has listed that may be called `surplus` too.
    pub(super) fn alias(&self, surplus: &Name) -> Option<Attr> {
        let at = self.pairs.partition_point(|(other, _, _)| other < surplus);
        self.pairs.get(at).filter(|(other, _, _)| other == surplus).map(|(_, _, attr)| *attr)
    }
}

/// Whether two of these names collide on some file systems.
pub(crate) fn may_collide<'a>(names: impl Iterator<Item = &'a Name>) -> bool {
    let (mut by_folded, mut by_form) = (HashSet::new(), HashSet::new());
    for folded in names.filter_map(folded) {
        if let Some(form) = Form::of(&folded) {
            by_form.insert(form.clone());
            if by_form.contains(&form.other()) {
                return true;
            }
        }
        if !by_folded.insert(folded) {
            return true;
        }
    }
    false
}

/// A name in lower case, without the dots and blanks at its end that some systems ignore; `None` if
/// it is not UTF-8.
fn folded(name: &Name) -> Option<String> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    Some(text.trim_end_matches(['.', ' ']).to_lowercase().replace('\u{df}', "ss"))
}

/// What is compared of names with letters outside of ASCII. Two names may be one if they have the
/// same beginning, and only one of them has combining accents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// What is before the first letter outside of ASCII, and before the letter that an accent
    /// behind it belongs to.
    begin: String,
    has_accents: bool,
}

impl Form {
    /// The form of a folded name; `None` if it is ASCII.
    fn of(folded: &str) -> Option<Form> {
        let at = folded.bytes().position(|byte| !byte.is_ascii())?;
        let (begin, rest) = folded.split_at(at);
        let mut begin = begin.to_owned();
        if rest.starts_with(is_accent) {
            begin.pop();
        }
        Some(Form { begin, has_accents: rest.contains(is_accent) })
    }

    /// That of the names that may be one with those of this form.
    fn other(self) -> Form {
        Form { has_accents: !self.has_accents, ..self }
    }
}

/// Whether it is composed with the letter before it where names are: an accent of Latin, Greek and
/// Cyrillic, a mark of Japanese, a part of a Korean syllable.
fn is_accent(letter: char) -> bool {
    matches!(letter, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}' | '\u{1100}'..='\u{11ff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, Timestamp};

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn paired(surplus: &[&str], listed: &[&str]) -> Vec<(String, String)> {
        let time = Timestamp::from_secs(1);
        let kind = FileKind::Regular;
        let attr =
            Attr { kind, perm: 0, size: 0, uid: 0, gid: 0, atime: time, mtime: time, inode: None };
        let surplus: Vec<Name> = surplus.iter().map(|it| name(it)).collect();
        let listed: Vec<_> = listed.iter().map(|it| (name(it), attr)).collect();
        let folding = Folding::new(&surplus, &listed);
        folding.pairs().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn names_that_differ_by_case_or_form_are_pairs() {
        for (a, b) in [
            ("Readme", "README"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("CAF\u{c9}", "cafe\u{301}"),
            ("\u{c4}rger", "a\u{308}rger"),
            ("\u{c4}RGER", "\u{e4}rger"),
            ("\u{ac00}", "\u{1100}\u{1161}"),
            ("stra\u{df}e", "STRASSE"),
            ("name. ", "Name"),
        ] {
            assert_eq!(paired(&[a], &[b]).len(), 1, "{a} {b}");
            assert_eq!(paired(&[b], &[a]).len(), 1, "{b} {a}");
            assert!(may_collide([a, "other", b].map(name).iter()), "{a} {b}");
        }
    }

    #[test]
    fn other_names_are_none() {
        for (a, b) in [
            ("a", "b"),
            ("a", "ab"),
            ("x\u{e9}", "y\u{e9}"),
            ("a", "\u{e4}"),
            ("\u{6771}", "\u{4eac}"),
        ] {
            assert!(paired(&[a], &[b]).is_empty(), "{a} {b}");
            assert!(!may_collide([a, "other", b].map(name).iter()), "{a} {b}");
        }
        assert!(paired(&[], &["a"]).is_empty());
    }

    /// Comparing each with each would take minutes.
    #[test]
    fn many_names_that_begin_with_a_letter_outside_of_ascii_are_paired() {
        let names = |end| (10_000..30_000).map(move |it| format!("\u{437}\u{430}{it}{end}"));
        let (surplus, listed): (Vec<_>, Vec<_>) = (names("a").collect(), names("A").collect());
        let [surplus, listed] = [&surplus, &listed].map(|it| it.iter().map(String::as_str));
        let (surplus, listed): (Vec<_>, Vec<_>) = (surplus.collect(), listed.collect());
        let pairs = paired(&surplus, &listed);
        assert_eq!(pairs.len(), 20_000);
        assert!(pairs.iter().all(|(a, b)| a.to_uppercase() == b.to_uppercase()));
        let names = surplus.iter().map(|it| name(it)).collect::<Vec<_>>();
        assert!(!may_collide(names.iter()));
    }
}
