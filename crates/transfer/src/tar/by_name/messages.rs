//! Messages of the server's tar: which entries it names, and why.

use std::collections::HashMap;

use base::RemotePath;

use crate::outcome::{Fault, Problem};
use crate::tar::script::WENT_ON;

/// The messages of one stream.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The first message of each entry, escaped for a terminal.
    reasons: HashMap<Vec<u8>, String>,
    /// Whether each message is of an entry, and the last one says that tar has gone on to the end.
    name_all: bool,
}

impl Messages {
    /// Parses lines such as `tar: ./NAME: REASON`. The name is printed as it is, so one with a colon
    /// may be parsed as another name: see [`Messages::name_only`].
    pub(super) fn parse(text: &[u8]) -> Messages {
        let mut messages = Messages::default();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        let went_on = lines.pop_if(|last| last.ends_with(WENT_ON.as_bytes())).is_some();
        messages.name_all = went_on && !lines.is_empty();
        for line in lines {
            match entry(line) {
                Some((name, reason)) => {
                    // An odd time is no failure.
                    let is_warning = ["time stamp ", "implausibly old time stamp "]
                        .iter()
                        .any(|start| reason.starts_with(start));
                    if !is_warning {
                        messages.reasons.entry(name).or_insert(reason);
                    }
                }
                None => messages.name_all = false,
            }
        }
        messages
    }

    /// Whether all entries that are not named were copied. Not if one is named that is none of
    /// `sent`: the message may be of any entry.
    pub(super) fn name_only<'a>(&self, sent: impl Iterator<Item = &'a RemotePath>) -> bool {
        let named = sent.filter(|path| self.has(path)).count();
        self.name_all && named == self.reasons.len()
    }

    /// Whether the entry is named.
    pub(super) fn has(&self, path: &RemotePath) -> bool {
        self.reasons.contains_key(path.as_bytes())
    }

    /// The problem of the entry that tar knows as `path`, and the user as `name`.
    pub(super) fn problem(&self, path: &RemotePath, name: &RemotePath) -> Option<Problem> {
        let reason = self.reasons.get(path.as_bytes())?;
        let words = format!("not copied by the server's tar: {reason}");
        Some(Fault::Other { words }.of(name))
    }
}

/// The path of the entry that the message is of, and the reason.
fn entry(line: &[u8]) -> Option<(Vec<u8>, String)> {
    // The program may have been started by a path.
    let start = line.windows(7).position(|it| it == b"tar: ./")?;
    let rest = &line[start + 7..];
    let colon = rest.windows(2).rposition(|it| it == b": ")?;
    let (mut name, mut reason) = (&rest[..colon], &rest[colon + 2..]);
    // `NAME: Cannot open: Permission denied`. Other messages have one colon.
    if let Some(before) = name.windows(9).rposition(|it| it == b": Cannot ") {
        (name, reason) = (&rest[..before], &rest[before + 2..]);
    }
    let name = name.strip_suffix(b"/").unwrap_or(name).to_vec();
    Some((name, reason.escape_ascii().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    const WENT_ON_LINE: &[u8] = b"tar: Exiting with failure status due to previous errors\n";

    fn parse(lines: &[u8]) -> Messages {
        Messages::parse(&[lines, WENT_ON_LINE].concat())
    }

    #[test]
    fn entries_are_named_with_reasons() {
        let messages = parse(
            b"tar: ./d/a b: Cannot open: Permission denied\n\
              tar: ./x: y: Cannot mkdir: Read-only file system\n\
              tar: ./a\\x2db\xc3\xa4\\: Wrote only 512 of 10240 bytes\n\
              tar: ./late: time stamp 2030-01-01 00:00:00 is 1.5 s in the future\n",
        );
        assert!(messages.name_all);
        let reason = |name: &str| {
            messages.problem(&path(name), &path("n")).map(|problem| problem.to_string())
        };
        let told = |reason: &str| Some(format!("n: not copied by the server's tar: {reason}"));
        assert_eq!(reason("d/a b"), told("Cannot open: Permission denied"));
        assert_eq!(reason("x: y"), told("Cannot mkdir: Read-only file system"));
        assert_eq!(reason("a\\x2db\u{e4}\\"), told("Wrote only 512 of 10240 bytes"));
        assert_eq!((reason("late"), reason("d")), (None, None));
    }

    #[test]
    fn a_message_of_another_entry_may_be_of_any() {
        let sent = ["a", "b: Cannot time stamp 1", "c"].map(path);
        let name_only = |line: &[u8]| parse(line).name_only(sent.iter());
        assert!(name_only(b"tar: ./a: Wrote only 512 of 10240 bytes\n"));
        assert!(name_only(b"tar: ./c: time stamp 2030-01-01 00:00:00 is 1.5 s in the future\n"));
        assert!(!name_only(b"tar: ./d: Wrote only 512 of 10240 bytes\n"));
        assert!(!name_only(b"tar: ./b: Cannot time stamp 1: Wrote only 512 of 10240 bytes\n"));
    }

    #[test]
    fn messages_of_no_entry_are_not_understood() {
        for other in [
            &b"tar: Unexpected EOF in archive\n"[..],
            b"tar: ./a: Cannot open: Permission denied\ngzip: stdin: unexpected end of file\n",
            b"rest of a line\ntar: ./a: Cannot open: Permission denied\n",
            b"./b\ntar: ./a: Cannot open: Permission denied\n",
            b"",
        ] {
            assert!(!parse(other).name_all, "{}", other.escape_ascii());
        }
        assert!(!Messages::parse(b"tar: ./a: Cannot open: Permission denied\n").name_all);
        assert!(!Messages::parse(b"").name_all);
    }
}
