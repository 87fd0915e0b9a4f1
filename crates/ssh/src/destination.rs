//! `[user@]host:[directory]`, as a user types it.
//!
//! A [`Destination`] is safe as an argument of ssh, and where ssh inserts it into commands of its
//! configuration (`ProxyCommand` with `%h`, `Match exec` with `%r`): it contains nothing that an
//! option parser or a shell could interpret.

use std::fmt;

use base::printable::is_unprintable;

use crate::error::{Error, Result};

/// User, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    user: Option<String>,
    host: String,
    port: Option<u16>,
}

/// Characters with a meaning for a shell. OpenSSH refuses the same ones since 9.6.
const SHELL_CHARACTERS: &str = "'`\"\\$;&<>|(){}";

impl Destination {
    /// Checks a host and a user.
    ///
    /// # Errors
    /// [`Error::InvalidHostname`] for what ssh or a shell could misread.
    pub fn new(user: Option<&str>, host: &str, port: Option<u16>) -> Result<Destination> {
        let invalid = |why| {
            let user = user.map(|user| format!("{user}@")).unwrap_or_default();
            Error::InvalidHostname(format!("{user}{host}"), why)
        };
        if host.is_empty() {
            return Err(invalid("the host is empty"));
        }
        if host.starts_with('-') {
            return Err(invalid("the host cannot begin with '-', as options do"));
        }
        // A message shows the host as it is.
        if host.chars().any(|char| is_unprintable(char) || char.is_whitespace()) {
            return Err(invalid("the host contains white space, control or format characters"));
        }
        if host.contains(|char| SHELL_CHARACTERS.contains(char)) || host.contains(['/', '@']) {
            return Err(invalid("the host contains characters that are not valid in host names"));
        }
        if let Some(user) = user {
            if user.is_empty() || user.starts_with('-') {
                return Err(invalid("the user is empty or begins with '-'"));
            }
            // DOMAIN\user and machine$ are users of Windows domains.
            let allowed = ['\\', '$'];
            let forbidden = |char: char| {
                is_unprintable(char)
                    || char.is_whitespace()
                    || (SHELL_CHARACTERS.contains(char) && !allowed.contains(&char))
            };
            if user.contains(forbidden) || user.contains("$(") || user.ends_with('\\') {
                return Err(invalid(
                    "the user contains characters that are not valid in user names",
                ));
            }
        }
        Ok(Destination { user: user.map(str::to_owned), host: host.to_owned(), port })
    }

    /// Splits a source into destination and directory. The directory is empty for the home
    /// directory, and relative to it unless it begins with `/`.
    ///
    /// Understood are `[user@]host:dir`, `[user@][v6-address]:dir`, `[user@host]:dir`, and
    /// `ssh://[user@]host[:port][/dir]` or `sftp://…`, where `/~/` begins a directory below home.
    ///
    /// # Errors
    /// [`Error::NoHost`], [`Error::InvalidHostname`], [`Error::InvalidPort`].
    pub fn parse(source: &[u8]) -> Result<(Destination, Vec<u8>)> {
        if let Some(rest) = after_scheme(source) {
            return parse_url(rest);
        }
        let colon = Destination::host_end(source)?;
        let (user, host, _) = parse_authority(&source[..colon], false)?;
        Ok((Destination::new(user, host, None)?, source[colon + 1..].to_vec()))
    }

    /// Whether a source is a URL.
    pub fn is_url(source: &[u8]) -> bool {
        after_scheme(source).is_some()
    }

    /// The place of the colon that ends the host: the first one outside of brackets.
    ///
    /// # Errors
    /// [`Error::NoHost`] if there is none before a `/`, [`Error::InvalidHostname`] within a bracket.
    pub fn host_end(source: &[u8]) -> Result<usize> {
        let shown = || String::from_utf8_lossy(source).into_owned();
        let mut in_brackets = false;
        let end = source.iter().position(|byte| {
            match byte {
                b'[' => in_brackets = true,
                b']' => in_brackets = false,
                _ => (),
            }
            !in_brackets && matches!(byte, b':' | b'/')
        });
        match end {
            Some(colon) if source[colon] == b':' => Ok(colon),
            None if in_brackets => {
                Err(Error::InvalidHostname(shown(), "the bracket is not closed"))
            }
            _ => Err(Error::NoHost(shown())),
        }
    }

