//! The options of `-o`: one definition feeds the parser, `--help`, `docs/options.md` and the
//! suggestions for misspelled ones.
//!
//! An entry's [`Effect`] is both the form of its value and its effect, so that the two cannot
//! disagree. Keywords of ssh_config(5) are in [a list](super::ssh_keywords) of their own.

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

use cli::printable;

use super::draft::Draft;

/// One option.
pub struct MountOption {
    /// The name as it is typed. A name that ends in `*` stands for all with that prefix.
    pub name: &'static str,
    /// Other spellings, most of them from older versions of sshfs.
    pub aliases: &'static [&'static str],
    /// One line, without a full stop, that can be read alone: `help OPTION` prints nothing else.
    pub help: &'static str,
    /// Whether `--help` shows the option.
    pub is_prominent: bool,
    /// Form of the value, and effect.
    pub effect: Effect,
}

/// The form of an option's value, and the option's effect.
pub enum Effect {
    /// No value.
    Flag(fn(&mut Draft)),
    /// Any text that is not empty. The first field is the value's name in the help.
    Text(&'static str, fn(&mut Draft, OsString)),
    /// Seconds, with an optional fraction.
    Seconds(fn(&mut Draft, Duration)),
    /// A whole number within these limits.
    Number(u32, u32, fn(&mut Draft, u32)),
    /// Permission bits, octal.
    Mode(fn(&mut Draft, u32)),
    /// One of these words.
    Choice(&'static [Word]),
    /// A value with a grammar of its own. The error says what the value should be.
    Custom(&'static str, fn(&mut Draft, &str) -> Result<(), String>),
    /// Accepted with or without a value, and without effect, for this reason.
    Ignored(&'static str),
    /// Known, but an error, for this reason.
    Refused(&'static str),
}

/// A word that may be a value, and its effect.
pub type Word = (&'static str, fn(&mut Draft));

/// A section of the help.
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// The options in the order in which they are shown.
    pub options: &'static [MountOption],
}

/// All options.
pub const GROUPS: &[Group] = &[
    Group { title: "Connection", options: connection::OPTIONS },
    Group { title: "Several hosts, and unreachable hosts", options: many_hosts::OPTIONS },
    Group { title: "Consistency and caching", options: cache::OPTIONS },
    Group { title: "Disk cache and digests", options: disk::OPTIONS },
    Group { title: "Owners, permissions, symbolic links", options: ownership::OPTIONS },
    Group { title: "Mount", options: fuse::OPTIONS },
    Group { title: "Process", options: process::OPTIONS },
    Group { title: "Options for mount(8) and fstab", options: compatibility::FSTAB },
    Group { title: "Other options of sshfs and libfuse", options: compatibility::OTHERS },
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

    /// All spellings, the name first.
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

    /// The name and the form of the value, as the help shows them.
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

    /// Whether the option takes a value.
    pub fn may_have_value(&self) -> bool {
        !matches!(self.effect, Effect::Flag(_))
    }

    /// Whether the option is accepted without effect, as those of fstab are.
    pub fn is_ignored(&self) -> bool {
        matches!(self.effect, Effect::Ignored(_))
    }

    /// `ignored` or `refused`, and the reason, if the option has no effect.
    pub fn why_not(&self) -> Option<(&'static str, &'static str)> {
        match self.effect {
            Effect::Ignored(why) => Some(("ignored", why)),
            Effect::Refused(why) => Some(("refused", why)),
            _ => None,
        }
    }

    /// Sets the option in `draft`. The error says what the value should be.
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

    /// The option with a valid value.
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

/// A time-out from 0 to about thirty years; more would be a typing error, and could overflow.
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

/// An option as it was typed, for messages.
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
