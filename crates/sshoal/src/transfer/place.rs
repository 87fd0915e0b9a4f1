//! Operands of a copy: which are at a server, and where there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use cli::{Problem, printable};
use transfer::strategy::place::{Place, RemotePlace};

use crate::sources::{self, Origin, SourceSpec};

/// A path at a server, relative to the home directory where a shell would take it so: not every
/// program that gets the path is a shell.
fn in_home(path: &[u8]) -> &[u8] {
    let below = match path {
        b"~" => b"",
        _ => path.strip_prefix(b"~/").unwrap_or(path),
    };
    let begin = below.iter().position(|byte| *byte != b'/').unwrap_or(below.len());
    if below.len() < path.len() { &below[begin..] } else { path }
}

/// A source or target at a server.
#[derive(Clone, Debug)]
pub struct RemoteOperand {
    /// The whole, with the path as the user wrote it.
    pub spec: SourceSpec,
    /// The path, split.
    pub place: Place,
}

impl RemoteOperand {
    /// Reads `host:path`.
    pub fn parse(word: &OsStr, is_target: bool) -> Result<RemoteOperand, Problem> {
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
        let place = if is_target { Place::of_target(&path) } else { Place::of(&path) };
        Ok(RemoteOperand { spec, place })
    }

    /// The source whose root is the directory of the place.
    pub fn in_directory(&self) -> SourceSpec {
        let mut spec = self.spec.clone();
        let wanted = self.place.directory.clone();
        match &mut spec.origin {
            Origin::Hosts { directory, .. } => *directory = wanted,
            Origin::Local(path) => *path = OsString::from_vec(wanted).into(),
        }
        spec
    }
}

impl From<&RemoteOperand> for RemotePlace {
    fn from(operand: &RemoteOperand) -> RemotePlace {
        RemotePlace {
            title: operand.spec.name.clone(),
            gateways: operand.spec.gateways().iter().map(ToString::to_string).collect(),
            place: operand.place.clone(),
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
            ("h:~/src", place("", Some("src"))),
            ("h:~/a/b", place("a", Some("b"))),
            ("h:~//a/", place("a/", None)),
            ("h:~", place("", None)),
            ("h:~/", place("", None)),
            ("h:~me/a", place("~me", Some("a"))),
            ("h:/~/a", place("/~", Some("a"))),
        ];
        for (word, wanted) in cases {
            let operand = RemoteOperand::parse(OsStr::new(word), false).unwrap();
            assert_eq!(operand.place, wanted, "{word}");
        }
    }

    fn place(directory: &str, name: Option<&str>) -> Place {
        let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
        Place { directory: directory.into(), name }
    }

    #[test]
    fn a_path_with_a_colon_behind_a_slash_is_of_this_machine() {
        for (word, remote) in [("h:x", true), ("./h:x", false), ("a/b:c", false), ("x", false)] {
            assert_eq!(is_remote(OsStr::new(word)), remote, "{word}");
        }
    }

    #[test]
    fn words_of_branches_are_refused() {
        let said = RemoteOperand::parse(OsStr::new("h:/x=ro"), false).unwrap_err().to_string();
        assert!(said.contains("for mounts"), "{said}");
        assert!(RemoteOperand::parse(OsStr::new("h:/a=b"), false).is_ok());
    }
}
