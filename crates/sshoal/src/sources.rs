//! The sources of a mount: each a host, a pool of gateways or a local directory, with its place in
//! the mount and its branch settings.
//!
//! Plain data. [`grammar`] parses it from one word of a command line; the configuration file also
//! creates it from tables. The checks that need all sources of a mount are here. `stack` builds the
//! layers from it.

mod grammar;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use base::Name;
use cli::{Problem, printable};
use union::{Mode, Presence};

pub use grammar::{BranchWord, WORDS, name_of, parse, parse_as_sshfs, split_list, with_words};

/// Maximum number of branches of a mount: a lookup may query all of them.
pub const MAX_SOURCES: usize = 64;

/// Maximum number of gateways of a pool.
pub const MAX_GATEWAYS: usize = 64;

/// One source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSpec {
    /// The source as the user wrote it, with its place and without the words after it. Unique
    /// within a mount.
    pub name: OsString,
    /// Where in the mount its root appears; empty for the mount's root.
    pub place: Vec<Name>,
    /// Where the data is.
    pub origin: Origin,
    /// What may be changed in it.
    pub mode: Mode,
    /// The effect if it is unreachable.
    pub presence: Presence,
    /// How its gateways share requests; `None`: as set by the mount's option `pool`.
    pub pool: Option<replicas::Mode>,
    /// Whether mode or presence were given, even if only the defaults.
    pub is_branch: bool,
    /// Arguments of ssh for this source only; they come before those of the mount.
    pub ssh_arguments: Vec<OsString>,
}

/// Where the data of a source is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On one host, or behind several gateways to the same directory.
    Hosts {
        /// At least one, without duplicates.
        gateways: Vec<ssh::Destination>,
        /// The remote directory; empty for the home directory.
        directory: Vec<u8>,
    },
    /// A local directory, by its absolute path.
    Local(PathBuf),
}

impl SourceSpec {
    /// A source without settings.
    fn new(name: &OsStr, place: Vec<Name>, origin: Origin) -> SourceSpec {
        SourceSpec {
            name: name.to_owned(),
            place,
            origin,
            mode: Mode::default(),
            presence: Presence::default(),
            pool: None,
            is_branch: false,
            ssh_arguments: Vec::new(),
        }
    }

    /// The source as the user wrote it, escaped for a terminal: its name in messages.
    pub fn shown(&self) -> String {
        printable(&self.name)
    }

    /// Whether the mount must be a union even with this single source.
    pub fn wants_union(&self) -> bool {
        self.is_branch || !self.place.is_empty()
    }

    /// Its hosts; empty for a local directory.
    pub fn gateways(&self) -> &[ssh::Destination] {
        match &self.origin {
            Origin::Hosts { gateways, .. } => gateways,
            Origin::Local(_) => &[],
        }
    }
}

/// A source for tests, of a command line's word.
#[cfg(test)]
pub fn source(word: &str) -> SourceSpec {
    parse(OsStr::new(word)).unwrap()
}

/// Checks the sources of a mount together.
pub fn check(sources: &[SourceSpec]) -> Result<(), Problem> {
    let about = |source: &SourceSpec| format!("source '{}'", source.shown());
    if sources.len() > MAX_SOURCES {
        let what = format!("{} sources", sources.len());
        return Err(Problem::new(what, format!("a mount can have at most {MAX_SOURCES}")));
    }
    if let [only] = sources
        && only.presence == Presence::Optional
    {
        return Err(Problem::new(about(only), "the only source of a mount cannot be optional")
            .hint("to mount while the host is down, use -o delay_connect"));
    }
    for (index, source) in sources.iter().enumerate() {
        let same =
            |other: &SourceSpec| (&other.place, &other.origin) == (&source.place, &source.origin);
        if sources[..index].iter().any(same) {
            let why = "the source is given twice for the same place";
            return Err(Problem::new(about(source), why)
                .hint("remove one, or give one another place: PLACE=host:dir"));
        }
    }
    Ok(())
}

