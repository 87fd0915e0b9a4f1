//! Which subject has which colour: the same on the whole page, and sshoal's the same on all pages.

use std::collections::HashMap;

use crate::plan::is_ours;
use crate::results::{Results, SubjectInfo};

/// Colours besides sshoal's and the yardsticks'; more subjects share them, and differ by name and
/// by dashes.
const PEERS: usize = 6;

/// Kinds of dashes of lines.
const DASHES: usize = 4;

/// Classes of subjects, for the style sheet.
pub(in crate::report) struct Palette<'a> {
    classes: HashMap<&'a str, String>,
}

impl<'a> Palette<'a> {
    /// For the subjects of a run.
    pub(in crate::report) fn of(results: &'a Results) -> Palette<'a> {
        let mut classes = HashMap::new();
        let (mut peers, mut lines) = (0, 0);
        for subject in results.subjects.iter().filter(|subject| subject.control_of.is_none()) {
            let tone = tone(subject, &mut peers);
            classes.insert(subject.name.as_str(), format!("{tone} dash{}", lines % DASHES));
            lines += 1;
        }
        for subject in &results.subjects {
            let Some(original) = &subject.control_of else { continue };
            let tone = classes.get(original.as_str()).cloned().unwrap_or_default();
            classes.insert(subject.name.as_str(), format!("{tone} control"));
        }
        Palette { classes }
    }

    /// The classes of a subject.
    pub(in crate::report) fn class(&self, subject: &str) -> &str {
        self.classes.get(subject).map_or("yardstick", String::as_str)
    }
}

fn tone(subject: &SubjectInfo, peers: &mut usize) -> String {
    if subject.name == "sshoal" {
        return "ours".to_owned();
    }
    if is_ours(&subject.name) {
        return "ours variant".to_owned();
    }
    if matches!(subject.kind.as_str(), "floor" | "local") {
        return "yardstick".to_owned();
    }
    *peers += 1;
    format!("peer{}", (*peers - 1) % PEERS + 1)
}
