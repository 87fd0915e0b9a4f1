//! Prints the effective settings of a mount with their origins, in the format of the file.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use cli::printable;

use super::document::Document;
use super::entry::{Entry, Setting, quoted};
use crate::sources::{BranchWord, SourceSpec, name_of};

/// The column of comments, unless a line is longer.
const COMMENT_COLUMN: usize = 44;

/// The text of one mount. `settings` are its effective options, with their file and whether they
/// are defaults there.
pub(super) fn mount(
    document: &Document,
    entry: &Entry,
    settings: &[(&Document, &Setting, bool)],
) -> String {
    let mut text = String::new();
    let place = |document: &Document, line: usize| format!("{}:{line}", printable(&document.path));
    let header = match entry.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)) {
        true => format!("[mount.{}]", entry.name),
        false => format!("[mount.{}]", quoted(OsStr::new(&entry.name))),
    };
    line(&mut text, &header, &place(document, entry.line));
    if let Some((path, at)) = &entry.mountpoint {
        let value = format!("mountpoint = {}", quoted(path.as_os_str()));
        line(&mut text, &value, &place(document, *at));
    }
    text.push_str("sources = [\n");
    for (source, at) in &entry.sources {
        line(&mut text, &format!("    {},", value(source)), &place(document, *at));
    }
    text.push_str("]\n");
    if !settings.is_empty() {
        text.push_str("options = [\n");
        for (from, setting, is_default) in settings {
            let Some(word) = &setting.word else { continue };
            let origin = place(from, setting.line);
            let origin = if *is_default { format!("{origin} (defaults)") } else { origin };
            line(&mut text, &format!("    {},", quoted(&escaped(word))), &origin);
        }
        text.push_str("]\n");
    }
    text
}

fn line(text: &mut String, value: &str, comment: &str) {
    let _ = writeln!(text, "{value:<COMMENT_COLUMN$} # {comment}");
}

/// A source as one word; with keywords of ssh of its own, as a table.
fn value(source: &SourceSpec) -> String {
    let word = word(source);
    if source.ssh_arguments.is_empty() {
        return quoted(&word);
    }
    let keywords = source.ssh_arguments.iter().map(|argument| {
        let bytes = argument.as_bytes();
        quoted(OsStr::from_bytes(bytes.strip_prefix(b"-o").unwrap_or(bytes)))
    });
    let keywords: Vec<String> = keywords.collect();
    format!("{{ source = {}, ssh = [{}] }}", quoted(&word), keywords.join(", "))
}

/// The source as a word of a command line.
fn word(source: &SourceSpec) -> OsString {
    let mut said = Vec::new();
    if source.is_branch {
        said.push(BranchWord::Mode(source.mode));
        said.push(BranchWord::Presence(source.presence));
    }
    said.extend(source.pool.map(BranchWord::Pool));
    let names: Vec<&str> = said.into_iter().map(name_of).collect();
    let mut word = source.name.clone();
    // Without words, a directory may end like a list of words.
    let reads_itself = crate::sources::parse(&word).is_ok_and(|read| read.name == word);
    if !names.is_empty() || !reads_itself {
        word.push("=");
        word.push(names.join(","));
    }
    word
}

/// A word of a list after `-o`, with commas and backslashes escaped.
fn escaped(word: &OsStr) -> OsString {
    let mut escaped = Vec::new();
    for byte in word.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    OsStr::from_bytes(&escaped).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::{Configuration, document};
    use std::path::Path;

    fn shown(text: &str) -> String {
        let document = document::read(Path::new("/c"), text, None);
        assert_eq!(document.faults, []);
        let configuration = Configuration {
            documents: vec![document],
            places: crate::config_file::Places { system: "/c".into(), user: None, home: None },
        };
        let (document, entry) = configuration.entry(OsStr::new("a")).unwrap();
        mount(document, entry, &configuration.settings(document, entry))
    }

    #[test]
    fn what_results_is_shown_with_where_it_is_from_and_can_be_read_again() {
        let text = "\
[defaults]
options = ['soft=5', 'ro']
[mount.a]
mountpoint = '/m'
sources = ['h:/x=ro=', { host = ['g', 'h'], path = '/p', mode = 'nc', ssh = { Port = 1 } }]
[mount.a.options]
ro = false
Ciphers = 'a,b'
";
        let once = shown(text);
        let expected = "\
[mount.a]                                    # /c:3
mountpoint = \"/m\"                            # /c:4
sources = [
    \"h:/x=ro=\",                              # /c:5
    { source = \"g,h:/p=nc,required\", ssh = [\"Port=1\"] }, # /c:5
]
options = [
    \"soft=5\",                                # /c:2 (defaults)
    \"Ciphers=a\\\\,b\",                         # /c:8
]
";
        assert_eq!(once, expected);
        let strip = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split(" # ").next().unwrap().trim_end().into()).collect()
        };
        assert_eq!(strip(&shown(&once)), strip(&once));
    }
}
