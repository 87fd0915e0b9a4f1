//! What operands mean: where a copy begins, and what it becomes.
//!
//! As in rsync: a source with a slash at its end is what is in the directory, one without is the
//! directory itself. Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base::Name;

use crate::report::{Problem, printable};
use crate::sources::{self, Origin, SourceSpec};

/// A place: a directory, and an entry of it, or all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Empty for the home directory of a login.
    pub directory: Vec<u8>,
    /// `None` for what is in the directory.
    pub name: Option<Name>,
}

impl Place {
    /// Splits a path as a user writes it.
    pub fn of(path: &[u8]) -> Place {
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match Name::new(last) {
            // Empty, `.` or `..`
            Err(_) => Place { directory: path.to_vec(), name: None },
            Ok(name) => {
                let above = &path[..path.len() - last.len()];
                Place { directory: without_slashes(above).to_vec(), name: Some(name) }
            }
        }
    }

    /// The same entry, whether or not a slash stood behind it.
    pub fn of_target(path: &[u8]) -> Place {
        Place::of(without_slashes(path))
    }
}

/// Without slashes at the end, but for the root.
fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(path.len().min(1), |at| at + 1);
    &path[..end]
}

/// A path on another machine, relative to the home directory where a shell would take it so: not
/// all that it is given to is a shell.
fn in_home(path: &[u8]) -> &[u8] {
    let below = match path {
        b"~" => b"",
        _ => path.strip_prefix(b"~/").unwrap_or(path),
    };
    let begin = below.iter().position(|byte| *byte != b'/').unwrap_or(below.len());
    if below.len() < path.len() { &below[begin..] } else { path }
}

/// A source or target on other machines.
#[derive(Clone, Debug)]
pub struct FarPlace {
    /// The whole, with the directory as it was written.
    pub spec: SourceSpec,
    /// Its directory, taken apart.
    pub place: Place,
}

impl FarPlace {
    /// Reads `host:path`.
    pub fn parse(word: &OsStr, is_target: bool) -> Result<FarPlace, Problem> {
        let about = || format!("'{}'", printable(word));
        let spec = sources::parse(word)?;
        if spec.wants_union() {
            let why = "places and words such as =ro are for mounts";
            return Err(Problem::new(about(), why)
                .hint("a path with a '=' in it is written with one more at its end: host:a=b="));
        }
        let path = match &spec.origin {
            Origin::Hosts { directory, .. } => in_home(directory).to_vec(),
            // The grammar takes a slash at its end away.
            Origin::Local(path) if word.as_bytes().ends_with(b"/") => {
                [path.as_os_str().as_bytes(), b"/"].concat()
            }
            Origin::Local(path) => path.as_os_str().as_bytes().to_vec(),
        };
        let place = if is_target { Place::of_target(&path) } else { Place::of(&path) };
        Ok(FarPlace { spec, place })
    }

    /// The source with another directory.
    pub fn spec_at(&self, directory: &[u8]) -> SourceSpec {
        let mut spec = self.spec.clone();
        match &mut spec.origin {
            Origin::Hosts { directory: there, .. } => *there = directory.to_vec(),
            Origin::Local(path) => *path = OsString::from_vec(directory.to_vec()).into(),
        }
        spec
    }
}

/// Whether an operand names another machine.
pub fn is_far(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    let end = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
    bytes[..end].contains(&b':')
}

/// A directory of this machine and an entry of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearPlace {
    /// Never empty.
    pub directory: PathBuf,
    /// `None` for what is in the directory.
    pub name: Option<Name>,
}

impl NearPlace {
    /// Splits a path as a user writes it.
    pub fn of(path: &OsStr) -> NearPlace {
        NearPlace::from(Place::of(path.as_bytes()))
    }

    /// Of a target: what is there already is a directory for what comes, and something else is
    /// not.
    pub fn of_target(path: &OsStr) -> NearPlace {
        if Path::new(path).is_dir() {
            return NearPlace { directory: path.into(), name: None };
        }
        NearPlace::from(Place::of_target(path.as_bytes()))
    }

    /// The path.
    pub fn path(&self) -> PathBuf {
        match &self.name {
            Some(name) => self.directory.join(OsStr::from_bytes(name.as_bytes())),
            None => self.directory.clone(),
        }
    }
}

impl From<Place> for NearPlace {
    fn from(place: Place) -> NearPlace {
        let directory = match place.directory.is_empty() {
            true => PathBuf::from("."),
            false => OsString::from_vec(place.directory).into(),
        };
        NearPlace { directory, name: place.name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let far = FarPlace::parse(OsStr::new(word), false).unwrap();
            assert_eq!(far.place, wanted, "{word}");
        }
    }

    fn place(directory: &str, name: Option<&str>) -> Place {
        let name = name.map(|name| Name::new(name.as_bytes()).unwrap());
        Place { directory: directory.into(), name }
    }

    #[test]
    fn a_slash_means_what_is_in_it() {
        for (path, directory, name) in [
            ("", "", None),
            ("a", "", Some("a")),
            ("a/b", "a", Some("b")),
            ("a/b/", "a/b/", None),
            ("/a", "/", Some("a")),
            ("/", "/", None),
            ("a/..", "a/..", None),
            (".", ".", None),
            ("a//b", "a", Some("b")),
        ] {
            assert_eq!(Place::of(path.as_bytes()), place(directory, name), "{path}");
        }
        for (path, directory, name) in
            [("a/b/", "a", Some("b")), ("a", "", Some("a")), ("", "", None), ("//", "/", None)]
        {
            assert_eq!(Place::of_target(path.as_bytes()), place(directory, name), "{path}");
        }
    }

    #[test]
    fn a_path_with_a_colon_behind_a_slash_is_of_this_machine() {
        for (word, far) in [("h:x", true), ("./h:x", false), ("a/b:c", false), ("x", false)] {
            assert_eq!(is_far(OsStr::new(word)), far, "{word}");
        }
    }

    #[test]
    fn words_of_branches_are_refused() {
        let said = FarPlace::parse(OsStr::new("h:/x=ro"), false).unwrap_err().to_string();
        assert!(said.contains("for mounts"), "{said}");
        assert!(FarPlace::parse(OsStr::new("h:/a=b"), false).is_ok());
    }
}
