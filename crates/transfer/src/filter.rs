//! Which entries are excluded.
//!
//! Patterns are those of gitignore: a pattern with a `/` at its beginning or in its middle is
//! anchored at the top of the copy, one without is matched at any depth, `**` spans directories,
//! and a `/` at the end makes it match directories only. As in rsync the **first** rule that
//! matches decides, and the contents of an excluded directory are never listed.
//!
//! The top of the copy is the target: a source without a trailing slash begins with its own name.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::RemotePath;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pattern \"{pattern}\" cannot be understood: {why}; see \"Patterns\" in docs/transfer.md"
)]
pub struct PatternError {
    /// As the user gave it.
    pub pattern: String,
    /// The library's words.
    pub why: String,
}

/// Rules in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub struct FilterBuilder(Vec<(bool, String)>);

impl FilterBuilder {
    /// What matches is left out, unless an earlier rule includes it.
    pub fn exclude(&mut self, pattern: &str) -> &mut FilterBuilder {
        self.0.push((true, pattern.to_owned()));
        self
    }

    /// What matches is copied, unless an earlier rule excludes it.
    pub fn include(&mut self, pattern: &str) -> &mut FilterBuilder {
        self.0.push((false, pattern.to_owned()));
        self
    }

    /// The lines of a file as further rules: `#` begins a comment, `!` or `+ ` an include, `- ` an
    /// exclude, which is what a line is without any of them.
    pub fn lines(&mut self, text: &str) -> &mut FilterBuilder {
        for line in text.lines() {
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match (line.strip_prefix("+ ").or(line.strip_prefix('!')), line.strip_prefix("- ")) {
                (Some(pattern), _) => self.include(pattern),
                (None, Some(pattern)) => self.exclude(pattern),
                (None, None) => self.exclude(line),
            };
        }
        self
    }

    /// The filter.
    ///
    /// # Errors
    /// At the first pattern that is none.
    pub fn build(&self) -> Result<Filter, PatternError> {
        if self.0.is_empty() {
            return Ok(Filter::default());
        }
        let told = |pattern: &str, error: ignore::Error| PatternError {
            pattern: pattern.escape_default().to_string(),
            why: error.to_string(),
        };
        let mut builder = GitignoreBuilder::new("");
        // The library lets the last one decide.
        for (exclude, pattern) in self.0.iter().rev() {
            let refused = |why: &str| PatternError {
                pattern: pattern.escape_default().to_string(),
                why: why.to_owned(),
            };
            let translated = translated(pattern).map_err(refused)?;
            let line = match exclude {
                true => escaped(&translated),
                false => format!("!{translated}"),
            };
            builder.add_line(None, &line).map_err(|error| told(pattern, error))?;
        }
        let rules = builder.build().map_err(|error| told("", error))?;
        Ok(Filter { rules: Some(rules), renamed: None })
    }
}

/// A pattern of git as one of the library, which knows neither classes (`[[:digit:]]`) nor a `\\`
/// in a set, and for which `**` within a name leads into directories.
fn translated(pattern: &str) -> Result<String, &'static str> {
    let mut out = String::new();
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => {
                out.push('\\');
                out.extend(rest.next());
            }
            '*' => {
                let more = rest.as_str().trim_start_matches('*');
                let is_alone = rest.as_str().len() == more.len();
                let is_name = (out.is_empty() || out.ends_with('/'))
                    && (more.is_empty() || more.starts_with('/'));
                out.push_str(if is_alone || !is_name { "*" } else { "**" });
                rest = more.chars();
            }
            '[' => {
                let (set, behind) = Set::parse(rest.as_str())?;
                set.write(&mut out);
                rest = behind.chars();
            }
            next => out.push(next),
        }
    }
    Ok(out)
}

/// A set of characters: `[a-z]`.
struct Set {
    is_negated: bool,
    /// First and last characters.
    ranges: Vec<(char, char)>,
}

