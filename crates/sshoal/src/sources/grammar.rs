//! The grammar of a source in one word of a command line.
//!
//! ```text
//! source  = [PLACE "="] where ["=" [word {"," word}]]
//! where   = gateway {"," gateway} ":" [DIRECTORY]
//!         | "local:" ABSOLUTE-DIRECTORY
//!         | ("ssh://" | "sftp://") [USER "@"] HOST [":" PORT] ["/" DIRECTORY]
//! gateway = [USER "@"] (HOST | "[" ADDRESS "]")
//! word    = "rw" | "ro" | "nc" | "required" | "optional" | "balance" | "hash" | "failover"
//! ```
//!
//! Ambiguities are resolved so:
//!
//! - PLACE is the text before the first `=`, if that comes before the first `:`.
//! - The text after the last `=` is a list of words only if each is a known word, or if it is
//!   empty. So `host:/a=b` is a directory; a directory whose name ends like a list is written with
//!   an empty list after it: `host:/x=ro=`.
//! - Commas separate gateways before the `:`, and have no meaning in the directory.
//! - `local:` with an absolute directory is a local directory. A host of that name is `[local]:`.
//!
//! All parts are bytes; only a host and a user must be text.

use std::ffi::{OsStr, OsString};
use std::mem::discriminant;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use base::{InvalidName, Name};
use cli::{Problem, printable};
use replicas::Mode as PoolMode;
use ssh::Destination;
use union::{Mode, Presence};

use super::{MAX_GATEWAYS, Origin, SourceSpec};
use crate::connector::problem;

/// The hint for an invalid source.
const SHAPE: &str = "a source is [PLACE=][user@]host[,host…]:[dir][=ro|nc|optional|…]";

/// The meaning of a word after a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchWord {
    /// What may be changed.
    Mode(Mode),
    /// The effect if it is unreachable.
    Presence(Presence),
    /// How its gateways share requests.
    Pool(PoolMode),
}

/// All words.
pub const WORDS: &[(&str, BranchWord)] = &[
    ("rw", BranchWord::Mode(Mode::Rw)),
    ("ro", BranchWord::Mode(Mode::Ro)),
    ("nc", BranchWord::Mode(Mode::NoCreate)),
    ("required", BranchWord::Presence(Presence::Required)),
    ("optional", BranchWord::Presence(Presence::Optional)),
    ("balance", BranchWord::Pool(PoolMode::Balance)),
    ("hash", BranchWord::Pool(PoolMode::Hash)),
    ("failover", BranchWord::Pool(PoolMode::Failover)),
];

/// The name of a word.
pub fn name_of(word: BranchWord) -> &'static str {
    WORDS.iter().find(|(_, known)| *known == word).map_or("", |(name, _)| name)
}

/// Parses a source.
pub fn parse(word: &OsStr) -> Result<SourceSpec, Problem> {
    let (name, words) = cut_words(word.as_bytes());
    let (place, rest) = cut_place(name);
    let place = place
        .map_or(Ok(Vec::new()), parse_place)
        .map_err(|why| Problem::new(about(word), why).hint(SHAPE))?;
    let origin = parse_origin(word, rest)?;
    let source = SourceSpec::new(OsStr::from_bytes(name), place, origin);
    with_words(source, &words).map_err(|(why, hint)| Problem::new(about(word), why).hint(hint))
}

/// Parses a source as sshfs does: one host and one directory of any name.
pub fn parse_as_sshfs(word: &OsStr) -> Result<SourceSpec, Problem> {
    let (destination, directory) =
        Destination::parse(word.as_bytes()).map_err(|e| said(word, &e))?;
    let origin = Origin::Hosts { gateways: vec![destination], directory };
    Ok(SourceSpec::new(word, Vec::new(), origin))
}

/// Splits the first field of an fstab line, which contains all sources, at its spaces. A part that
/// is not a source belongs to the one before it, whose directory has a space in its name.
pub fn split_list(list: &OsStr) -> Vec<OsString> {
    let mut sources: Vec<Vec<u8>> = Vec::new();
    for part in list.as_bytes().split(|byte| *byte == b' ') {
        match sources.last_mut() {
            Some(before) if part.is_empty() || parse(OsStr::from_bytes(part)).is_err() => {
                before.push(b' ');
                before.extend_from_slice(part);
            }
            _ => sources.push(part.to_vec()),
        }
    }
    sources.iter().map(|source| OsStr::from_bytes(source).to_owned()).collect()
}

