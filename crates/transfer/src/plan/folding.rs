//! Names that some file systems do not distinguish: by case (macOS, Windows, vfat, ext4 with
//! casefold), by the form of accented letters (macOS), or by dots and blanks at the end (Windows,
//! vfat). Pure.
//!
//! Only the server knows whether its file system does so. This module finds the names to query:
//! those of a source that are not at the target, each with a surplus name of the target that may be
//! the same. Nothing is lost if it misses a pair: the directory is listed once more before anything
//! in it is deleted ([`crate::collisions`]). Letters are compared in lower case. Accents are not
//! composed here: two names that are equal up to their first letter outside of ASCII may be the
//! same if one has combining accents.

use std::collections::{HashMap, HashSet};

use base::{Attr, Name};

/// Names outside of ASCII that are paired for one name, at most.
const FORMS_MAX: usize = 16;

/// Pairs of names that may be one.
#[derive(Debug, Default)]
pub(super) struct Folding {
    /// A surplus name of the target, a name of the source, and what the source has there.
    pairs: Vec<(Name, Name, Attr)>,
}

impl Folding {
    /// The pairs of surplus names and names that the source has listed, in the order of names.
    pub(super) fn new(surplus: &[Name], listed: &[(Name, Attr)]) -> Folding {
        if surplus.is_empty() {
            return Folding::default();
        }
        let mut by_key: HashMap<Vec<u8>, Vec<&(Name, Attr)>> = HashMap::new();
        for entry in listed {
            by_key.entry(key(&entry.0)).or_default().push(entry);
        }
        let of = |name: &Name| by_key.get(&key(name)).map_or(&[][..], Vec::as_slice);
        let mut pairs = Vec::new();
        for name in surplus {
            let may_be = |entry: &&&(Name, Attr)| may_be_one(name, &entry.0);
            let entries = of(name).iter().filter(may_be).take(FORMS_MAX);
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
        self.pairs.iter().find(|(other, _, _)| other == surplus).map(|(_, _, attr)| *attr)
    }
}

/// Whether two of these names collide on some file systems.
pub(crate) fn may_collide<'a>(names: impl Iterator<Item = &'a Name>) -> bool {
    let mut by_key: HashMap<Vec<u8>, (HashSet<String>, [bool; 2])> = HashMap::new();
    for name in names {
        let Ok(text) = std::str::from_utf8(name.as_bytes()) else { continue };
        let (folded, is_accented) = (folded(text), text.chars().any(is_accent));
        let (others, has) = by_key.entry(key(name)).or_default();
        has[usize::from(is_accented)] = true;
        if !others.insert(folded) || *has == [true; 2] {
            return true;
        }
    }
    false
}

/// A name in lower case, without the dots and blanks at its end that some systems ignore.
fn folded(text: &str) -> String {
    text.trim_end_matches(['.', ' ']).to_lowercase().replace('\u{df}', "ss")
}

/// What names have in common that may be one: what is before the first letter outside of ASCII, and
/// before the letter that an accent behind it belongs to.
fn key(name: &Name) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name.as_bytes()) else { return name.as_bytes().to_vec() };
    let lower = folded(text);
    let ascii = lower.bytes().take_while(u8::is_ascii).count();
    let mut key = lower.as_bytes()[..ascii].to_vec();
    if let Some(first) = lower[ascii..].chars().next() {
        if is_accent(first) {
            key.pop();
        }
        key.push(0xff);
    }
    key
}

/// Whether two names of one key may be one.
fn may_be_one(a: &Name, b: &Name) -> bool {
    let texts = (std::str::from_utf8(a.as_bytes()), std::str::from_utf8(b.as_bytes()));
    let (Ok(a), Ok(b)) = texts else { return false };
    let has_accents = |text: &str| text.chars().any(is_accent);
    has_accents(a) != has_accents(b) || folded(a) == folded(b)
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
}
