//! Operands of a copy: which are at a server, and where there.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use cli::{Problem, printable};
use transfer::strategy::operand::{Operand, RemoteOperand};

use crate::sources::{self, Origin, SourceSpec};

/// A path at a server, relative to the home directory where a shell would take it so: not every
/// program that gets the path is a shell.
pub fn in_home(path: &[u8]) -> Cow<'_, [u8]> {
    let below = path.strip_prefix(b"~").filter(|it| it.is_empty() || it.starts_with(b"/"));
    let Some(below) = below else { return path.into() };
    let begin = below.iter().position(|byte| *byte != b'/').unwrap_or(below.len());
    match &below[begin..] {
        // A name in the home directory, and not the home directory of another user.
        below if below.starts_with(b"~") => [b"./", below].concat().into(),
        below => below.into(),
    }
}

/// Splits a path at a server. One that is only `~user` is a directory whose name is not known:
/// `None` for a source without a slash at its end, which would get that name.
fn split(path: &[u8], is_target: bool) -> Option<Operand> {
    let operand = if is_target { Operand::of_target(path) } else { Operand::of(path) };
    let is_home = path.starts_with(b"~") && operand.directory.is_empty();
    match is_home {
        false => Some(operand),
        true => is_target.then(|| Operand { directory: path.to_vec(), name: None }),
    }
}

/// A source or target at a server.
#[derive(Clone, Debug)]
pub struct ParsedOperand {
    /// The whole, with the path as the user wrote it.
    pub spec: SourceSpec,
    /// The path, split.
    pub operand: Operand,
}

impl ParsedOperand {
    /// Reads `host:path`.
    pub fn parse(word: &OsStr, is_target: bool) -> Result<ParsedOperand, Problem> {
        let about = || format!("'{}'", printable(word));
        let spec = sources::parse(word)?;
        if spec.wants_union() {
            let why = "places and words such as =ro are for mounts";
            return Err(Problem::new(about(), why)
                .hint("a path with a '=' in it is written with one more at its end: host:a=b="));
        }
        let path = match &spec.origin {
            Origin::Hosts { directory, .. } => in_home(directory).into_owned(),
            // The grammar removes a slash at the end.
            Origin::Local(path) if word.as_bytes().ends_with(b"/") => {
                [path.as_os_str().as_bytes(), b"/"].concat()
            }
            Origin::Local(path) => path.as_os_str().as_bytes().to_vec(),
        };
        let operand = split(&path, is_target).ok_or_else(|| {
            Problem::new(about(), "a home directory, without a slash at its end").hint(
                "with a slash, its contents are copied; to copy the directory, write its path",
            )
        })?;
        Ok(ParsedOperand { spec, operand })
    }

    /// The source whose root is the directory of the operand.
    pub fn in_directory(&self) -> SourceSpec {
        let mut spec = self.spec.clone();
        let wanted = self.operand.directory.clone();
        match &mut spec.origin {
            Origin::Hosts { directory, .. } => *directory = wanted,
            Origin::Local(path) => *path = OsString::from_vec(wanted).into(),
        }
        spec
    }
}

impl From<&ParsedOperand> for RemoteOperand {
    fn from(operand: &ParsedOperand) -> RemoteOperand {
        RemoteOperand {
            title: operand.spec.name.clone(),
            gateways: operand.spec.gateways().iter().map(ToString::to_string).collect(),
            operand: operand.operand.clone(),
        }
    }
}

/// Whether an operand names another machine.
pub fn is_remote(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    let end = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
    bytes[..end].contains(&b':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Name;

    #[test]
    fn a_tilde_is_the_home_directory() {
        let cases = [
            ("h:~/src", operand("", Some("src"))),
            ("h:~/a/b", operand("a", Some("b"))),
            ("h:~//a/", operand("a/", None)),
            ("h:~", operand("", None)),
            ("h:~/", operand("", None)),
            ("h:~me/a", operand("~me", Some("a"))),
            ("h:~me/", operand("~me/", None)),
            ("h:/~/a", operand("/~", Some("a"))),
            ("h:./~me", operand(".", Some("~me"))),
            ("h:~/~me", operand(".", Some("~me"))),
            ("h:~/~me/a", operand("./~me", Some("a"))),
        ];
        for (word, wanted) in cases {
            let parsed = ParsedOperand::parse(OsStr::new(word), false).unwrap();
            assert_eq!(parsed.operand, wanted, "{word}");
        }
    }

    #[test]
    fn the_home_directory_of_another_user_is_a_target_and_no_source_with_a_name() {
        for (word, directory) in [("h:~me", "~me"), ("h:~me/", "~me/")] {
            let parsed = ParsedOperand::parse(OsStr::new(word), true).unwrap();
            assert_eq!(parsed.operand, operand(directory, None), "{word}");
        }
        let refused = ParsedOperand::parse(OsStr::new("h:~me"), false).unwrap_err().to_string();
        assert!(refused.contains("with a slash"), "{refused}");
    }

    fn operand(directory: &str, name: Option<&str>) -> Operand {
        let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
        Operand { directory: directory.into(), name }
    }

    #[test]
    fn a_path_with_a_colon_behind_a_slash_is_of_this_machine() {
        for (word, remote) in [("h:x", true), ("./h:x", false), ("a/b:c", false), ("x", false)] {
            assert_eq!(is_remote(OsStr::new(word)), remote, "{word}");
        }
    }

    #[test]
    fn words_of_branches_are_refused() {
        let said = ParsedOperand::parse(OsStr::new("h:/x=ro"), false).unwrap_err().to_string();
        assert!(said.contains("for mounts"), "{said}");
        assert!(ParsedOperand::parse(OsStr::new("h:/a=b"), false).is_ok());
    }
}
