//! Parses the text of a file into its mounts, and collects all its errors.
//!
//! A library parses TOML and records the position of each key and value. The keys are interpreted
//! here, so that one error does not hide the others.

use std::ops::Range;
use std::path::{Path, PathBuf};

use cli::{Problem, printable};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::{self, Entry, Setting};
use crate::mount::{command_line, suggestion};

/// A parsed file.
#[derive(Debug)]
pub(super) struct Document {
    pub path: PathBuf,
    /// Options of every mount.
    pub defaults: Vec<Setting>,
    /// The mounts in the order of the file.
    pub entries: Vec<Entry>,
    pub faults: Vec<Fault>,
}

impl Document {
    /// The directory to which relative paths in it are relative.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// The errors in one mount, or those in the defaults.
    pub fn faults_of(&self, mount: Option<&str>) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(move |fault| fault.mount.as_deref() == mount)
    }
}

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

    /// The message about the bytes of `span`: position and reason, the line with a mark below it,
    /// and a hint, if any.
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

/// A key with its value, both with their positions.
pub(super) type Pair<'t, 'i> = (&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>);

/// Interprets a file and collects its errors.
pub(super) struct Reader<'a> {
    pub text: Text<'a>,
    /// The directory for `~`.
    pub home: Option<&'a Path>,
    /// The current mount.
    pub mount: Option<String>,
    faults: Vec<(usize, Fault)>,
}

/// Parses a file.
pub(super) fn read(path: &Path, text: &str, home: Option<&Path>) -> Document {
    let mut reader = Reader { text: Text { path, text }, home, mount: None, faults: Vec::new() };
    let mut document = Document {
        path: path.to_owned(),
        defaults: Vec::new(),
        entries: Vec::new(),
        faults: Vec::new(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        reader.fault(span, error.message(), None);
    }
    // After a syntax error, further errors would be wrong.
    if errors.is_empty() {
        reader.root(table.get_ref(), &mut document);
    }
    reader.faults.sort_by_key(|(at, _)| *at);
    document.faults = reader.faults.into_iter().map(|(_, fault)| fault).collect();
    document
}

impl Reader<'_> {
    /// Adds an error.
    pub fn fault(&mut self, span: Range<usize>, why: &str, hint: Option<&str>) {
        let problem = self.text.problem(span.clone(), why, hint);
        self.faults.push((span.start, Fault { mount: self.mount.clone(), problem }));
    }

    /// The number of errors so far.
    pub fn faults_count(&self) -> usize {
        self.faults.len()
    }

    /// Adds an error that was reported as a [`Problem`].
    pub fn fault_of(&mut self, span: Range<usize>, problem: &Problem) {
        let said = problem.to_string();
        match said.split_once("\n  ") {
            Some((why, hint)) => self.fault(span, why, Some(hint)),
            None => self.fault(span, &said, None),
        }
    }

    /// Adds the error for an unknown key.
    pub fn unknown(&mut self, key: &Spanned<std::borrow::Cow<'_, str>>, known: &[&str]) {
        let name = key.get_ref();
        let hint = suggestion::nearest(name, known.iter().copied()).map_or_else(
            || format!("valid keys: {}", known.join(", ")),
            |meant| format!("did you mean '{meant}'?"),
        );
        self.fault(key.span(), &format!("no such key '{}'", printable(&**name)), Some(&hint));
    }

    fn root(&mut self, table: &DeTable<'_>, document: &mut Document) {
        for (key, value) in in_order(table) {
            match &**key.get_ref() {
                "defaults" => {
                    if let Some(table) = self.table(value) {
                        document.defaults = self.defaults(table);
                    }
                }
                "mount" => {
                    if let Some(mounts) = self.table(value) {
                        document.entries = self.mounts(mounts);
                    }
                }
                _ => self.unknown(key, &["defaults", "mount"]),
            }
        }
    }

    fn defaults(&mut self, table: &DeTable<'_>) -> Vec<Setting> {
        let mut settings = Vec::new();
        for (key, value) in in_order(table) {
            match &**key.get_ref() {
                "options" => settings = entry::options(self, value),
                _ => self.unknown(key, &["options"]),
            }
        }
        settings
    }

    fn mounts(&mut self, table: &DeTable<'_>) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (key, value) in in_order(table) {
            let name: &str = key.get_ref();
            self.mount = Some(name.to_owned());
            if !command_line::is_name(name.as_ref()) || name.contains(char::is_control) {
                let why =
                    "the name of a mount cannot contain ':', '/' or a space, or begin with '-'";
                self.fault(key.span(), why, None);
            } else if let Some(table) = self.table(value) {
                entries.push(entry::read(self, key, table));
            }
            self.mount = None;
        }
        entries
    }

    /// The value, if it is a table.
    pub fn table<'t, 'i>(&mut self, value: &'t Spanned<DeValue<'i>>) -> Option<&'t DeTable<'i>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.fault(value.span(), "must be a table", None);
                None
            }
        }
    }

    /// The value, if it is a string.
    pub fn string<'t>(&mut self, value: &'t Spanned<DeValue<'_>>) -> Option<&'t str> {
        match value.get_ref() {
            DeValue::String(text) if text.contains('\0') => {
                self.fault(value.span(), "contains a NUL byte", None);
                None
            }
            DeValue::String(text) => Some(text),
            _ => {
                self.fault(value.span(), "must be a string in quotes", None);
                None
            }
        }
    }

    /// The strings of an array, or a single string.
    pub fn strings<'t>(&mut self, value: &'t Spanned<DeValue<'_>>) -> Vec<(&'t str, Range<usize>)> {
        let items = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        items.into_iter().filter_map(|item| Some((self.string(item)?, item.span()))).collect()
    }
}

