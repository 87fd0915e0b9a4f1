//! Parses a command line into a mount request.
//!
//! The grammar is that of sshfs and of mount helpers: flags and operands in any order, `--` ends
//! the flags, values may be glued to their flag. Of two operands the first with a `:` is the
//! source; of more, the last is the mount point and the others are sources. It is parsed here
//! rather than by clap, since the order of options matters (ssh uses the first value of a keyword,
//! most other options the last), names are bytes, and the meaning of `-f` and `-s` depends on the
//! program's name.
//!
//! If [`Saved`] is given, an operand may also name a mount of the configuration file. The settings
//! of the file are then applied first, as if they had been typed before all others. mount(8) makes
//! a path of a name if the current directory has a file of that name, but not of `sshoal#NAME`,
//! which its helpers accept.
//!
//! Pure except for the current directory and [`Saved`], which the caller provides.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use cli::{Problem, printable};

use super::draft::Draft;
use super::flag_table::{FLAGS, FlagDefinition, FlagEffect, HELPER_FLAGS};
use super::option_string::{name_and_value, split};
use super::option_table::{self, quoted};
use super::request::MountRequest;
use super::ssh_keywords::{self, Keyword};
use super::suggestion;
use crate::program::Program;
use crate::sources::{self, SourceSpec};

/// A mount that has a name in the configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedMount {
    /// The name, without `:` and `/`.
    pub name: String,
    /// The sources.
    pub sources: Vec<SourceSpec>,
    /// The mount point, unless the command line gives one.
    pub mountpoint: Option<PathBuf>,
    /// The options, in order of increasing precedence.
    pub layers: Vec<Layer>,
}

/// Options that come from one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The directory to which relative paths in them are relative.
    pub directory: PathBuf,
    /// The words of `-o`.
    pub words: Vec<OsString>,
}

/// Finds the mount with a name.
pub type Saved<'a> = &'a dyn Fn(&OsStr) -> Result<SavedMount, Problem>;

/// The request of a command line.
#[derive(Debug, PartialEq)]
pub enum Wish {
    /// The help on standard output.
    Help,
    /// The version on standard output.
    Version,
    /// A mount, with notes for the user that are not errors.
    Mount(Box<MountRequest>, Vec<String>),
}

/// Parses the words after `argv[0]` (and `mount`, if that was given). Without `saved`, no operand
/// is the name of a mount.
pub fn parse(
    program: Program,
    words: impl IntoIterator<Item = OsString>,
    cwd: PathBuf,
    saved: Option<Saved<'_>>,
) -> Result<Wish, Problem> {
    let words: Vec<OsString> = words.into_iter().collect();
    let mut parser = Parser::new(program, cwd.clone());
    parser.words(words.clone())?;
    if let Some(shown) = parser.shown {
        return Ok(shown);
    }
    match saved.and_then(|saved| Some((saved, parser.name_of_saved()?))) {
        None => parser.finish(None),
        Some((saved, name)) => {
            // Parses again, with the saved settings as the lower layer.
            let mount = saved(&name)?;
            let mut parser = Parser::new(program, cwd.clone());
            parser.saved(&mount)?;
            let layer = parser.draft.begin_layer(cwd);
            parser.words(words)?;
            parser.draft.end_layer(layer);
            parser.finish(Some(mount))
        }
    }
}

/// Checks a saved mount as a whole.
pub fn check_saved(mount: SavedMount) -> Result<(), Problem> {
    let mut parser = Parser::new(Program::SSHOAL, PathBuf::from("/"));
    parser.saved(&mount)?;
    parser.operands = vec![OsString::from(&mount.name), OsString::from("/")];
    parser.finish(Some(mount)).map(drop)
}

/// Checks one word of `-o`.
pub fn check_option(word: &OsStr) -> Result<(), Problem> {
    let mut parser = Parser::new(Program::SSHOAL, PathBuf::from("/"));
    parser.option(word)?;
    parser.check_unknown()
}

/// Checks the name of an option, without a value.
pub fn check_option_name(name: &str) -> Result<(), Problem> {
    let is_known = option_table::find(OsStr::new(name)).is_some();
    if is_known || ssh_keywords::is_keyword(OsStr::new(name)) {
        return Ok(());
    }
    Err(unknown_option(OsStr::new(name), OsStr::new(name), None, None))
}

/// The name of the option that has this name among its spellings; else `name` itself.
pub fn option_named(name: &str) -> &str {
    let option = option_table::find(OsStr::new(name));
    // Not that of a prefix, which many options share.
    let option = option.filter(|option| option.names().any(|own| own == name));
    option.map_or(name, |option| option.name)
}