/// The first column of the mount table: the sources as in fstab, so that mount(8) can match them.
pub fn joined(sources: &[SourceSpec]) -> OsString {
    let names: Vec<&[u8]> = sources.iter().map(|source| source.name.as_bytes()).collect();
    OsStr::from_bytes(&names.join(&b' ')).to_owned()
}

/// Maximum length of a source in mount(2), in bytes: `PATH_MAX` without the NUL.
const MAX_TABLE_BYTES: usize = 4095;

/// `name` as the kernel accepts it. What is too long ends after a whole source or gateway, with an
/// ellipsis.
pub fn fitting(name: OsString) -> OsString {
    const REST: &[u8] = "…".as_bytes();
    if name.len() <= MAX_TABLE_BYTES {
        return name;
    }
    let begin = &name.as_bytes()[..MAX_TABLE_BYTES - REST.len()];
    let last = begin.iter().rposition(|byte| matches!(byte, b' ' | b','));
    let end = last.map_or(begin.len(), |last| last + 1);
    OsStr::from_bytes(&[&begin[..end], REST].concat()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(words: &[&str]) -> Result<(), String> {
        let sources: Vec<SourceSpec> = words.iter().map(|word| source(word)).collect();
        check(&sources).map_err(|problem| problem.to_string())
    }

    #[test]
    fn the_same_source_may_be_in_two_places_and_not_twice_in_one() {
        assert_eq!(checked(&["a:/x", "b:/x", "a:/y", "P=a:/x", "Q=a:/x", "local:/x"]), Ok(()));
        for words in [["a:/x", "a:/x"], ["a:/x=ro", "a:/x=nc"], ["P=a:/x", "P=a:/x=ro"]] {
            let said = checked(&words).unwrap_err();
            assert!(said.contains("the source is given twice for the same place\n  "), "{said}");
        }
    }

    #[test]
    fn the_only_source_is_required() {
        assert_eq!(checked(&["a:/x=optional", "b:/x"]), Ok(()));
        let said = checked(&["a:/x=optional"]).unwrap_err();
        assert_eq!(
            said,
            "source 'a:/x': the only source of a mount cannot be optional\n  \
             to mount while the host is down, use -o delay_connect"
        );
    }

    #[test]
    fn sources_have_a_bound() {
        let words: Vec<String> = (0..=MAX_SOURCES).map(|number| format!("h{number}:")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(checked(&words[1..]), Ok(()));
        assert_eq!(checked(&words).unwrap_err(), "65 sources: a mount can have at most 64");
    }

    #[test]
    fn the_table_of_mounts_shows_what_fstab_has() {
        assert_eq!(joined(&[source("a:/x=ro"), source("P=b:")]), "a:/x P=b:");
    }

    #[test]
    fn a_name_that_the_kernel_refuses_is_cut_after_a_source() {
        let fits = |bytes: usize| OsString::from("h".repeat(bytes));
        assert_eq!(fitting(fits(MAX_TABLE_BYTES)), fits(MAX_TABLE_BYTES));
        let long = format!("host:/{} ", "d".repeat(60)).repeat(64);
        let cut = fitting(long.clone().into()).into_string().unwrap();
        let whole = cut.strip_suffix(" …").unwrap();
        assert!(cut.len() <= MAX_TABLE_BYTES && cut.len() > MAX_TABLE_BYTES - 80, "{}", cut.len());
        assert!(long.starts_with(&format!("{whole} ")), "{whole}");
        let cut = fitting("gateway,".repeat(600).into()).into_string().unwrap();
        assert!(cut.ends_with("gateway,…") && cut.len() <= MAX_TABLE_BYTES, "{cut}");
        let cut = fitting(fits(MAX_TABLE_BYTES + 1)).into_string().unwrap();
        assert!(cut.ends_with("h…") && cut.len() == MAX_TABLE_BYTES, "{cut}");
    }
}
