//! From the words of a command line to a mount request.
//!
//! The grammar is that of sshfs and of mount helpers: flags and the two operands in any order, `--`
//! ends the flags, the first operand with a `:` is the source, values may be glued to their flag.
//! It is parsed here rather than by clap, since the order of options counts (ssh takes the first
//! value of a keyword, most others the last), names are bytes, and the meaning of `-f` and `-s`
//! depends on the program's name.
//!
//! Pure but for the current directory, which the caller gives.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::draft::Draft;
use super::flag_table::{FLAGS, FlagDefinition, FlagEffect, HELPER_FLAGS};
use super::option_string::{name_and_value, split};
use super::option_table::{self, quoted};
use super::request::MountRequest;
use super::ssh_keywords::{self, Keyword};
use super::suggestion;
use crate::program::Program;
use crate::report::{Problem, printable};

/// What a command line asks for.
#[derive(Debug, PartialEq)]
pub enum Wish {
    /// The help on standard output.
    Help,
    /// The version on standard output.
    Version,
    /// A mount; with things that the user should know, though nothing is wrong.
    Mount(Box<MountRequest>, Vec<String>),
}

/// Parses what follows `argv[0]` (and `mount`, if that was given).
pub fn parse(
    program: Program,
    words: impl IntoIterator<Item = OsString>,
    cwd: PathBuf,
) -> Result<Wish, Problem> {
    let mut parser = Parser {
        program,
        draft: Draft::new(program, cwd),
        operands: Vec::new(),
        unknown: None,
        is_sloppy: false,
    };
    let mut words = words.into_iter();
    let mut flags_are_over = false;
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        let shown = if flags_are_over || bytes == b"-" || !bytes.starts_with(b"-") {
            parser.operands.push(word);
            None
        } else if bytes == b"--" {
            flags_are_over = true;
            None
        } else if let Some(long) = bytes.strip_prefix(b"--") {
            parser.long_flag(OsStr::from_bytes(long))?
        } else {
            parser.short_flags(&bytes[1..], &mut words)?
        };
        if let Some(shown) = shown {
            return Ok(shown);
        }
    }
    parser.finish()
}

struct Parser {
    program: Program,
    draft: Draft,
    operands: Vec<OsString>,
    /// The first unknown option, kept until `-s` can no longer come.
    unknown: Option<Problem>,
    is_sloppy: bool,
}