/// Parses a place in the mount: a relative path without `.` and `..`. The error is the reason.
fn parse_place(place: &[u8]) -> Result<Vec<Name>, String> {
    let shown = || base::printable(place);
    if place.is_empty() {
        return Err("the place before '=' is empty".to_owned());
    }
    if place.starts_with(b"/") {
        return Err(format!("the place '{}' must be relative to the mount point", shown()));
    }
    if place.starts_with(b"-") {
        return Err(format!("the place '{}' cannot begin with '-', as options do", shown()));
    }
    let names = place.split(|byte| *byte == b'/').map(Name::new).collect::<Result<Vec<_>, _>>();
    names.map_err(|invalid| match invalid {
        InvalidName::Empty => format!("the place '{}' contains an empty name", shown()),
        InvalidName::Dots => format!("the place '{}' contains '.' or '..'", shown()),
        InvalidName::ForbiddenByte => format!("the place '{}' contains a NUL byte", shown()),
        InvalidName::TooLong => format!("the place '{}' contains {invalid}", shown()),
    })
}

/// Applies the words to the source. The error is the reason and a hint.
pub fn with_words(
    mut source: SourceSpec,
    words: &[BranchWord],
) -> Result<SourceSpec, (&'static str, &'static str)> {
    for (index, word) in words.iter().enumerate() {
        match *word {
            BranchWord::Mode(mode) => source.mode = mode,
            BranchWord::Presence(presence) => source.presence = presence,
            BranchWord::Pool(pool) => source.pool = Some(pool),
        }
        source.is_branch |= !matches!(word, BranchWord::Pool(_));
        let is_other = |before| discriminant(before) == discriminant(word) && before != word;
        if words[..index].iter().any(is_other) {
            return Err((
                "contradictory branch modes",
                "use at most one of rw, ro, nc; of required, optional; of balance, hash, failover",
            ));
        }
    }
    if source.pool.is_some() && source.gateways().len() < 2 {
        return Err((
            "a pool needs several gateways",
            "separate them by commas: gw1,gw2:/dir=balance",
        ));
    }
    Ok(source)
}

fn about(word: &OsStr) -> String {
    format!("source '{}'", printable(word))
}

/// The text before the last `=`, and the words after it; the whole text if they are not a list.
fn cut_words(word: &[u8]) -> (&[u8], Vec<BranchWord>) {
    let Some(at) = word.iter().rposition(|byte| *byte == b'=') else {
        return (word, Vec::new());
    };
    let list = &word[at + 1..];
    // `FOO=` has no source before it; the error is reported later.
    if !word[..at].contains(&b':') {
        return (word, Vec::new());
    }
    if list.is_empty() {
        return (&word[..at], Vec::new());
    }
    let find = |text: &[u8]| WORDS.iter().find(|(known, _)| known.as_bytes() == text);
    let words = list.split(|byte| *byte == b',').map(|text| Some(find(text)?.1)).collect();
    match words {
        Some(words) => (&word[..at], words),
        None => (word, Vec::new()),
    }
}

/// Splits off the text before the first `=`, if that comes before the first `:`.
fn cut_place(word: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let first = word.iter().position(|byte| matches!(byte, b'=' | b':'));
    match first {
        Some(at) if word[at] == b'=' => (Some(&word[..at]), &word[at + 1..]),
        _ => (None, word),
    }
}

fn parse_origin(word: &OsStr, text: &[u8]) -> Result<Origin, Problem> {
    if let Some(path) = text.strip_prefix(b"local:") {
        return local(word, path);
    }
    if Destination::is_url(text) {
        let (destination, directory) = Destination::parse(text).map_err(|e| said(word, &e))?;
        return Ok(Origin::Hosts { gateways: vec![destination], directory });
    }
    let colon = Destination::host_end(text).map_err(|error| said(word, &error))?;
    let mut gateways = Vec::new();
    for gateway in split_gateways(&text[..colon]) {
        if gateway == b"local" && text[..colon].len() > gateway.len() {
            return Err(Problem::new(about(word), "a pool cannot contain a local directory")
                .hint("a host named local is written [local]"));
        }
        let alone = [gateway, b":"].concat();
        let (destination, _) = Destination::parse(&alone).map_err(|error| said(word, &error))?;
        if gateways.contains(&destination) {
            let why = format!("the gateway '{destination}' is listed twice");
            return Err(Problem::new(about(word), why));
        }
        gateways.push(destination);
    }
    if gateways.len() > MAX_GATEWAYS {
        return Err(Problem::new(
            about(word),
            format!("a pool can have at most {MAX_GATEWAYS} gateways"),
        ));
    }
    Ok(Origin::Hosts { gateways, directory: text[colon + 1..].to_vec() })
}

fn local(word: &OsStr, path: &[u8]) -> Result<Origin, Problem> {
    if !path.starts_with(b"/") {
        return Err(Problem::new(about(word), "a local directory needs an absolute path")
            .hint("local:/dir is a local directory; a host named local is written [local]:dir"));
    }
    if path.contains(&0) {
        return Err(Problem::new(about(word), "the path contains a NUL byte"));
    }
    Ok(Origin::Local(PathBuf::from(OsStr::from_bytes(path))))
}

