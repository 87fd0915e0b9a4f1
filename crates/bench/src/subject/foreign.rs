//! Programs that copy by a command line that is given: `--copier 'NAME=PULL;PUSH'`.
//!
//! A command is words as a shell splits them, run without a shell. In a word
//!
//! | written | stands for |
//! |---|---|
//! | `%f` `%t` | source and target; that of the server is an absolute path on it |
//! | `%h` | the host as ssh knows it, with the options of `%o` |
//! | `%a` `%p` `%u` | address, port and user, for programs with an ssh of their own |
//! | `%o` | the options of ssh: as a word of its own one word for each, else quoted for a shell |
//! | `%%` | a percent sign |
//!
//! A source that is a directory has a slash behind it: its contents are to become the target.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::quoting::{shell_quoted, shown_command};
use crate::server::Endpoint;
use crate::subject::Direction;

/// Both commands of such a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    pull: Vec<String>,
    push: Vec<String>,
}

/// What the placeholders of a command stand for.
pub(super) struct Fields<'a> {
    pub(super) from: OsString,
    pub(super) to: OsString,
    pub(super) host: &'a str,
    pub(super) endpoint: &'a Endpoint,
    pub(super) options: Vec<OsString>,
}

impl Orders {
    /// `PULL;PUSH`, divided at the first semicolon that is not quoted.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Orders, String> {
        let form = || "not of the form PULL;PUSH".to_owned();
        let (pull, push) = text.split_at(end_of_first(text).ok_or_else(form)?);
        let words = |line: &str| {
            let words = shlex::split(line).ok_or("a quote has to be closed")?;
            let fields: Vec<Option<char>> = words.iter().flat_map(|word| fields(word)).collect();
            if words.is_empty() {
                return Err("a command is empty".to_owned());
            }
            if let Some(other) = fields.iter().find(|field| !is_known(**field)) {
                return Err(match other {
                    Some(other) => format!("%{} is not known", other.escape_debug()),
                    None => "a % stands alone; %% is a percent sign".to_owned(),
                });
            }
            if !['f', 't'].iter().all(|&field| fields.contains(&Some(field))) {
                return Err(format!("'{}' lacks %f or %t", line.trim().escape_debug()));
            }
            Ok(words)
        };
        Ok(Orders { pull: words(pull)?, push: words(&push[1..])? })
    }

    /// The programs that it runs.
    pub(super) fn programs(&self) -> [&str; 2] {
        [&self.pull, &self.push].map(|words| words.first().map_or("", String::as_str))
    }

    /// Whether both commands pass on the options of ssh, the cipher among them.
    pub(super) fn use_ssh(&self) -> bool {
        let has = |words: &[String]| {
            words.iter().any(|word| fields(word).any(|field| field == Some('o')))
        };
        has(&self.pull) && has(&self.push)
    }

    /// For reports: the command that copies from the server.
    pub(super) fn shown(&self) -> String {
        shown_command(&self.pull)
    }

    /// The command that copies.
    pub(super) fn command(&self, direction: Direction, fields: &Fields<'_>) -> Command {
        let words = match direction {
            Direction::Out => &self.pull,
            Direction::In => &self.push,
        };
        let mut words = words.iter().flat_map(|word| match word.as_str() {
            "%o" => fields.options.clone(),
            word => vec![fields.filled(word)],
        });
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }
}

impl Fields<'_> {
    fn filled(&self, word: &str) -> OsString {
        let mut filled = OsString::new();
        let mut letters = word.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                filled.push(letter.encode_utf8(&mut [0; 4]));
                continue;
            }
            match letters.next() {
                Some('f') => filled.push(&self.from),
                Some('t') => filled.push(&self.to),
                Some('h') => filled.push(self.host),
                Some('a') => filled.push(&self.endpoint.address),
                Some('p') => filled.push(self.endpoint.port.to_string()),
                Some('u') => filled.push(&self.endpoint.user),
                Some('o') => {
                    let quoted = self.options.iter().map(|option| shell_quoted(option));
                    filled.push(quoted.collect::<Vec<_>>().join(OsStr::new(" ")));
                }
                _ => filled.push("%"),
            }
        }
        filled
    }
}

/// The letters behind the percent signs of a word; `None` for a sign at its end.
fn fields(word: &str) -> impl Iterator<Item = Option<char>> {
    let mut letters = word.chars();
    std::iter::from_fn(move || letters.by_ref().find(|&it| it == '%').map(|_| letters.next()))
}

fn is_known(field: Option<char>) -> bool {
    field.is_some_and(|letter| "ftahpuo%".contains(letter))
}

/// Where the first semicolon is that stands in no quotes.
fn end_of_first(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (None | Some('"'), '\\') => escaped = true,
            (None, ';') => return Some(at),
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, direction: Direction) -> Vec<String> {
        let endpoint = Endpoint {
            address: "10.0.0.1".to_owned(),
            port: 2222,
            user: "ann".to_owned(),
            ..Endpoint::default()
        };
        let fields = Fields {
            from: "/from/".into(),
            to: "/to".into(),
            host: "server",
            endpoint: &endpoint,
            options: ["-F", "/a b/config", "-o", "Port=2222"].map(OsString::from).to_vec(),
        };
        let command = Orders::parse(text).unwrap().command(direction, &fields);
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn placeholders_are_replaced_and_options_are_words_of_their_own() {
        let text = "cp %o %h:%f %t; sh -c 'exec x -e \"ssh %o\" 50%% %u@%a:%p; true' %f %t";
        assert_eq!(
            words(text, Direction::Out),
            ["cp", "-F", "/a b/config", "-o", "Port=2222", "server:/from/", "/to"]
        );
        assert_eq!(
            words(text, Direction::In),
            [
                "sh",
                "-c",
                "exec x -e \"ssh -F '/a b/config' -o Port=2222\" 50% ann@10.0.0.1:2222; true",
                "/from/",
                "/to"
            ]
        );
        assert_eq!(words(r"a \; %f %t;b %f %t", Direction::In), ["b", "/from/", "/to"]);
        assert!(Orders::parse(text).unwrap().use_ssh());
        assert!(!Orders::parse("a %o %f %t;b %%o %f %t").unwrap().use_ssh());
    }

    #[test]
    fn what_cannot_copy_is_refused() {
        for (text, why) in [
            ("cp %f %t", "not of the form"),
            ("cp 'a;b' %f %t", "not of the form"),
            ("cp %f %t;", "empty"),
            ("cp %f;cp %f %t", "lacks %f or %t"),
            ("cp %f %t;cp %f %%t", "lacks %f or %t"),
            ("cp %x %f %t;cp %f %t", "%x is not known"),
            ("cp %f %t;cp %f %t %", "stands alone"),
            ("cp %f %t;cp '%f %t", "quote"),
        ] {
            let refused = Orders::parse(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