struct Parser {
    program: Program,
    draft: Draft,
    operands: Vec<OsString>,
    /// The first unknown option, kept until `-s` can no longer come.
    unknown: Option<Problem>,
    /// What is to be printed instead of mounting.
    shown: Option<Wish>,
}

impl Parser {
    fn new(program: Program, cwd: PathBuf) -> Parser {
        Parser {
            program,
            draft: Draft::new(program, cwd),
            operands: Vec::new(),
            unknown: None,
            shown: None,
        }
    }

    /// Parses the words of a command line, up to a flag that prints something instead of mounting.
    fn words(&mut self, words: Vec<OsString>) -> Result<(), Problem> {
        let mut words = words.into_iter();
        let mut flags_are_over = false;
        while self.shown.is_none()
            && let Some(word) = words.next()
        {
            let bytes = word.as_bytes();
            if flags_are_over || bytes == b"-" || !bytes.starts_with(b"-") {
                self.operands.push(word);
            } else if bytes == b"--" {
                flags_are_over = true;
            } else if let Some(long) = bytes.strip_prefix(b"--") {
                self.long_flag(OsStr::from_bytes(long))?;
            } else {
                self.short_flags(&bytes[1..], &mut words)?;
            }
        }
        Ok(())
    }

    /// Applies the options of a saved mount.
    fn saved(&mut self, mount: &SavedMount) -> Result<(), Problem> {
        for layer in &mount.layers {
            let below = self.draft.begin_layer(layer.directory.clone());
            for word in &layer.words {
                self.option(word)?;
            }
            self.draft.end_layer(below);
        }
        Ok(())
    }

    /// The name of a mount, if that is what the first operand is.
    fn name_of_saved(&self) -> Option<OsString> {
        let is_source = |word: &OsString| word.as_bytes().contains(&b':');
        let first = match &self.operands[..] {
            [first] => first,
            [first, second] if !is_source(second) => first,
            _ => return None,
        };
        let name = without_type(first.clone(), self.program);
        is_name(&name).then_some(name)
    }

