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
            if has_open_class(pattern) {
                let why = "a [ has no ]; a name with a [ in it is written \\[".to_owned();
                return Err(PatternError { pattern: pattern.escape_default().to_string(), why });
            }
            let line = match exclude {
                true => escaped(pattern),
                false => format!("!{pattern}"),
            };
            builder.add_line(None, &line).map_err(|error| told(pattern, error))?;
        }
        let rules = builder.build().map_err(|error| told("", error))?;
        Ok(Filter(Some(rules)))
    }
}

/// Whether a set of characters begins that does not end. The library takes it for the character,
/// git for what matches nothing; who writes it has meant something else.
fn has_open_class(pattern: &str) -> bool {
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => drop(rest.next()),
            '[' => {
                let set = rest.as_str();
                let set = set.strip_prefix(['!', '^']).unwrap_or(set);
                // At the beginning of a set it is one of its characters.
                let set = set.strip_prefix(']').unwrap_or(set);
                let Some(end) = end_of_set(set) else { return true };
                rest = set[end..].chars();
            }
            _ => {}
        }
    }
    false
}

/// Where a set ends, behind its `]`.
fn end_of_set(set: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, next) in set.char_indices() {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => return Some(at + 1),
            _ => {}
        }
    }
    None
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
pub struct Filter(Option<Gitignore>);

impl Filter {
    /// A builder without rules.
    pub fn builder() -> FilterBuilder {
        FilterBuilder::default()
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether `name`, relative to the target, is left out by itself. To be asked of each
    /// directory on the way to it too.
    pub fn excludes(&self, name: &RemotePath, is_dir: bool) -> bool {
        let Some(rules) = &self.0 else {
            return false;
        };
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
