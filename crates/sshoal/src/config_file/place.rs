//! Positions in a file, and errors reported there.

use std::ops::Range;
use std::path::Path;

use cli::{Problem, printable};

/// An error in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The mount that contains it; `None` for the defaults and the file as a whole.
    pub mount: Option<String>,
    /// Position, reason, the line itself, and a hint.
    pub problem: Problem,
}

/// The text of a file, for finding lines in it.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl Text<'_> {
    /// Line and column, both from 1, of a byte.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        (line, before[line_start..].chars().count() + 1)
    }

    /// The message about the bytes of `span`: position and reason, the line with a mark below it, and a
    /// hint, if any.
    pub fn problem(&self, span: Range<usize>, why: &str, hint: Option<&str>) -> Problem {
        let (line, column) = self.position(span.start);
        let text = self.text.split('\n').nth(line - 1).unwrap_or_default().trim_end();
        // Each character must take one column, so that the mark is below it.
        let shown: String =
            text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        let width = self.text.get(span).map_or(1, |marked| {
            marked.split('\n').next().unwrap_or_default().trim_end().chars().count()
        });
        let indent = shown.chars().take_while(|char| *char == ' ').count().min(column - 1);
        let shown: String = shown.chars().skip(indent).collect();
        let mark = " ".repeat(column - 1 - indent) + &"^".repeat(width.max(1));
        let what = format!("{}:{line}:{column}", printable(self.path));
        let lines = [Some(shown.as_str()), Some(mark.as_str()), hint];
        let lines: Vec<&str> = lines.into_iter().flatten().collect();
        Problem::new(what, why).hint(lines.join("\n  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_with_its_line_and_a_mark() {
        let text = Text { path: Path::new("/c"), text: "a = 1\n\t\u{e4}b = \u{1b}'x'\r\nlast" };
        let at = |what: &str| {
            let start = text.text.find(what).unwrap();
            start..start + what.len()
        };
        let said = text.problem(at("'x'"), "why", Some("hint")).to_string();
        assert_eq!(said, "/c:2:8: why\n  \u{e4}b =  'x'\n        ^^^\n  hint");
        let said = text.problem(at("last"), "why", None).to_string();
        assert_eq!(said, "/c:3:1: why\n  last\n  ^^^^");
        let end = text.text.len();
        assert_eq!(text.problem(end..end, "why", None).to_string(), "/c:3:5: why\n  last\n      ^");
        assert_eq!(text.position(0), (1, 1));
    }
}
