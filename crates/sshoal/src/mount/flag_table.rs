//! The flags other than mount options: one definition feeds the parser, the help and
//! `docs/options.md`.

use std::ffi::OsString;

use super::draft::Draft;
use super::ssh_keywords;

/// One flag.
pub struct FlagDefinition {
    /// After one hyphen.
    pub short: Option<u8>,
    /// After two hyphens.
    pub long: Option<&'static str>,
    /// One line, without a full stop.
    pub help: &'static str,
    /// Whether `--help` shows the flag.
    pub is_prominent: bool,
    /// Form of the value, if any, and effect.
    pub effect: FlagEffect,
}

/// The effect of a flag.
pub enum FlagEffect {
    /// Prints the help and exits.
    Help,
    /// Prints the version and exits.
    Version,
    /// The value is a list of mount options.
    Options,
    /// No value.
    Set(fn(&mut Draft)),
    /// A value with this name. The error says what the value should be.
    Value(&'static str, fn(&mut Draft, OsString) -> Result<(), String>),
    /// Unknown mount options are not errors.
    Sloppy,
    /// No value, and no effect, for this reason.
    Ignored(&'static str),
    /// Known, but an error, for this reason.
    Refused(&'static str),
}

use FlagEffect::{Help, Ignored, Options, Refused, Set, Sloppy, Value, Version};

/// The flags of sshfs, and those of ssh that make sense for a mount.
pub const FLAGS: &[FlagDefinition] = &[
    flag(b'o', "mount options", Options).prominent(),
    flag(b'p', "port of the SSH server", Value("PORT", set_port)).prominent(),
    flag(
        b'F',
        "configuration file of ssh",
        Value("FILE", |draft, file| {
            draft.set_ssh_config(file);
            Ok(())
        }),
    )
    .prominent(),
    flag(b'C', "compress the connection", Set(|draft| draft.add_ssh_argument("-oCompression=yes")))
        .prominent(),
    flag(b'i', "identity file", Value("FILE", |draft, file| path_for_ssh(draft, "-i", file)))
        .prominent(),
    flag(b'J', "jump host", Value("HOST", |draft, host| for_ssh(draft, "-J", host))).prominent(),
    flag(b'l', "login name", Value("USER", |draft, user| for_ssh(draft, "-l", user))),
    flag(b'c', "ciphers for encryption", Value("LIST", |draft, list| for_ssh(draft, "-c", list))),
    flag(b'm', "message authentication codes", Value("LIST", |draft, l| for_ssh(draft, "-m", l))),
    flag(b'4', "use IPv4 only", Set(|draft| draft.add_ssh_argument("-4"))),
    flag(b'6', "use IPv6 only", Set(|draft| draft.add_ssh_argument("-6"))),
    flag(
        b'b',
        "local address to connect from",
        Value("ADDRESS", |draft, a| for_ssh(draft, "-b", a)),
    ),
    flag(
        b'B',
        "local interface to connect from",
        Value("NAME", |draft, n| for_ssh(draft, "-B", n)),
    ),
    flag(
        b'I',
        "PKCS#11 library",
        Value("FILE", |draft, file| {
            let is_path = file.as_encoded_bytes().contains(&b'/');
            if is_path { path_for_ssh(draft, "-I", file) } else { for_ssh(draft, "-I", file) }
        }),
    ),
    flag(b'S', "control socket of ssh", Value("PATH", |draft, p| path_for_ssh(draft, "-S", p))),
    flag(b'q', "quiet (ssh -q)", Set(|draft| draft.add_ssh_argument("-q"))),
    flag(b'K', "GSSAPI authentication", Set(|draft| draft.add_ssh_argument("-K"))),
    flag(b'k', "do not delegate GSSAPI credentials", Set(|draft| draft.add_ssh_argument("-k"))),
    flag(b'f', "stay in the foreground", Set(|draft| draft.request.run.foreground = true))
        .long("foreground")
        .prominent(),
    flag(b'd', "log each request; implies -f", Set(|draft| draft.request.run.debug = true))
        .long("debug")
        .prominent(),
    flag(b'v', "more messages", Set(|draft| draft.request.run.verbose = true)).long("verbose"),
    flag(b's', "use one thread only", Set(|draft| draft.request.run.single_thread = true)),
    flag(b'h', "print this help", Help).long("help").prominent(),
    flag(b'V', "print the version", Version).long("version").prominent(),
    flag(b'1', "use SSH protocol 1", Refused("no ssh supports protocol 1 any more")),
    flag(b'2', "use SSH protocol 2", Ignored("always on")),
    flag(b'a', "do not forward the agent", Ignored("always on")),
    flag(b'x', "do not forward X11", Ignored("always on")),
    flag(b'A', "forward the agent", Ignored("a mount never forwards the agent")),
    flag(b'X', "forward X11", Ignored("a mount never forwards X11")),
    flag(b'Y', "forward X11 as trusted", Ignored("a mount never forwards X11")),
];

/// The flags that mount(8) passes to its helpers. When the program runs as one, they take
/// precedence over [`FLAGS`].
pub const HELPER_FLAGS: &[FlagDefinition] = &[
    flag(b's', "ignore unknown options", Sloppy),
    flag(b'f', "check everything, but do not mount", Set(|draft| draft.request.run.fake = true)),
    flag(b'n', "do not write /etc/mtab", Ignored("the kernel keeps the mount table")),
    flag(b't', "type of the file system", Value("TYPE", set_type)),
    flag(
        b'N',
        "mount namespace",
        Value("NAMESPACE", |_, _| {
            Err("mounting into another namespace is not supported; use nsenter(1)".to_owned())
        }),
    ),
];

const fn flag(short: u8, help: &'static str, effect: FlagEffect) -> FlagDefinition {
    FlagDefinition { short: Some(short), long: None, help, is_prominent: false, effect }
}

impl FlagDefinition {
    const fn long(mut self, long: &'static str) -> FlagDefinition {
        self.long = Some(long);
        self
    }

    const fn prominent(mut self) -> FlagDefinition {
        self.is_prominent = true;
        self
    }

    /// `ignored` or `refused`, and the reason, if the flag has no effect.
    pub fn why_not(&self) -> Option<(&'static str, &'static str)> {
        match self.effect {
            Ignored(why) => Some(("ignored", why)),
            Refused(why) => Some(("refused", why)),
            _ => None,
        }
    }

    /// The name of the value in the help, if the flag takes one.
    pub fn value_name(&self) -> Option<&'static str> {
        match self.effect {
            Options => Some("OPTION[,...]"),
            Value(name, _) => Some(name),
            _ => None,
        }
    }

    /// Names and value, as the help shows them.
    pub fn usage(&self) -> String {
        let short = self.short.map(|short| format!("-{}", char::from(short)));
        let long = self.long.map(|long| format!("--{long}"));
        let names: Vec<String> = short.into_iter().chain(long).collect();
        let value = self.value_name().map(|value| format!(" {value}")).unwrap_or_default();
        names.join(", ") + &value
    }
}

fn for_ssh(draft: &mut Draft, flag: &str, value: OsString) -> Result<(), String> {
    if value.is_empty() {
        return Err("needs a value".to_owned());
    }
    draft.add_ssh_argument(flag);
    draft.add_ssh_argument(value);
    Ok(())
}

fn path_for_ssh(draft: &mut Draft, flag: &str, path: OsString) -> Result<(), String> {
    let path = ssh_keywords::absolute(&path, draft.cwd());
    for_ssh(draft, flag, path)
}

fn set_port(draft: &mut Draft, port: OsString) -> Result<(), String> {
    let number = port.to_str().and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
    let number = number.ok_or_else(|| "needs a number from 1 to 65535".to_owned())?;
    draft.add_ssh_argument(format!("-oPort={number}"));
    Ok(())
}

/// mount(8) passes the type from fstab, such as `fuse.sshfs`.
fn set_type(draft: &mut Draft, kind: OsString) -> Result<(), String> {
    let subtype = kind.to_str().map(|kind| kind.strip_prefix("fuse.").unwrap_or(kind));
    if let Some(subtype @ ("sshoal" | "sshfs")) = subtype {
        draft.request.fuse.subtype = subtype.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_letter_has_two_meanings() {
        for table in [FLAGS, HELPER_FLAGS] {
            let shorts: BTreeSet<_> = table.iter().filter_map(|flag| flag.short).collect();
            assert_eq!(shorts.len(), table.iter().filter(|flag| flag.short.is_some()).count());
        }
    }
}