impl Parser {
    /// The flags in force, those that shadow others first.
    fn flags(&self) -> impl Iterator<Item = &'static FlagDefinition> + use<> {
        let of_helper = if self.program.helper { HELPER_FLAGS } else { &[] };
        of_helper.iter().chain(FLAGS)
    }

    fn long_flag(&mut self, name: &OsStr) -> Result<Option<Wish>, Problem> {
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
        self.apply(flag, None)
    }

    /// `-fd`, `-p22`, `-p 22`.
    fn short_flags(
        &mut self,
        letters: &[u8],
        words: &mut impl Iterator<Item = OsString>,
    ) -> Result<Option<Wish>, Problem> {
        let mut rest = letters;
        while let Some((&letter, tail)) = rest.split_first() {
            rest = tail;
            let Some(flag) = self.flags().find(|flag| flag.short == Some(letter)) else {
                let letter = printable(OsStr::from_bytes(&[letter]));
                return Err(
                    Problem::new(format!("flag '-{letter}'"), "no such flag").hint(self.see_help())
                );
            };
            let mut value = None;
            if let Some(wanted) = flag.value_name() {
                let glued = (!tail.is_empty()).then(|| OsString::from_vec(tail.to_vec()));
                value = Some(glued.or_else(|| words.next()).ok_or_else(|| {
                    Problem::new(about(flag), format!("needs a value: {wanted}"))
                })?);
                rest = &[];
            }
            if let Some(shown) = self.apply(flag, value)? {
                return Ok(Some(shown));
            }
        }
        Ok(None)
    }

    fn apply(
        &mut self,
        flag: &FlagDefinition,
        value: Option<OsString>,
    ) -> Result<Option<Wish>, Problem> {
        match (&flag.effect, value) {
            (FlagEffect::Help, _) => return Ok(Some(Wish::Help)),
            (FlagEffect::Version, _) => return Ok(Some(Wish::Version)),
            (FlagEffect::Set(set), _) => set(&mut self.draft),
            (FlagEffect::Sloppy, _) => self.is_sloppy = true,
            (FlagEffect::Ignored(_), _) => {}
            (FlagEffect::Refused(why), _) => return Err(Problem::new(about(flag), *why)),
            (FlagEffect::Options, value) => {
                for word in split(&value.unwrap_or_default()) {
                    self.option(&word)?;
                }
            }
            (FlagEffect::Value(_, set), value) => {
                set(&mut self.draft, value.unwrap_or_default())
                    .map_err(|why| Problem::new(about(flag), why))?;
            }
        }
        Ok(None)
    }

    /// One word of `-o`. A word that is an option of ours and a keyword of ssh is the keyword when
    /// it has a value and the option has none (`user` and `User=alice`).
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
        // ssh also takes `Keyword value`.
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
                let problem = unknown_option(word, name, value, &self.draft);
                self.unknown.get_or_insert(problem);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Wish, Problem> {
        if let Some(unknown) = self.unknown.take().filter(|_| !self.is_sloppy) {
            return Err(unknown);
        }
        let (source, mountpoint) = self.take_operands()?;
        let (request, notes) = self.draft.finish(source, PathBuf::from(mountpoint))?;
        Ok(Wish::Mount(Box::new(request), notes))
    }

    /// The first word with a colon is the source, the other one the mount point.
    fn take_operands(&mut self) -> Result<(OsString, OsString), Problem> {
        let hint = self.see_help();
        let mut operands = std::mem::take(&mut self.operands);
        let at = operands.iter().position(|word| word.as_bytes().contains(&b':'));
        let source = match (at, &operands[..]) {
            (Some(at), _) => operands.remove(at),
            (None, []) => return Err(Problem::new("source", "missing").hint(hint)),
            (None, [only]) => {
                let why = format!("missing (there is only '{}')", printable(only));
                return Err(Problem::new("source", why).hint("it is [user@]host:[dir]"));
            }
            (None, [first, ..]) => {
                let first = printable(first);
                return Err(Problem::new(format!("source '{first}'"), "has no ':' in it").hint(
                    format!("[user@]host:[dir]; the home directory of {first} is '{first}:'"),
                ));
            }
        };
        let mut operands = operands.into_iter();
        let mountpoint = operands.next().filter(|mountpoint| !mountpoint.is_empty());
        let mountpoint =
            mountpoint.ok_or_else(|| Problem::new("mount point", "missing").hint(hint.clone()))?;
        if let Some(extra) = operands.next() {
            let what = format!("argument '{}'", printable(extra));
            let why = format!(
                "one too many after source '{}' and mount point '{}'",
                printable(&source),
                printable(&mountpoint)
            );
            return Err(Problem::new(what, why).hint(hint));
        }
        Ok((without_type(source, self.program), mountpoint))
    }

    fn see_help(&self) -> String {
        format!("`{} --help` shows what there is", self.program.name)
    }
}

fn about(flag: &FlagDefinition) -> String {
    format!("flag '{}'", flag.usage().split(' ').next().unwrap_or_default().trim_end_matches(','))
}

/// Old lines of fstab have the file system's name in the source: `sshfs#host:dir`.
fn without_type(source: OsString, program: Program) -> OsString {
    let bytes = source.as_bytes();
    let stripped = [&b"sshfs#"[..], b"sshoal#"].iter().find_map(|kind| bytes.strip_prefix(*kind));
    match stripped.filter(|_| program.helper) {
        Some(stripped) => OsString::from_vec(stripped.to_vec()),
        None => source,
    }
}

fn unknown_option(word: &OsStr, name: &OsStr, value: Option<&OsStr>, draft: &Draft) -> Problem {
    let text = name.to_string_lossy();
    let problem = Problem::new(quoted(word), "no such option");
    if value.is_none() && ssh_keywords::is_keyword(name) {
        return problem
            .hint(format!("as a keyword of ssh it needs a value: {}=…", printable(name)));
    }
    let known = option_table::all().flat_map(option_table::MountOption::names);
    let known = known.filter(|name| !name.ends_with('*')).chain(ssh_keywords::all());
    if let Some(meant) = suggestion::nearest(&text, known) {
        return problem.hint(format!("did you mean '{meant}'?"));
    }
    let list = draft.request.ssh.arguments.last().map(|last| last.to_string_lossy());
    match list.as_deref().and_then(|last| last.strip_prefix("-o")?.split_once('=')) {
        // Ciphers=a,b: the comma has ended the option.
        Some((keyword, _)) if value.is_none() => {
            problem.hint(format!("if it belongs to {keyword}, write the comma before it as '\\,'"))
        }
        _ => problem.hint("`sshoal help options` lists all"),
    }
}
