//! One mount of a file: its mount point, its sources, its options.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Reader, in_order};
use crate::mount::command_line::{self, Layer, SavedMount};
use crate::mount::ssh_keywords::{self, Keyword};
use crate::mount::{option_string, option_table};
use crate::sources::{self, BranchWord, SourceSpec, WORDS};

/// A mount of one file. Numbers are lines.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    pub line: usize,
    pub mountpoint: Option<(PathBuf, usize)>,
    pub sources: Vec<(SourceSpec, usize)>,
    pub options: Vec<Setting>,
}

/// One option of a file.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub name: String,
    /// The option as in a list after `-o`, without escapes. `None`: `NAME = false`, which removes
    /// an option of lower precedence.
    pub word: Option<OsString>,
    pub line: usize,
}

/// Parses a mount. If it has no sources, that is added as an error.
pub(super) fn read(
    reader: &mut Reader<'_>,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    table: &DeTable<'_>,
) -> Entry {
    let line = reader.text.position(key.span().start).0;
    let mut entry = Entry {
        name: key.get_ref().to_string(),
        line,
        mountpoint: None,
        sources: Vec::new(),
        options: Vec::new(),
    };
    let mut sources_at = None;
    let before = reader.faults_count();
    for (key, value) in in_order(table) {
        match &**key.get_ref() {
            "mountpoint" => entry.mountpoint = mountpoint(reader, value),
            "sources" => {
                sources_at = Some(value.span());
                entry.sources = read_sources(reader, value);
            }
            "options" => entry.options = options(reader, value),
            _ => reader.unknown(key, &["mountpoint", "sources", "options"]),
        }
    }
    let Some(sources_at) = sources_at else {
        let hint = "add sources = [\"host:dir\"]";
        reader.fault(key.span(), "the mount has no sources", Some(hint));
        return entry;
    };
    if reader.faults_count() == before {
        check(reader, &entry, key.span(), sources_at);
    }
    entry
}

/// Checks the combination of sources and options, once each of them is valid.
fn check(reader: &mut Reader<'_>, entry: &Entry, at: Range<usize>, sources_at: Range<usize>) {
    let specs: Vec<SourceSpec> = entry.sources.iter().map(|(source, _)| source.clone()).collect();
    if let Err(problem) = sources::check(&specs) {
        reader.fault_of(sources_at, &problem);
        return;
    }
    let words = entry.options.iter().filter_map(|setting| setting.word.clone()).collect();
    let mount = SavedMount {
        name: entry.name.clone(),
        sources: specs,
        mountpoint: None,
        layers: vec![Layer { directory: PathBuf::from("/"), words }],
    };
    if let Err(problem) = command_line::check_saved(mount) {
        reader.fault_of(at, &problem);
    }
}

