//! Operands of a copy: which are at a server, and where there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use cli::{Problem, printable};
use transfer::strategy::operand::{Operand, RemoteOperand};

use crate::sources::{self, Origin, SourceSpec};

/// A path at a server, relative to the home directory where a shell would take it so: not every
/// program that gets the path is a shell.
pub fn in_home(path: &[u8]) -> &[u8] {
    let below = match path {
        b"~" => b"",
        _ => path.strip_prefix(b"~/").unwrap_or(path),
    };
    let begin = below.iter().position(|byte| *byte != b'/').unwrap_or(below.len());
    if below.len() < path.len() { &below[begin..] } else { path }
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
            Origin::Hosts { directory, .. } => in_home(directory).to_vec(),
            // The grammar removes a slash at the end.
            Origin::Local(path) if word.as_bytes().ends_with(b"/") => {
                [path.as_os_str().as_bytes(), b"/"].concat()
            }
            Origin::Local(path) => path.as_os_str().as_bytes().to_vec(),
        };
        let operand = if is_target { Operand::of_target(&path) } else { Operand::of(&path) };
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
            ("h:/~/a", operand("/~", Some("a"))),
        ];
        for (word, wanted) in cases {
            let parsed = ParsedOperand::parse(OsStr::new(word), false).unwrap();
            assert_eq!(parsed.operand, wanted, "{word}");
        }
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