/// The classes of POSIX, in ASCII, as git has them.
const CLASSES: [(&str, &[(char, char)]); 12] = [
    ("alnum", &[('0', '9'), ('A', 'Z'), ('a', 'z')]),
    ("alpha", &[('A', 'Z'), ('a', 'z')]),
    ("blank", &[(' ', ' '), ('\t', '\t')]),
    ("cntrl", &[('\0', '\x1f'), ('\x7f', '\x7f')]),
    ("digit", &[('0', '9')]),
    ("graph", &[('!', '~')]),
    ("lower", &[('a', 'z')]),
    ("print", &[(' ', '~')]),
    ("punct", &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')]),
    ("space", &[(' ', ' '), ('\t', '\r')]),
    ("upper", &[('A', 'Z')]),
    ("xdigit", &[('0', '9'), ('A', 'F'), ('a', 'f')]),
];

impl Set {
    /// The set that begins behind a `[`, and what follows it.
    fn parse(text: &str) -> Result<(Set, &str), &'static str> {
        const OPEN: &str = "a [ has no ]; a name with a [ in it is written \\[";
        let body = text.strip_prefix(['!', '^']).unwrap_or(text);
        let mut set = Set { is_negated: body.len() < text.len(), ranges: Vec::new() };
        let mut chars = body.chars();
        let mut is_first = true;
        loop {
            let mut next = chars.next().ok_or(OPEN)?;
            if next == ']' && !is_first {
                return Ok((set, chars.as_str()));
            }
            is_first = false;
            if next == '['
                && let Some(class) = chars.as_str().strip_prefix(':')
                && let Some((name, behind)) = class.split_once(":]")
            {
                let known = CLASSES.iter().find(|(known, _)| *known == name);
                set.ranges.extend(known.ok_or("there is no such class of characters")?.1);
                chars = behind.chars();
                continue;
            }
            if next == '\\' {
                next = chars.next().ok_or(OPEN)?;
            }
            let mut last = next;
            if let Some(behind) = chars.as_str().strip_prefix('-')
                && !behind.starts_with(']')
            {
                chars = behind.chars();
                last = chars.next().ok_or(OPEN)?;
                if last == '\\' {
                    last = chars.next().ok_or(OPEN)?;
                }
            }
            if next > last {
                return Err("a range of characters ends before its beginning");
            }
            set.add(next, last);
        }
    }

    /// Adds a range. The characters that are special in the library's sets become ranges of their
    /// own.
    fn add(&mut self, mut first: char, mut last: char) {
        for (special, before, behind) in [('-', ',', '.'), (']', '\\', '^')] {
            if first == special || last == special {
                self.ranges.push((special, special));
            }
            if first == special {
                first = behind;
            }
            if last == special {
                last = before;
            }
        }
        if first <= last {
            self.ranges.push((first, last));
        }
    }

    /// Adds the set as the library has it: there, a `]` is the first character, and a `-` the last.
    fn write(&self, out: &mut String) {
        let is_special = |range: &(char, char)| matches!(range, (']', ']') | ('-', '-'));
        out.push_str(if self.is_negated { "[!" } else { "[" });
        let has = |special: char| self.ranges.contains(&(special, special));
        if has(']') {
            out.push(']');
        }
        if !has(']') {
            // What no name contains, so that the set is not empty, and no `!` is its first
            // character.
            out.push('\0');
        }
        for (first, last) in self.ranges.iter().filter(|range| !is_special(range)) {
            out.push(*first);
            if first != last {
                out.extend(['-', *last]);
            }
        }
        if has('-') {
            out.push('-');
        }
        out.push(']');
    }
}

/// A pattern of which the first character is not taken for a comment or an include.
fn escaped(pattern: &str) -> String {
    match pattern.starts_with(['#', '!']) {
        true => format!("\\{pattern}"),
        false => pattern.to_owned(),
    }
}

/// What is left out. [`Filter::default`] leaves nothing out.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Option<Gitignore>,
    /// A name below the target, and the name that the rules see instead of it.
    renamed: Option<(RemotePath, RemotePath)>,
}

impl Filter {
    /// A builder without rules.
    pub fn builder() -> FilterBuilder {
        FilterBuilder::default()
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.rules.is_none()
    }

    /// The same rules for a copy in which a source has the name `to`. They match its own name.
    pub(crate) fn for_renamed(&self, to: &RemotePath, name: &RemotePath) -> Filter {
        let renamed = (to != name).then(|| (to.clone(), name.clone()));
        Filter { rules: self.rules.clone(), renamed }
    }