/// Splits at the commas outside of brackets.
fn split_gateways(hosts: &[u8]) -> Vec<&[u8]> {
    let mut in_brackets = false;
    hosts
        .split(|byte| {
            match byte {
                b'[' => in_brackets = true,
                b']' => in_brackets = false,
                _ => {}
            }
            *byte == b',' && !in_brackets
        })
        .collect()
}

fn said(word: &OsStr, error: &ssh::Error) -> Problem {
    problem(about(word), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(word: &str) -> SourceSpec {
        parse(OsStr::new(word)).unwrap_or_else(|problem| panic!("{word}: {problem}"))
    }

    fn failure(word: &str) -> String {
        parse(OsStr::new(word)).map(|source| panic!("{source:?}")).unwrap_err().to_string()
    }

    fn place(source: &SourceSpec) -> String {
        let names: Vec<String> = source.place.iter().map(Name::to_string).collect();
        names.join("/")
    }

    /// The gateways and the directory, in the shape of a plain source.
    fn origin(source: &SourceSpec) -> String {
        match &source.origin {
            Origin::Local(path) => format!("local {}", path.display()),
            Origin::Hosts { gateways, directory } => {
                let hosts: Vec<String> = gateways.iter().map(Destination::to_string).collect();
                format!("{} {}", hosts.join("+"), directory.escape_ascii())
            }
        }
    }

    #[test]
    fn places_hosts_directories_and_words_are_told_apart() {
        for (word, wanted_place, wanted_origin, name) in [
            ("h:", "", "h ", "h:"),
            ("u@h:d/e", "", "u@h d/e", "u@h:d/e"),
            ("h:/a:b", "", "h /a:b", "h:/a:b"),
            ("h:/a,b", "", "h /a,b", "h:/a,b"),
            ("h:/a=b", "", "h /a=b", "h:/a=b"),
            ("h:/x=ro", "", "h /x", "h:/x"),
            ("h:/x=ro=", "", "h /x=ro", "h:/x=ro"),
            ("h:/x==", "", "h /x=", "h:/x="),
            ("h:=ro", "", "h ", "h:"),
            ("h:/x=ro,new", "", "h /x=ro,new", "h:/x=ro,new"),
            ("h:/x=ro,", "", "h /x=ro,", "h:/x=ro,"),
            ("FOO=h:/d", "FOO", "h /d", "FOO=h:/d"),
            ("a/b c=u@h:/d=nc,optional", "a/b c", "u@h /d", "a/b c=u@h:/d"),
            ("FOO=h:/a=b", "FOO", "h /a=b", "FOO=h:/a=b"),
            ("rw=h:", "rw", "h ", "rw=h:"),
            ("g1,u@g2,g3:/p", "", "g1+u@g2+g3 /p", "g1,u@g2,g3:/p"),
            ("g1,g2:/p,q=hash", "", "g1+g2 /p,q", "g1,g2:/p,q"),
            ("[::1]:/d", "", "::1 /d", "[::1]:/d"),
            (
                "FOO=[fe80::1%e=1],u@[::2]:/d",
                "FOO",
                "fe80::1%e=1+u@::2 /d",
                "FOO=[fe80::1%e=1],u@[::2]:/d",
            ),
            ("ssh://u@h:22/d=ro", "", "u@h /d", "ssh://u@h:22/d"),
            ("P=sftp://u@h/d", "P", "u@h /d", "P=sftp://u@h/d"),
            ("local:/srv", "", "local /srv", "local:/srv"),
            ("X=local:/srv/a b=ro", "X", "local /srv/a b", "X=local:/srv/a b"),
            ("[local]:/d", "", "local /d", "[local]:/d"),
            ("u@local:/d", "", "u@local /d", "u@local:/d"),
            ("locals:/d", "", "locals /d", "locals:/d"),
        ] {
            let source = parsed(word);
            assert_eq!(
                (&*place(&source), &*origin(&source)),
                (wanted_place, wanted_origin),
                "{word}"
            );
            assert_eq!(source.name, name, "{word}");
        }
        let port = parsed("ssh://h:2222/d");
        assert_eq!(port.gateways()[0].port(), Some(2222));
    }

    #[test]
    fn words_say_what_kind_of_branch_it_is() {
        let plain = parsed("h:/x");
        assert_eq!((plain.mode, plain.presence, plain.pool), Default::default());
        assert!(!plain.wants_union());
        assert!(parsed("P=h:/x").wants_union() && parsed("h:/x=rw").wants_union());
        let branch = parsed("g,h:/x=optional,nc,failover");
        assert_eq!((branch.mode, branch.presence), (Mode::NoCreate, Presence::Optional));
        assert_eq!(branch.pool, Some(PoolMode::Failover));
        assert!(!parsed("g,h:/x=balance").wants_union(), "a pool is no union");
        assert_eq!(parsed("h:/x=ro,ro").mode, Mode::Ro);
        for (text, word) in WORDS {
            let source = parsed(&format!("g,h:/x={text}"));
            match word {
                BranchWord::Mode(mode) => assert_eq!(source.mode, *mode),
                BranchWord::Presence(presence) => assert_eq!(source.presence, *presence),
                BranchWord::Pool(pool) => assert_eq!(source.pool, Some(*pool)),
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        for (word, why, hint) in [
            ("host", "contains no host", "an IPv6 address is written"),
            ("FOO=bar", "contains no host", "IPv6"),
            ("/h:/d", "contains no host", "IPv6"),
            (":/d", "invalid hostname \"\": the host is empty", "alias in ~/.ssh/config"),
            ("a,,b:/d", "invalid hostname \"\"", ""),
            ("-oX:/d", "cannot begin with '-'", ""),
            ("=h:/d", "the place before '=' is empty", "PLACE="),
            ("/a=h:/d", "the place '/a' must be relative to the mount point", "PLACE="),
            ("a/../b=h:/d", "the place 'a/../b' contains '.' or '..'", "PLACE="),
            (".=h:/d", "the place '.' contains '.' or '..'", "PLACE="),
            ("a//b=h:/d", "the place 'a//b' contains an empty name", "PLACE="),
            ("a/=h:/d", "the place 'a/' contains an empty name", "PLACE="),
            ("-oA=h:/d", "cannot begin with '-', as options do", "PLACE="),
            ("h:/x=ro,rw", "contradictory branch modes", "one of rw, ro, nc"),
            ("h:/x=required,optional", "contradict", "of required, optional"),
            ("g,h:/x=hash,balance", "contradict", "of balance, hash"),
            ("h:/x=balance", "a pool needs several gateways", "gw1,gw2:/dir=balance"),
            ("local:/x=hash", "a pool needs several gateways", "gw1,gw2"),
            ("g,g:/x", "the gateway 'g' is listed twice", ""),
            ("local:x", "a local directory needs an absolute path", "[local]:dir"),
            ("local:", "needs an absolute path", "[local]:dir"),
            ("local,h:/x", "a pool cannot contain a local directory", "[local]"),
            ("h\x1b[2J:/d", "", ""),
        ] {
            let said = failure(word);
            let (first, second) = said.split_once('\n').unwrap_or((&said, ""));
            assert!(first.starts_with("source '") && first.contains(why), "{word}: {said}");
            assert!(second.contains(hint), "{word}: {said}");
            assert!(!said.contains('\x1b'), "{said:?}");
        }
        let many: Vec<String> = (0..65).map(|number| format!("g{number}")).collect();
        assert!(failure(&format!("{}:/x", many.join(","))).contains("at most 64 gateways"));
    }

    #[test]
    fn sshfs_s_sources_stay_what_they_are() {
        for word in ["h:/x=ro", "local:/x", "h:/x="] {
            let source = parse_as_sshfs(OsStr::new(word)).unwrap();
            assert_eq!(source.name, word);
            let (host, directory) = word.split_once(':').unwrap();
            assert_eq!(origin(&source), format!("{host} {directory}"));
            assert!(!source.wants_union());
        }
    }

    #[test]
    fn a_list_of_fstab_is_parted_where_a_source_begins() {
        let split = |list: &str| -> Vec<String> {
            split_list(OsStr::new(list)).into_iter().map(|s| s.into_string().unwrap()).collect()
        };
        assert_eq!(split("a:/x P=b:/y=ro local:/z"), ["a:/x", "P=b:/y=ro", "local:/z"]);
        assert_eq!(split("a:/my  dir b:/y"), ["a:/my  dir", "b:/y"]);
        assert_eq!(split("a:/x"), ["a:/x"]);
        assert_eq!(split("work"), ["work"]);
    }

    proptest! {
        /// The empty list makes a directory of any bytes sayable.
        #[test]
        fn every_directory_can_be_written(
            directory in prop::collection::vec(1u8.., 0..20), place in "[a-z/]{0,5}"
        ) {
            let mut word = match parse_place(place.as_bytes()) {
                Ok(_) => format!("{place}=").into_bytes(),
                Err(_) => Vec::new(),
            };
            word.extend_from_slice(b"h:");
            word.extend_from_slice(&directory);
            word.push(b'=');
            let source = parse(OsStr::from_bytes(&word)).unwrap();
            let Origin::Hosts { directory: read, .. } = source.origin else { panic!() };
            prop_assert_eq!(read, directory);
        }

        #[test]
        fn no_word_makes_it_panic(word in prop::collection::vec(any::<u8>(), 0..30)) {
            let _ = parse(OsStr::from_bytes(&word));
            let _ = split_list(OsStr::from_bytes(&word));
        }
    }
}