    /// The valid flags; flags that shadow others come first.
    fn flags(&self) -> impl Iterator<Item = &'static FlagDefinition> + use<> {
        let of_helper = if self.program.helper { HELPER_FLAGS } else { &[] };
        of_helper.iter().chain(FLAGS)
    }

    fn long_flag(&mut self, name: &OsStr) -> Result<(), Problem> {
        let flag = self.flags().find(|flag| flag.long.is_some_and(|long| name == long));
        let Some(flag) = flag else {
            let problem = Problem::new(format!("flag '--{}'", printable(name)), "no such flag");
            let name = name.to_string_lossy();
            let meant = suggestion::nearest(&name, self.flags().filter_map(|flag| flag.long));
            return Err(match meant {
                Some(meant) => problem.hint(format!("did you mean --{meant}?")),
                None if option_table::find(name_and_value(OsStr::new(&*name)).0).is_some() => {
                    problem.hint(format!("mount options follow -o: -o {}", printable(&*name)))
                }
                None => problem.hint(self.see_help()),
            });
        };
        self.apply(flag, OsString::new())
    }

    /// `-fd`, `-p22`, `-p 22`.
    fn short_flags(
        &mut self,
        letters: &[u8],
        words: &mut impl Iterator<Item = OsString>,
    ) -> Result<(), Problem> {
        let mut rest = letters;
        while self.shown.is_none()
            && let Some((&letter, tail)) = rest.split_first()
        {
            rest = tail;
            let Some(flag) = self.flags().find(|flag| flag.short == char::from(letter)) else {
                let letter = base::printable(&[letter]);
                return Err(
                    Problem::new(format!("flag '-{letter}'"), "no such flag").hint(self.see_help())
                );
            };
            let mut value = OsString::new();
            if let Some(wanted) = flag.value_name() {
                let glued = (!tail.is_empty()).then(|| OsString::from_vec(tail.to_vec()));
                value = glued
                    .or_else(|| words.next())
                    .ok_or_else(|| Problem::new(about(flag), format!("needs a value: {wanted}")))?;
                rest = &[];
            }
            self.apply(flag, value)?;
        }
        Ok(())
    }

    fn apply(&mut self, flag: &FlagDefinition, value: OsString) -> Result<(), Problem> {
        let wrong = |why: String| Problem::new(about(flag), why);
        match &flag.effect {
            FlagEffect::Help => self.shown = Some(Wish::Help),
            FlagEffect::Version => self.shown = Some(Wish::Version),
            FlagEffect::Options => {
                split(&value).iter().try_for_each(|word| self.option(word))?;
            }
            FlagEffect::Set(set) => set(&mut self.draft),
            FlagEffect::Ssh => self.draft.add_ssh_argument(format!("-{}", flag.short)),
            FlagEffect::Value(_, set) => {
                set(&mut self.draft, flag.short, value).map_err(wrong)?;
            }
            FlagEffect::Ignored(_) => {}
            FlagEffect::Refused(why) => return Err(wrong((*why).to_owned())),
        }
        Ok(())
    }

    /// Applies one word of `-o`. A name that is both a mount option and a keyword of ssh is the
    /// keyword if it has a value and the option takes none (`user` and `User=alice`).
    fn option(&mut self, word: &OsStr) -> Result<(), Problem> {
        let (name, value) = name_and_value(word);
        if let Some(option) = option_table::find(name) {
            let is_keyword = value.is_some()
                && ssh_keywords::is_keyword(name)
                && (!option.may_have_value() || option.is_ignored());
            if !is_keyword {
                return option
                    .apply(&mut self.draft, value)
                    .map_err(|why| Problem::new(quoted(word), why));
            }
        }
        // ssh also accepts `Keyword value`.
        let spaced = || {
            let bytes = word.as_bytes();
            let at = bytes.iter().position(|byte| *byte == b' ')?;
            Some((
                OsStr::from_bytes(&bytes[..at]),
                OsStr::from_bytes(bytes[at..].trim_ascii_start()),
            ))
        };
        let keyword = value.map(|value| (name, value)).or_else(spaced);
        match keyword
            .and_then(|(name, value)| ssh_keywords::recognize(name, value, self.draft.cwd()))
        {
            Some(Keyword::Argument(argument)) => self.draft.add_ssh_argument(argument),
            Some(Keyword::Withheld(keyword, why)) => {
                self.draft.notes.push(format!("{keyword} has no effect: {why}"));
            }
            None => {
                let last = self.draft.request.ssh.arguments.last();
                let problem = unknown_option(word, name, value, last);
                self.unknown.get_or_insert(problem);
            }
        }
        Ok(())
    }

    /// The request; of a saved mount, if the first operand is its name.
    fn finish(mut self, saved: Option<SavedMount>) -> Result<Wish, Problem> {
        self.check_unknown()?;
        let (sources, mountpoint, name) = match saved {
            None => {
                let (sources, mountpoint) = self.take_operands()?;
                (sources, PathBuf::from(mountpoint), None)
            }
            Some(mount) => {
                let mut operands = self.operands.into_iter();
                let name = operands.next();
                let place = operands.next().map(PathBuf::from).or(mount.mountpoint);
                let place = place.ok_or_else(|| {
                    let what = format!("mount '{}'", printable(&mount.name));
                    Problem::new(what, "has no mount point")
                        .hint("add mountpoint = \"/…\" to it, or give the directory after the name")
                })?;
                (mount.sources, place, name)
            }
        };
        let (request, notes) = self.draft.finish(sources, mountpoint, name)?;
        Ok(Wish::Mount(Box::new(request), notes))
    }

    fn check_unknown(&mut self) -> Result<(), Problem> {
        self.unknown.take().filter(|_| !self.draft.is_sloppy).map_or(Ok(()), Err)
    }

    fn take_operands(&mut self) -> Result<(Vec<SourceSpec>, OsString), Problem> {
        let operands = std::mem::take(&mut self.operands);
        let (words, mountpoint) = self.split_operands(operands)?;
        let words = words.into_iter().map(|word| without_type(word, self.program));
        let sources: Result<_, _> = if self.program.is_sshfs() {
            words.map(|word| sources::parse_as_sshfs(&word)).collect()
        } else if self.program.helper {
            // mount(8) passes all sources as one word.
            let words = words.flat_map(|word| sources::split_list(&word));
            words.map(|word| sources::parse(&word)).collect()
        } else {
            words.map(|word| sources::parse(&word)).collect()
        };
        Ok((sources?, mountpoint))
    }

    /// The words of the sources, and the mount point.
    fn split_operands(
        &self,
        mut operands: Vec<OsString>,
    ) -> Result<(Vec<OsString>, OsString), Problem> {
        let hint = self.see_help();
        let has_colon = |word: &OsString| word.as_bytes().contains(&b':');
        let Some(first) = operands.iter().position(has_colon) else {
            return Err(self.no_source(&operands));
        };
        if operands.len() <= 2 {
            let source = operands.remove(first);
            return match operands.pop().filter(|mountpoint| !mountpoint.is_empty()) {
                Some(mountpoint) => Ok((vec![source], mountpoint)),
                None => Err(Problem::new("mount point", "missing").hint(hint)),
            };
        }
        let mountpoint = operands.pop().unwrap_or_default();
        if let Some(at) = operands.iter().position(|word| !has_colon(word)) {
            let what = |word: &OsString| format!("argument '{}'", printable(word));
            // `host: /mnt more`: nothing may follow the mount point.
            if !has_colon(&mountpoint) && operands[at..].iter().all(|word| !has_colon(word)) {
                let extra = operands.get(at + 1).unwrap_or(&mountpoint);
                let why = format!(
                    "unexpected after source '{}' and mount point '{}'",
                    printable(&operands[first]),
                    printable(&operands[at])
                );
                return Err(Problem::new(what(extra), why).hint(match self.program.is_sshfs() {
                    true => hint.to_string(),
                    false => format!("{hint}; a local directory is written local:/DIRECTORY"),
                }));
            }
            let shown = printable(&operands[at]);
            return Err(Problem::new(format!("source '{shown}'"), "contains no ':'")
                .hint("the mount point must be the last argument"));
        }
        if self.program.is_sshfs() {
            let what = format!("source '{}'", printable(&operands[1]));
            return Err(Problem::new(what, "unexpected: sshfs mounts a single source")
                .hint("`sshoal SOURCE SOURCE … MOUNTPOINT` mounts several as one tree"));
        }
        if mountpoint.is_empty() {
            return Err(Problem::new("mount point", "missing").hint(hint));
        }
        Ok((operands, mountpoint))
    }

    /// The error if no operand contains a colon.
    fn no_source(&self, operands: &[OsString]) -> Problem {
        match operands {
            [only] if !only.is_empty() => {
                let why = format!("missing (only '{}' was given)", printable(only));
                Problem::new("source", why).hint("a source is [user@]host:[dir]")
            }
            [first, ..] if self.program.helper && first.as_bytes().starts_with(b"/") => {
                let name = printable(Path::new(first).file_name().unwrap_or_default());
                let first = printable(first);
                Problem::new(format!("source '{first}'"), "contains no ':'").hint(format!(
                    "mount(8) makes a path of a name that a file has, too; the mount of the \
                     configuration file is sshoal#{name}"
                ))
            }
            [first, ..] if !first.is_empty() => {
                let first = printable(first);
                Problem::new(format!("source '{first}'"), "contains no ':'").hint(format!(
                    "a source is [user@]host:[dir]; the home directory on {first} is '{first}:'"
                ))
            }
            _ => Problem::new("source", "missing").hint(self.see_help()),
        }
    }

    fn see_help(&self) -> String {
        format!("`{} --help` shows the usage", self.program.name)
    }
}