    /// The name to log in as, if the source had one.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The host's name, alias or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, which only the URL of a source can have.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

/// As ssh takes it: `[user@]host`, without port and brackets.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "{user}@{}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// `[user@]host[:port]`, the host perhaps in brackets, or all but the port in them.
fn parse_authority(bytes: &[u8], with_port: bool) -> Result<(Option<&str>, &str, Option<u16>)> {
    let text = std::str::from_utf8(bytes).map_err(|_| {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        Error::InvalidHostname(shown, "it is not valid UTF-8")
    })?;
    let invalid = |why| Error::InvalidHostname(text.to_owned(), why);
    let split_user = |text| match str::rsplit_once(text, '@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    };
    // `[user@host]` as a whole is what sshfs lets pass, too.
    let at = text.find('[').map_or(text, |bracket| &text[..bracket]);
    let (user, rest) = match at.rsplit_once('@') {
        Some((user, _)) => (Some(user), &text[user.len() + 1..]),
        None if at.len() == text.len() => split_user(text),
        None => (None, text),
    };
    let (user, host, after) = match rest.strip_prefix('[') {
        Some(inner) => {
            let (inner, after) =
                inner.split_once(']').ok_or_else(|| invalid("the bracket is not closed"))?;
            let (inner_user, host) = split_user(inner);
            (user.or(inner_user), host, after)
        }
        None if with_port => match rest.find(':') {
            Some(colon) => (user, &rest[..colon], &rest[colon..]),
            None => (user, rest, ""),
        },
        None => (user, rest, ""),
    };
    if host.contains(['[', ']']) {
        return Err(invalid("it has a bracket in a wrong place"));
    }
    let port = match after.strip_prefix(':') {
        Some(port) if with_port => match port.parse() {
            Ok(port) if port > 0 => Some(port),
            _ => return Err(Error::InvalidPort(port.to_owned())),
        },
        None if after.is_empty() => None,
        _ => return Err(invalid("it goes on after the bracket")),
    };
    Ok((user, host, port))
}

/// What follows the scheme of a URL.
fn after_scheme(source: &[u8]) -> Option<&[u8]> {
    source.strip_prefix(b"ssh://").or_else(|| source.strip_prefix(b"sftp://"))
}

/// What follows `ssh://`.
fn parse_url(rest: &[u8]) -> Result<(Destination, Vec<u8>)> {
    let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    let (user, host, port) = parse_authority(authority, true)?;
    let path = percent_decoded(path);
    let directory = match path.strip_prefix(b"/~") {
        Some(b"") => Vec::new(),
        Some([b'/', below @ ..]) => below.to_vec(),
        _ => path,
    };
    Ok((Destination::new(user, host, port)?, directory))
}

/// `%41` as `A`; a `%` that begins no such thing is itself.
fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        let pair = match rest {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match pair {
            Some((high, low)) => {
                decoded.push((high * 16 + low) as u8);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(source: &str) -> (Option<String>, String, Option<u16>, String) {
        let (destination, directory) = Destination::parse(source.as_bytes()).expect(source);
        let Destination { user, host, port } = destination;
        (user, host, port, String::from_utf8(directory).expect(source))
    }

    #[test]
    fn sources_that_users_type() {
        let table = [
            ("user@host:dir", Some("user"), "host", None, "dir"),
            ("host:", None, "host", None, ""),
            ("host:/", None, "host", None, "/"),
            ("host:a:b@c", None, "host", None, "a:b@c"),
            ("host:a[b]", None, "host", None, "a[b]"),
            ("[::1]:/x", None, "::1", None, "/x"),
            ("user@[fe80::1%eth0]:", Some("user"), "fe80::1%eth0", None, ""),
            ("[user@::1]:/x", Some("user"), "::1", None, "/x"),
            ("[host]:x", None, "host", None, "x"),
            ("me@corp.example@host:", Some("me@corp.example"), "host", None, ""),
            ("CORP\\me@host:", Some("CORP\\me"), "host", None, ""),
            ("ssh://user@host:2222/srv/x", Some("user"), "host", Some(2222), "/srv/x"),
            ("ssh://host", None, "host", None, ""),
            ("sftp://user@host:22/x", Some("user"), "host", Some(22), "/x"),
            ("ssh://host/~/x", None, "host", None, "x"),
            ("ssh://host/~", None, "host", None, ""),
            ("ssh://host/~other", None, "host", None, "/~other"),
            ("ssh://[::1]:22/a%20b%", None, "::1", Some(22), "/a b%"),
        ];
        for (source, user, host, port, directory) in table {
            let expected = (user.map(str::to_owned), host.to_owned(), port, directory.to_owned());
            assert_eq!(parsed(source), expected, "{source}");
        }
    }

    #[test]
    fn destinations_that_ssh_or_a_shell_could_misread_are_refused() {
        for source in [
            "-oProxyCommand=x:/p",
            "[-oProxyCommand=x]:/p",
            "[-oProxyCommand=echo pwned]:/p",
            "user@-oProxyCommand=x:/p",
            "user@[-oProxyCommand=x]:/p",
            "[user@-oProxyCommand=x]:/p",
            "-lroot@host:",
            "-x@[::1]:",
            "@host:",
            ":dir",
            "user@:dir",
            "[]:dir",
            "[::1:/x",
            "[::1]x:/y",
            "a[b]:",
            "ho st:",
            "ho\nst:",
            "host\x1b[2J:",
            "moc.\u{202e}host:",
            "ho\u{200b}st:",
            "us\u{2066}er@host:",
            "$(id):",
            "`id`:",
            "a;b:",
            "us er@host:",
            "$(id)@host:",
            "a;b@host:",
            "x\\@host:",
            "ssh://-oProxyCommand=x/p",
            "ssh:///p",
        ] {
            let error = Destination::parse(source.as_bytes()).expect_err(source);
            assert!(matches!(error, Error::InvalidHostname(..)), "{source}: {error:?}");
            assert!(error.to_string().starts_with("invalid hostname"), "{source}: {error}");
        }
        assert!(matches!(Destination::parse(b"\xff:"), Err(Error::InvalidHostname(..))));
    }

    #[test]
    fn a_source_without_a_host_is_an_error_of_its_own() {
        for source in ["", "host", "/local/dir", "./a:b", "dir/with:colon"] {
            assert!(
                matches!(Destination::parse(source.as_bytes()), Err(Error::NoHost(_))),
                "{source}"
            );
        }
        for source in ["ssh://host:0/x", "ssh://host:65536", "ssh://host:x", "ssh://host:"] {
            assert!(
                matches!(Destination::parse(source.as_bytes()), Err(Error::InvalidPort(_))),
                "{source}"
            );
        }
    }

    proptest! {
        #[test]
        fn an_accepted_destination_is_never_an_option(source in r"[-\[\]@:%$\\a-c/ ]{0,12}") {
            if let Ok((destination, _)) = Destination::parse(source.as_bytes()) {
                prop_assert!(!destination.to_string().starts_with('-'));
                prop_assert!(!destination.host().starts_with('-'));
                prop_assert!(!destination.host().is_empty());
            }
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(source in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Destination::parse(&source);
        }
    }
}