    /// Whether `name`, relative to the target, is left out by itself. To be asked of each
    /// directory on the way to it too.
    pub fn excludes(&self, name: &RemotePath, is_dir: bool) -> bool {
        let Some(rules) = &self.rules else {
            return false;
        };
        let own = self.renamed.as_ref().and_then(|(to, own)| name.moved(to, own));
        let name = own.as_ref().unwrap_or(name);
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        !name.is_root() && rules.matched(path, is_dir).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    fn excluded(filter: &Filter, names: &[&str]) -> Vec<bool> {
        let is_dir = |name: &str| name.ends_with('/');
        let plain = |name: &str| path(name.trim_end_matches('/'));
        names.iter().map(|name| filter.excludes(&plain(name), is_dir(name))).collect()
    }

    /// As `git check-ignore` decides.
    #[test]
    fn sets_and_asterisks_are_those_of_git() {
        let names =
            ["-", "1", "]", "a", "a]", "b", "c", "x", "^", "ab/ab/foo", "ab/foo", "q/r/foo"];
        for (pattern, expected) in [
            ("[[:alpha:]]", &["a", "b", "c", "x"][..]),
            ("[[:digit:]x]", &["1", "x"]),
            ("[^[:alnum:]-]", &["]", "^"]),
            ("[b\\-c]", &["-", "b", "c"]),
            ("[\\]a]", &["]", "a"]),
            ("[]a]", &["]", "a"]),
            ("[!]a]", &["-", "1", "b", "c", "x", "^"]),
            ("[\\^]", &["^"]),
            ("[a-b-]", &["-", "a", "b"]),
            ("[--9]", &["-", "1"]),
            ("[]-a]", &["]", "a", "^"]),
            ("[Z-\\]]", &["]"]),
            ("[+--]", &["-"]),
            ("a**/foo", &["ab/foo"]),
            ("**/foo", &["ab/ab/foo", "ab/foo", "q/r/foo"]),
            ("q/**", &["q/r/foo"]),
            ("q/**/foo", &["q/r/foo"]),
            ("a***", &["a", "a]"]),
        ] {
            let filter = Filter::builder().exclude(pattern).build().unwrap();
            let found: Vec<&str> =
                names.iter().filter(|name| filter.excludes(&path(name), false)).copied().collect();
            assert_eq!(found, expected, "{pattern}");
        }
        for pattern in ["[[:letter:]]", "[[:alpha:]", "[a\\]"] {
            Filter::builder().exclude(pattern).build().unwrap_err();
        }
    }

    #[test]
    fn rules_match_the_name_of_a_source_and_not_its_new_one() {
        let filter = Filter::builder().exclude(".*").exclude("/proj/build").build().unwrap();
        let filter = filter.for_renamed(&path(".stage"), &path("proj"));
        for (name, excluded) in [
            (".stage", false),
            (".stage/f", false),
            (".stage/build", true),
            (".stage/.hidden", true),
            (".other", true),
        ] {
            assert_eq!(filter.excludes(&path(name), true), excluded, "{name}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mut rules = Filter::builder();
        rules.include("keep.o").exclude("*.o").include("late.o");
        let filter = rules.build().unwrap();
        let names = ["a.o", "x/y/a.o", "keep.o", "x/keep.o", "late.o", "a.c"];
        assert_eq!(excluded(&filter, &names), [true, true, false, false, true, false]);
    }

    #[test]
    fn a_slash_anchors_and_one_at_the_end_means_directories() {
        let mut rules = Filter::builder();
        rules.exclude("/top").exclude("build/").exclude("a/b").exclude("#odd").exclude("!odd");
        let filter = rules.build().unwrap();
        let names = ["top", "x/top", "build", "build/", "x/build/", "a/b", "x/a/b", "#odd", "!odd"];
        let expected = [true, false, false, true, true, true, false, true, true];
        assert_eq!(excluded(&filter, &names), expected);
    }

    #[test]
    fn lines_of_a_file_are_rules() {
        let mut rules = Filter::builder();
        rules.lines("# objects\n\n+ keep.o\n!kept.o\n- *.o\r\n*.tmp\n");
        let filter = rules.build().unwrap();
        let names = ["keep.o", "kept.o", "a.o", "a.tmp", "# objects"];
        assert_eq!(excluded(&filter, &names), [false, false, true, true, false]);
    }

    #[test]
    fn names_that_are_no_text_match_too() {
        let mut rules = Filter::builder();
        rules.exclude("*.o");
        let name = RemotePath::parse(b"\xff\xfe.o").unwrap();
        assert!(rules.build().unwrap().excludes(&name, false));
    }

    #[test]
    fn a_bad_pattern_is_told() {
        let mut rules = Filter::builder();
        let error = rules.exclude("[z-a]").build().unwrap_err();
        assert_eq!(error.pattern, "[z-a]");
        assert!(error.to_string().contains("docs/transfer.md"), "{error}");
    }

    #[test]
    fn a_set_that_does_not_end_is_told() {
        for bad in ["a[", "[", "[!", "[]", "x[a-z", "[ab]/[c", "[\\]", "[!]"] {
            let error = Filter::builder().exclude(bad).build().unwrap_err();
            assert!(error.why.contains("no ]"), "{bad}: {error}");
        }
        for good in ["\\[", "[a]", "[]]", "[!]]", "[^]a]", "a]", "[\\]]", "[a][b]"] {
            assert!(Filter::builder().exclude(good).build().is_ok(), "{good}");
        }
    }
}