/// Whether a word could be the name of a mount in the configuration file.
pub fn is_name(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    !bytes.is_empty() && !bytes.starts_with(b"-") && !bytes.iter().any(|byte| b":/ ".contains(byte))
}

fn about(flag: &FlagDefinition) -> String {
    format!("flag '-{}'", flag.short)
}

/// Removes the file system's name from sources of old fstab lines, `sshfs#host:dir`, and from names
/// of mounts, `sshoal#work`.
fn without_type(source: OsString, program: Program) -> OsString {
    let bytes = source.as_bytes();
    let stripped = [&b"sshfs#"[..], b"sshoal#"].iter().find_map(|kind| bytes.strip_prefix(*kind));
    match stripped.filter(|_| program.helper) {
        Some(stripped) => OsString::from_vec(stripped.to_vec()),
        None => source,
    }
}

/// The error for an unknown option. `last` is the last argument for ssh before it.
fn unknown_option(
    word: &OsStr,
    name: &OsStr,
    value: Option<&OsStr>,
    last: Option<&OsString>,
) -> Problem {
    let text = name.to_string_lossy();
    let problem = Problem::new(quoted(word), "no such option");
    if value.is_none() && ssh_keywords::is_keyword(name) {
        return problem.hint(format!("a keyword of ssh needs a value: {}=…", printable(name)));
    }
    if let Some(meant) = suggestion::nearest_option(&text) {
        return problem.hint(format!("did you mean '{meant}'?"));
    }
    let list = last.map(|last| last.to_string_lossy());
    match list.as_deref().and_then(|last| last.strip_prefix("-o")?.split_once('=')) {
        // Ciphers=a,b: the comma ended the option.
        Some((keyword, _)) if value.is_none() => {
            problem.hint(format!("if it is part of {keyword}, write the comma before it as '\\,'"))
        }
        _ => problem.hint("`sshoal help options` lists all options"),
    }
}