fn mountpoint(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Option<(PathBuf, usize)> {
    let text = reader.string(value)?;
    let line = reader.text.position(value.span().start).0;
    let below_home = match text {
        "~" => Some(""),
        _ => text.strip_prefix("~/"),
    };
    match (below_home, reader.home) {
        (Some(below), Some(home)) => Some((home.join(below), line)),
        (Some(_), None) => {
            reader.fault(value.span(), "no home directory: HOME is not set", None);
            None
        }
        (None, _) if text.starts_with('/') => Some((PathBuf::from(text), line)),
        (None, _) => {
            let why = "a mount point must be absolute or begin with ~/";
            reader.fault(value.span(), why, None);
            None
        }
    }
}

fn read_sources(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Vec<(SourceSpec, usize)> {
    let items = match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    };
    if items.is_empty() {
        reader.fault(
            value.span(),
            "the list of sources is empty",
            Some("a source is \"host:dir\""),
        );
    }
    let mut sources = Vec::new();
    for item in items {
        let line = reader.text.position(item.span().start).0;
        let source = match item.get_ref() {
            DeValue::String(_) => reader.string(item).and_then(|text| {
                let parsed = sources::parse(OsStr::new(text));
                parsed.map_err(|problem| reader.fault_of(item.span(), &problem)).ok()
            }),
            DeValue::Table(table) => of_table(reader, table, item.span()),
            _ => {
                reader.fault(item.span(), "a source must be a string in quotes or a table", None);
                None
            }
        };
        sources.extend(source.map(|source| (source, line)));
    }
    sources
}

const SOURCE_KEYS: [&str; 9] =
    ["source", "host", "path", "local", "place", "mode", "presence", "pool", "ssh"];

/// A source given as a table. Its parts are combined to one word, so that there is one grammar.
fn of_table(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
) -> Option<SourceSpec> {
    let (mut whole, mut hosts, mut path, mut local, mut place) = (None, None, None, None, None);
    let (mut words, mut arguments) = (Vec::new(), Vec::new());
    let before = reader.faults_count();
    for (key, value) in in_order(table) {
        match &**key.get_ref() {
            "source" => whole = reader.string(value),
            "host" => hosts = Some(reader.strings(value)),
            "path" => path = reader.string(value),
            "local" => local = reader.string(value),
            "place" => place = reader.string(value),
            name @ ("mode" | "presence" | "pool") => words.extend(word(reader, name, value)),
            "ssh" => arguments = ssh_arguments(reader, value),
            _ => reader.unknown(key, &SOURCE_KEYS),
        }
    }
    let text = match (hosts, local, whole) {
        (None, None, Some(whole)) if path.is_none() && place.is_none() => whole.to_owned(),
        (Some(hosts), None, None) => {
            let hosts: Vec<&str> = hosts.iter().map(|(host, _)| *host).collect();
            // A local directory has a key of its own.
            let hosts = if hosts == ["local"] { vec!["[local]"] } else { hosts };
            in_parts(place, &format!("{}:{}", hosts.join(","), path.unwrap_or_default()))
        }
        (None, Some(local), None) if path.is_none() => in_parts(place, &format!("local:{local}")),
        _ => {
            let hint = "{ host = \"alpha\", path = \"/dir\" } or { local = \"/dir\" }";
            reader.fault(span, "a source needs either a host or a local directory", Some(hint));
            return None;
        }
    };
    if reader.faults_count() > before {
        return None;
    }
    let parsed = sources::parse(OsStr::new(&text)).and_then(|source| {
        let named = source.shown();
        sources::with_words(source, &words)
            .map_err(|(why, hint)| cli::Problem::new(format!("source '{named}'"), why).hint(hint))
    });
    match parsed {
        Ok(source) => Some(SourceSpec { ssh_arguments: arguments, ..source }),
        Err(problem) => {
            reader.fault_of(span, &problem);
            None
        }
    }
}

/// Combines the parts. The empty list at the end keeps a directory that ends like a list unchanged.
fn in_parts(place: Option<&str>, origin: &str) -> String {
    place.map(|place| format!("{place}=")).unwrap_or_default() + origin + "="
}

/// The value of `mode`, `presence` or `pool`.
fn word(reader: &mut Reader<'_>, key: &str, value: &Spanned<DeValue<'_>>) -> Option<BranchWord> {
    let belongs = |word: &BranchWord| match word {
        BranchWord::Mode(_) => key == "mode",
        BranchWord::Presence(_) => key == "presence",
        BranchWord::Pool(_) => key == "pool",
    };
    let known = || WORDS.iter().filter(|(_, word)| belongs(word));
    let text = reader.string(value)?;
    let found = known().find(|(name, _)| *name == text).map(|(_, word)| *word);
    if found.is_none() {
        let names: Vec<&str> = known().map(|(name, _)| *name).collect();
        reader.fault(value.span(), &format!("{key} must be one of {}", names.join(", ")), None);
    }
    found
}

/// Keywords of ssh for one source.
fn ssh_arguments(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Vec<OsString> {
    let directory = reader.text.path.parent().unwrap_or(Path::new("/")).to_owned();
    let mut arguments = Vec::new();
    for (setting, span) in settings(reader, value) {
        let Some(word) = &setting.word else { continue };
        let (name, text) = option_string::name_and_value(word);
        match ssh_keywords::recognize(name, text.unwrap_or_default(), &directory) {
            Some(Keyword::Argument(argument)) if text.is_some() => arguments.push(argument),
            Some(Keyword::Withheld(keyword, why)) => {
                reader.fault(span, &format!("{keyword} has no effect"), Some(why));
            }
            _ => {
                let why =
                    "only keywords of ssh_config(5), each with a value, are valid for a source";
                reader.fault(span, why, Some("set mount options for the whole mount"));
            }
        }
    }
    arguments
}

/// Options, each of them checked.
pub(super) fn options(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Vec<Setting> {
    let mut checked = Vec::new();
    for (setting, span) in settings(reader, value) {
        // Of a removed option, only the name is checked.
        let known = match &setting.word {
            Some(word) => command_line::check_option(word),
            None => command_line::check_option_name(&setting.name),
        };
        match known {
            Ok(()) => checked.push(setting),
            Err(problem) => reader.fault_of(span, &problem),
        }
    }
    checked
}

/// Options as a list of words after `-o`, or as a table of names and values.
fn settings(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Vec<(Setting, Range<usize>)> {
    let mut settings = Vec::new();
    let DeValue::Table(table) = value.get_ref() else {
        for (list, span) in reader.strings(value) {
            let line = reader.text.position(span.start).0;
            for word in option_string::split(OsStr::new(list)) {
                let name = option_string::name_and_value(&word).0.to_string_lossy().into_owned();
                settings.push((Setting { name, word: Some(word), line }, span.clone()));
            }
        }
        return settings;
    };
    for (key, value) in in_order(table) {
        let name: &str = key.get_ref();
        let line = reader.text.position(key.span().start).0;
        for word in words(reader, name, value) {
            let span = key.span().start..value.span().end;
            settings.push((Setting { name: name.to_owned(), word, line }, span));
        }
    }
    settings
}

/// The words of an option with this value in a table: see [`Setting::word`].
fn words(
    reader: &mut Reader<'_>,
    name: &str,
    value: &Spanned<DeValue<'_>>,
) -> Vec<Option<OsString>> {
    let with = |text: &str| vec![Some(OsString::from(format!("{name}={text}")))];
    match value.get_ref() {
        DeValue::Array(items) => items.iter().flat_map(|item| words(reader, name, item)).collect(),
        DeValue::String(_) => reader.string(value).map(with).unwrap_or_default(),
        // TOML has octal numbers: `umask = 0o022`.
        DeValue::Integer(number) if matches!(number.radix(), 8 | 10) => with(number.as_str()),
        DeValue::Float(number) => with(number.as_str()),
        // As on the command line, `user` without a value is the option and not the keyword.
        DeValue::Boolean(on)
            if ssh_keywords::is_keyword(OsStr::new(name))
                && option_table::find(OsStr::new(name)).is_none() =>
        {
            with(if *on { "yes" } else { "no" })
        }
        DeValue::Boolean(true) => vec![Some(OsString::from(name))],
        DeValue::Boolean(false) => vec![None],
        _ => {
            reader.fault(value.span(), "not a valid value of an option", None);
            Vec::new()
        }
    }
}

/// A word as a TOML string.
pub(super) fn quoted(word: &OsStr) -> String {
    let text = String::from_utf8_lossy(word.as_bytes());
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            _ if char.is_control() => quoted += &format!("\\u{:04x}", u32::from(char)),
            _ => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::document;

    fn entry(text: &str) -> (Entry, Vec<String>) {
        let text = format!("[mount.a]\n{text}");
        let mut document = document::read(Path::new("/dir/c"), &text, Some(Path::new("/home/u")));
        let faults = document.faults.iter().map(|fault| fault.problem.to_string()).collect();
        (document.entries.pop().unwrap(), faults)
    }

    fn words(text: &str) -> Vec<String> {
        let (entry, faults) = entry(&format!("sources = 'h:'\n{text}"));
        assert_eq!(faults, Vec::<String>::new());
        let word = |setting: &Setting| match &setting.word {
            Some(word) => word.to_str().unwrap().to_owned(),
            None => format!("not {}", setting.name),
        };
        entry.options.iter().map(word).collect()
    }

    #[test]
    fn options_are_words_or_a_table() {
        assert_eq!(
            words("options = ['ro,soft=5', 'Ciphers=a\\,b']"),
            ["ro", "soft=5", "Ciphers=a,b"]
        );
        assert_eq!(words("options = 'ro'"), ["ro"]);
        let table = "\
[mount.a.options]
soft = 2.5
max_conns = 4
umask = 0o022
fsname = 'a,b=c'
allow_other = true
ro = false
user = true
nouser = true
Compression = false
IdentityFile = ['k1', 'k2']
";
        assert_eq!(
            words(table),
            [
                "soft=2.5",
                "max_conns=4",
                "umask=022",
                "fsname=a,b=c",
                "allow_other",
                "not ro",
                "user",
                "nouser",
                "Compression=no",
                "IdentityFile=k1",
                "IdentityFile=k2",
            ]
        );
    }

    #[test]
    fn a_mount_point_begins_at_the_root_or_at_home() {
        for (text, wanted) in [("/m", "/m"), ("~/a/b", "/home/u/a/b"), ("~", "/home/u/")] {
            let (entry, _) = entry(&format!("sources = 'h:'\nmountpoint = '{text}'"));
            assert_eq!(entry.mountpoint, Some((PathBuf::from(wanted), 3)));
        }
    }

    #[test]
    fn wrong_parts_of_a_source_are_told() {
        for (table, why) in [
            ("{ path = '/x' }", "a source needs either a host or a local directory"),
            ("{ host = 'h', local = '/x' }", "a source needs either a host or a local directory"),
            ("{ local = '/x', path = '/y' }", "a source needs either a host or a local directory"),
            ("{ host = 'h', mode = 'wr' }", "mode must be one of rw, ro, nc"),
            ("{ host = 'h', presence = 'ro' }", "presence must be one of required, optional"),
            ("{ host = 'h', pool = 'hash' }", "a pool needs several gateways"),
            ("{ host = 'h', place = '../x' }", "contains '.' or '..'"),
            ("{ host = 'h', hots = 'x' }", "no such key 'hots'"),
            ("{ host = 'h', ssh = { Prot = 1 } }", "only keywords of ssh_config(5)"),
            ("{ host = 'h', ssh = ['soft=5'] }", "only keywords of ssh_config(5)"),
            ("{ host = 'h', ssh = ['ForwardAgent=yes'] }", "ForwardAgent has no effect"),
            ("{ host = 7 }", "must be a string in quotes"),
            ("{ host = ['g', 'g'] }", "the gateway 'g' is listed twice"),
            ("{ local = 'x' }", "needs an absolute path"),
        ] {
            let (_, faults) = entry(&format!("sources = [{table}]"));
            assert!(faults.iter().any(|fault| fault.contains(why)), "{table}: {faults:?}");
            assert!(faults.iter().all(|fault| fault.starts_with("/dir/c:2:")), "{faults:?}");
        }
    }

    #[test]
    fn a_host_called_local_is_a_host() {
        let (entry, faults) =
            entry("sources = [{ host = 'local', path = '/x' }, { local = '/x' }]");
        assert_eq!(faults, Vec::<String>::new());
        let local: Vec<bool> =
            entry.sources.iter().map(|(source, _)| source.gateways().is_empty()).collect();
        assert_eq!(local, [false, true]);
    }

    #[test]
    fn a_quoted_word_is_read_as_what_it_was() {
        for word in ["plain", "a\"b\\c", "tab\there", "gr\u{fc}n"] {
            let text = format!("a = {}", quoted(OsStr::new(word)));
            let table = DeTable::parse(&text).unwrap();
            let (_, value) = table.get_ref().iter().next().unwrap();
            assert!(matches!(value.get_ref(), DeValue::String(read) if read == word), "{text}");
        }
    }
}
