//! The options of `-o`: one definition feeds the parser, `--help`, `docs/options.md`, the manual,
//! the completion and the suggestions for misspelled ones.
//!
//! An entry's [`Effect`] is both the form of its value and its effect, so that the two cannot
//! disagree. Keywords of ssh_config(5) are in [a list](super::ssh_keywords) of their own.

mod cache;
mod compatibility;
mod connection;
mod mount;

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use cli::printable;

use super::draft::Draft;
use super::request::MountRequest;

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
    /// The present value, if the option can be changed while the file system is mounted.
    pub change: Option<Present>,
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
    /// As [`Effect::Custom`]; the second function is the effect of the option without a value.
    Optional(&'static str, fn(&mut Draft, &str) -> Result<(), String>, fn(&mut Draft)),
    /// Accepted with or without a value, and without effect, for this reason.
    Ignored(&'static str),
    /// Known, but an error, for this reason.
    Refused(&'static str),
}

/// The words of `-o` that stand for the present value of an option that can be changed; `None` if
/// another option shows it.
pub type Present = fn(&MountRequest) -> Option<String>;

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
    Group { title: "Several hosts, and unreachable hosts", options: connection::MANY_HOSTS },
    Group { title: "Consistency and caching", options: cache::OPTIONS },
    Group { title: "Disk cache and digests", options: cache::DISK },
    Group { title: "Owners, permissions, symbolic links", options: mount::OWNERSHIP },
    Group { title: "Mount", options: mount::OPTIONS },
    Group { title: "Process", options: mount::PROCESS },
    Group { title: "Options for mount(8) and fstab", options: compatibility::FSTAB },
    Group { title: "Other options of sshfs and libfuse", options: compatibility::OTHERS },
];

const fn option(name: &'static str, effect: Effect) -> MountOption {
    MountOption { name, aliases: &[], help: "", is_prominent: false, change: None, effect }
}

const fn flag(name: &'static str, set: fn(&mut Draft)) -> MountOption {
    option(name, Effect::Flag(set))
}

const fn text(
    name: &'static str,
    value: &'static str,
    set: fn(&mut Draft, OsString),
) -> MountOption {
    option(name, Effect::Text(value, set))
}

const fn seconds(name: &'static str, set: fn(&mut Draft, Duration)) -> MountOption {
    option(name, Effect::Seconds(set))
}

const fn number(name: &'static str, min: u32, max: u32, set: fn(&mut Draft, u32)) -> MountOption {
    option(name, Effect::Number(min, max, set))
}

const fn mode(name: &'static str, set: fn(&mut Draft, u32)) -> MountOption {
    option(name, Effect::Mode(set))
}

const fn choice(name: &'static str, words: &'static [Word]) -> MountOption {
    option(name, Effect::Choice(words))
}

const fn custom(
    name: &'static str,
    value: &'static str,
    set: fn(&mut Draft, &str) -> Result<(), String>,
) -> MountOption {
    option(name, Effect::Custom(value, set))
}

const fn ignored(name: &'static str, why: &'static str) -> MountOption {
    option(name, Effect::Ignored(why))
}

const fn refused(name: &'static str, why: &'static str) -> MountOption {
    option(name, Effect::Refused(why))
}

impl MountOption {
    const fn help(mut self, help: &'static str) -> MountOption {
        self.help = help;
        self
    }

    const fn also(mut self, aliases: &'static [&'static str]) -> MountOption {
        self.aliases = aliases;
        self
    }

    const fn prominent(mut self) -> MountOption {
        self.is_prominent = true;
        self
    }

    /// The option can be changed while the file system is mounted: what its effect changes in a
    /// [`MountRequest`] is passed on by [`super::settings`].
    const fn changeable(mut self, present: Present) -> MountOption {
        self.change = Some(present);
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
            Effect::Optional(value, ..) => format!("{name}[={value}]"),
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
        let raw = value.filter(|value| !value.is_empty());
        let text = raw.and_then(OsStr::to_str);
        match &self.effect {
            Effect::Ignored(_) => {}
            Effect::Refused(why) => return Err((*why).to_owned()),
            Effect::Flag(_) if value.is_some() => return Err("takes no value".to_owned()),
            Effect::Flag(set) => set(draft),
            Effect::Text(_, set) => set(draft, raw.ok_or_else(|| wanted("a value"))?.to_owned()),
            Effect::Seconds(set) => {
                let seconds = text.and_then(seconds_of);
                set(draft, seconds.ok_or_else(|| wanted("a number of seconds"))?);
            }
            Effect::Number(min, max, set) => {
                let number = text.and_then(|text| text.parse().ok());
                let number = number.filter(|number| (min..=max).contains(&number));
                let what = || wanted(&format!("a whole number from {min} to {max}"));
                set(draft, number.ok_or_else(what)?);
            }
            Effect::Mode(set) => {
                let mode = text.and_then(mode_of);
                set(draft, mode.ok_or_else(|| wanted("octal permission bits"))?);
            }
            Effect::Choice(words) => {
                let found = words.iter().find(|(word, _)| text == Some(*word));
                let all = || {
                    let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                    let (last, others) = words.split_last().expect("a choice has words");
                    format!("must be {} or {last}", others.join(", "))
                };
                (found.ok_or_else(all)?.1)(draft);
            }
            Effect::Optional(.., set) if value.is_none() => set(draft),
            Effect::Custom(_, set) | Effect::Optional(_, set, _) => {
                set(draft, text.ok_or_else(|| wanted("a value"))?)?;
            }
        }
        Ok(())
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
fn seconds_of(text: &str) -> Option<Duration> {
    const MAX_SECONDS: f64 = 1e9;
    let seconds: f64 = text.parse().ok()?;
    (0.0..=MAX_SECONDS).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

fn mode_of(text: &str) -> Option<u32> {
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
        let time = seconds_of;
        assert_eq!(time("20"), Some(Duration::from_secs(20)));
        assert_eq!(time("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(time("0"), Some(Duration::ZERO));
        for text in ["-1", "1e10", "NaN", "inf", "5s", "", " 1"] {
            assert_eq!(time(text), None, "{text}");
        }
        let mode = mode_of;
        assert_eq!((mode("022"), mode("0077"), mode("7")), (Some(0o22), Some(0o77), Some(7)));
        for text in ["8", "1777", "+7", "rwx", "", "0o22"] {
            assert_eq!(mode(text), None, "{text}");
        }
    }
}
