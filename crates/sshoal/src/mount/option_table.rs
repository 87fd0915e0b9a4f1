//! The options of `-o`: one definition feeds the parser, `--help`, `docs/options.md` and the
//! suggestions for misspelled ones.
//!
//! An entry's [`Effect`] is both the shape of its value and what it does, so the two cannot
//! disagree. Keywords of ssh_config are no entries; they have [a list](super::ssh_keywords).

mod cache;
mod compatibility;
mod connection;
mod disk;
mod fuse;
mod many_hosts;
mod ownership;
mod process;

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use super::draft::Draft;
use crate::report::printable;

/// One option.
pub struct MountOption {
    /// As it is to be typed; one that ends in `*` stands for all with that beginning.
    pub name: &'static str,
    /// Other spellings, most of them from older versions of sshfs.
    pub aliases: &'static [&'static str],
    /// One line, without a full stop.
    pub help: &'static str,
    /// Among the few that `--help` shows.
    pub is_prominent: bool,
    /// Shape and meaning.
    pub effect: Effect,
}

/// The shape of an option's value, and what it does.
pub enum Effect {
    /// No value.
    Flag(fn(&mut Draft)),
    /// Any text that is not empty. The first part is the value's name in the help, as below.
    Text(&'static str, fn(&mut Draft, OsString)),
    /// Seconds, fractions too.
    Seconds(fn(&mut Draft, Duration)),
    /// A whole number within these limits.
    Number(u32, u32, fn(&mut Draft, u32)),
    /// Permission bits, octal.
    Mode(fn(&mut Draft, u32)),
    /// One of these words.
    Choice(&'static [Word]),
    /// A grammar of its own, which says what would be right.
    Custom(&'static str, fn(&mut Draft, &str) -> Result<(), String>),
    /// Taken, with or without a value, and without effect, for this reason.
    Ignored(&'static str),
    /// Known, and not to be had, for this reason.
    Refused(&'static str),
}

/// A word that may be a value, and what it does.
pub type Word = (&'static str, fn(&mut Draft));

/// A chapter of the help.
pub struct Group {
    /// Its heading.
    pub title: &'static str,
    /// Its options in the order in which they are shown.
    pub options: &'static [MountOption],
}

/// All options.
pub const GROUPS: &[Group] = &[
    Group { title: "Connection", options: connection::OPTIONS },
    Group { title: "Several hosts, and hosts that are away", options: many_hosts::OPTIONS },
    Group { title: "Freshness and caches", options: cache::OPTIONS },
    Group { title: "The cache on disk, and digests", options: disk::OPTIONS },
    Group { title: "Owners, permissions, links", options: ownership::OPTIONS },
    Group { title: "The mount", options: fuse::OPTIONS },
    Group { title: "The process", options: process::OPTIONS },
    Group { title: "Words for mount(8) and fstab", options: compatibility::FSTAB },
    Group { title: "Other words of sshfs and libfuse", options: compatibility::OTHERS },
];

const fn option(name: &'static str, help: &'static str, effect: Effect) -> MountOption {
    MountOption { name, aliases: &[], help, is_prominent: false, effect }
}

impl MountOption {
    const fn also(mut self, aliases: &'static [&'static str]) -> MountOption {
        self.aliases = aliases;
        self
    }

    const fn prominent(mut self) -> MountOption {
        self.is_prominent = true;
        self
    }

    /// Its spellings, the name first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// Whether `name` is one of its spellings.
    fn is_called(&self, name: &str) -> bool {
        self.names().any(|own| match own.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == own,
        })
    }

    /// As the help shows it: the name, and what its value looks like.
    pub fn usage(&self) -> String {
        let name = self.name;
        match &self.effect {
            Effect::Flag(_) | Effect::Ignored(_) | Effect::Refused(_) => name.to_owned(),
            Effect::Text(value, _) | Effect::Custom(value, _) => format!("{name}={value}"),
            Effect::Seconds(_) => format!("{name}=SECONDS"),
            Effect::Number(..) => format!("{name}=N"),
            Effect::Mode(_) => format!("{name}=OCTAL"),
            Effect::Choice(words) => {
                let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                format!("{name}={}", words.join("|"))
            }
        }
    }

    /// Whether a value belongs to it.
    pub fn may_have_value(&self) -> bool {
        !matches!(self.effect, Effect::Flag(_))
    }

    /// Whether it is without effect, as the words of fstab are.
    pub fn is_ignored(&self) -> bool {
        matches!(self.effect, Effect::Ignored(_))
    }

    /// Why it does nothing, if it does nothing.
    pub fn why_not(&self) -> Option<(&'static str, &'static str)> {
        match self.effect {
            Effect::Ignored(why) => Some(("ignored", why)),
            Effect::Refused(why) => Some(("refused", why)),
            _ => None,
        }
    }

    /// Does what it is there for. The error says what the value should have been.
    pub fn apply(&self, draft: &mut Draft, value: Option<&OsStr>) -> Result<(), String> {
        let wanted = |what: &str| format!("needs {what}, as in {}", self.example());
        let text = || value.filter(|value| !value.is_empty());
        match (&self.effect, value) {
            (Effect::Ignored(_), _) => Ok(()),
            (Effect::Refused(why), _) => Err((*why).to_owned()),
            (Effect::Flag(set), None) => {
                set(draft);
                Ok(())
            }
            (Effect::Flag(_), Some(_)) => Err("takes no value".to_owned()),
            (Effect::Text(_, set), _) => {
                set(draft, text().ok_or_else(|| wanted("a value"))?.to_owned());
                Ok(())
            }
            (Effect::Seconds(set), _) => {
                let seconds = text().and_then(seconds);
                set(draft, seconds.ok_or_else(|| wanted("a number of seconds"))?);
                Ok(())
            }
            (Effect::Number(min, max, set), _) => {
                let number = text().and_then(OsStr::to_str).and_then(|text| text.parse().ok());
                let number = number.filter(|number| (min..=max).contains(&number));
                let what = || format!("a whole number from {min} to {max}");
                set(draft, number.ok_or_else(|| wanted(&what()))?);
                Ok(())
            }
            (Effect::Mode(set), _) => {
                set(draft, text().and_then(mode).ok_or_else(|| wanted("octal permission bits"))?);
                Ok(())
            }
            (Effect::Choice(words), _) => {
                let found = words.iter().find(|(word, _)| value.is_some_and(|v| v == *word));
                let all = || {
                    let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                    let (last, others) = words.split_last().expect("a choice has words");
                    format!("must be {} or {last}", others.join(", "))
                };
                (found.ok_or_else(all)?.1)(draft);
                Ok(())
            }
            (Effect::Custom(_, set), _) => {
                let text = text().and_then(OsStr::to_str);
                set(draft, text.ok_or_else(|| wanted("a value"))?)
            }
        }
    }

    /// The option with a value that is right.
    fn example(&self) -> String {
        let name = self.name;
        match &self.effect {
            Effect::Seconds(_) => format!("{name}=20"),
            Effect::Number(min, max, _) => format!("{name}={}", 4.clamp(*min, *max)),
            Effect::Mode(_) => format!("{name}=022"),
            _ => self.usage(),
        }
    }
}

/// The option with this spelling.
pub fn find(name: &OsStr) -> Option<&'static MountOption> {
    let name = name.to_str()?;
    all().find(|option| option.is_called(name))
}

/// All options of all groups.
pub fn all() -> impl Iterator<Item = &'static MountOption> {
    GROUPS.iter().flat_map(|group| group.options)
}

/// A time-out from 0 to about thirty years; more would be a slip, and might overflow something.
fn seconds(text: &OsStr) -> Option<Duration> {
    const MAX_SECONDS: f64 = 1e9;
    let seconds: f64 = text.to_str()?.parse().ok()?;
    (0.0..=MAX_SECONDS).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

fn mode(text: &OsStr) -> Option<u32> {
    let text = text.to_str()?;
    let is_octal = text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777)
}

/// For messages: an option's name as it was typed.
pub fn quoted(name: &OsStr) -> String {
    format!("option '{}'", printable(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_spelling_has_two_meanings() {
        let mut seen = BTreeSet::new();
        for name in all().flat_map(MountOption::names) {
            assert!(seen.insert(name), "{name} is in the table twice");
        }
    }

    #[test]
    fn help_lines_fit_and_are_plain() {
        for option in all() {
            let help = option.help;
            assert!((3..=90).contains(&help.len()), "{}: {help}", option.name);
            assert!(!help.ends_with('.') && !help.contains('|'), "{}: {help}", option.name);
        }
    }

    #[test]
    fn times_and_modes_are_checked() {
        let time = |text| seconds(OsStr::new(text));
        assert_eq!(time("20"), Some(Duration::from_secs(20)));
        assert_eq!(time("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(time("0"), Some(Duration::ZERO));
        for text in ["-1", "1e10", "NaN", "inf", "5s", "", " 1"] {
            assert_eq!(time(text), None, "{text}");
        }
        let mode = |text| mode(OsStr::new(text));
        assert_eq!((mode("022"), mode("0077"), mode("7")), (Some(0o22), Some(0o77), Some(7)));
        for text in ["8", "1777", "+7", "rwx", "", "0o22"] {
            assert_eq!(mode(text), None, "{text}");
        }
    }
}