/// The pairs of a table in the order of the file.
pub(super) fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<Pair<'t, 'i>> {
    let mut pairs: Vec<Pair<'t, 'i>> = table.iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mistakes of a text without its file's name.
    fn faults(text: &str) -> Vec<String> {
        let document = read(Path::new("/c"), text, None);
        let faults = document.faults.iter().map(|fault| fault.problem.to_string());
        faults.map(|fault| fault.strip_prefix("/c:").unwrap().to_owned()).collect()
    }

    #[test]
    fn all_mistakes_are_told_in_their_order_each_with_its_place() {
        let text = "\
[defaults]
option = []
[mount.a]
mountpiont = '/x'
sources = ['h:/a=ro,rw', 'h:b', 7]
options = ['reconect', 'soft=no']
[mount.'b:c']
[mount.d]
sources = []
mountpoint = 'relative'
[mont.e]
";
        let all = faults(text);
        let expected = [
            "2:1: no such key 'option'\n  option = []\n  ^^^^^^\n  did you mean 'options'?",
            "4:1: no such key 'mountpiont'\n  mountpiont = '/x'\n  ^^^^^^^^^^\n  did you mean 'mountpoint'?",
            "5:12: source 'h:/a=ro,rw': contradictory branch modes\n  ",
            "5:33: a source must be a string in quotes or a table",
            "6:12: option 'reconect': no such option\n  options = ['reconect', 'soft=no']\n             ^^^^^^^^^^\n  did you mean 'reconnect'?",
            "6:24: option 'soft=no': needs a number of seconds, as in soft=20\n",
            "7:8: the name of a mount cannot contain ':'",
            "9:11: the list of sources is empty",
            "10:14: a mount point must be absolute or begin with ~/",
            "11:2: no such key 'mont'\n  [mont.e]\n   ^^^^\n  did you mean 'mount'?",
        ];
        for (got, expected) in all.iter().zip(expected) {
            assert!(got.starts_with(expected), "{got}\n--- instead of\n{expected}");
        }
        assert_eq!(all.len(), expected.len(), "{all:#?}");
    }

    #[test]
    fn a_broken_grammar_is_told_and_nothing_made_up() {
        let all = faults("[mount.a]\nsources = 'h:\noptions = [\n");
        assert!(!all.is_empty() && all[0].starts_with("2:"), "{all:?}");
        let twice = faults("[mount.a]\nsources='h:'\n[mount.a]\nsources='h:'\n");
        assert!(twice[0].starts_with("3:8: duplicate key\n"), "{twice:?}");
    }

    #[test]
    fn what_stands_in_a_file_reaches_no_terminal_raw() {
        for text in
            ["\"a\\u001b[2J\" = 1", "[mount.\"\\u001b[2J\"]", "[mount.a]\nsources='h\u{7f}:'"]
        {
            for fault in faults(text) {
                assert!(fault.chars().all(|char| char == '\n' || !char.is_control()), "{fault:?}");
            }
        }
    }

    #[test]
    fn sources_that_do_not_go_together_are_told_once() {
        let all =
            faults("[mount.a]\nsources = ['h:', 'h:=ro']\n[mount.b]\nsources = ['h:=optional']");
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].starts_with("2:11: source 'h:': the source is given twice"), "{all:?}");
        assert!(all[1].starts_with("4:11: source 'h:': the only source"), "{all:?}");
    }

    #[test]
    fn options_that_do_not_go_together_are_told_at_their_mount() {
        let all = faults("[mount.a]\nsources = 'h:'\noptions = ['allow_other', 'allow_root']");
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].starts_with("1:8: options 'allow_other' and 'allow_root': "), "{all:?}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\[(mount|defaults)(\\.[a-z'\"]{0,3})?\\]|sources|options|[a-z]{1,4}|=|'h:'|[\\[\\]{}'\",.\\n #0-9]){0,30}") {
            let _ = read(Path::new("/c"), &text, None);
        }
    }
}

#[cfg(test)]
mod position_tests {
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
