//! The flags outside of `-o`: one definition feeds the parser, the help and `docs/options.md`.

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
    /// Among the few that `--help` shows.
    pub is_prominent: bool,
    /// Whether it has a value, and what it does.
    pub effect: FlagEffect,
}

/// What a flag does.
pub enum FlagEffect {
    /// Shows the help and ends.
    Help,
    /// Shows the version and ends.
    Version,
    /// The value is a list of options.
    Options,
    /// Without a value.
    Set(fn(&mut Draft)),
    /// With one, whose name comes first. The error says what it should have been.
    Value(&'static str, fn(&mut Draft, OsString) -> Result<(), String>),
    /// Unknown options of `-o` are no errors.
    Sloppy,
    /// Without a value and without effect, for this reason.
    Ignored(&'static str),
    /// Known, and not to be had, for this reason.
    Refused(&'static str),
}

use FlagEffect::{Help, Ignored, Options, Refused, Set, Sloppy, Value, Version};

/// The flags of the plain form: sshfs's, and those of ssh that mean something for a mount.
pub const FLAGS: &[FlagDefinition] = &[
    flag(b'o', "mount options, see below", Options).prominent(),
    flag(b'p', "port of the ssh server", Value("PORT", set_port)).prominent(),
    flag(
        b'F',
        "ssh's configuration file",
        Value("FILE", |draft, file| {
            draft.set_ssh_config(file);
            Ok(())
        }),
    )
    .prominent(),
    flag(b'C', "compress", Set(|draft| draft.add_ssh_argument("-oCompression=yes"))).prominent(),
    flag(b'i', "identity file", Value("FILE", |draft, file| path_for_ssh(draft, "-i", file)))
        .prominent(),
    flag(b'J', "jump host", Value("HOST", |draft, host| for_ssh(draft, "-J", host))).prominent(),
    flag(b'l', "login name", Value("USER", |draft, user| for_ssh(draft, "-l", user))),
    flag(b'c', "ciphers", Value("LIST", |draft, list| for_ssh(draft, "-c", list))),
    flag(b'm', "message authentication codes", Value("LIST", |draft, l| for_ssh(draft, "-m", l))),
    flag(b'4', "IPv4 only", Set(|draft| draft.add_ssh_argument("-4"))),
    flag(b'6', "IPv6 only", Set(|draft| draft.add_ssh_argument("-6"))),
    flag(b'b', "address to connect from", Value("ADDRESS", |draft, a| for_ssh(draft, "-b", a))),
    flag(b'B', "interface to connect from", Value("NAME", |draft, n| for_ssh(draft, "-B", n))),
    flag(
        b'I',
        "PKCS#11 library",
        Value("FILE", |draft, file| {
            let is_path = file.as_encoded_bytes().contains(&b'/');
            if is_path { path_for_ssh(draft, "-I", file) } else { for_ssh(draft, "-I", file) }
        }),
    ),
    flag(b'S', "control socket", Value("PATH", |draft, p| path_for_ssh(draft, "-S", p))),
    flag(b'q', "ssh says less", Set(|draft| draft.add_ssh_argument("-q"))),
    flag(b'K', "GSSAPI authentication", Set(|draft| draft.add_ssh_argument("-K"))),
    flag(b'k', "no forwarding of GSSAPI credentials", Set(|draft| draft.add_ssh_argument("-k"))),
    flag(b'f', "stay in the foreground", Set(|draft| draft.request.run.foreground = true))
        .long("foreground")
        .prominent(),
    flag(b'd', "log each request; implies -f", Set(|draft| draft.request.run.debug = true))
        .long("debug")
        .prominent(),
    flag(b'v', "tell more", Set(|draft| draft.request.run.verbose = true)).long("verbose"),
    flag(b's', "one thread only", Set(|draft| draft.request.run.single_thread = true)),
    flag(b'h', "help", Help).long("help").prominent(),
    flag(b'V', "version", Version).long("version").prominent(),
    flag(b'1', "ssh protocol 1", Refused("no ssh speaks protocol 1 any more")),
    flag(b'2', "ssh protocol 2", Ignored("there is no other")),
    flag(b'a', "no forwarding of the agent", Ignored("always so")),
    flag(b'x', "no forwarding of X11", Ignored("always so")),
    flag(b'A', "forwarding of the agent", Ignored("a mount never forwards the agent")),
    flag(b'X', "forwarding of X11", Ignored("a mount never forwards X11")),
    flag(b'Y', "trusted forwarding of X11", Ignored("a mount never forwards X11")),
];

/// What mount(8) gives to its helpers; these come before [`FLAGS`] when the program runs as one.
pub const HELPER_FLAGS: &[FlagDefinition] = &[
    flag(b's', "ignore options that are not known", Sloppy),
    flag(b'f', "do everything but mount", Set(|draft| draft.request.run.fake = true)),
    flag(b'n', "do not write /etc/mtab", Ignored("it is the kernel's table by now")),
    flag(b't', "type of the mount", Value("TYPE", set_type)),
    flag(
        b'N',
        "namespace",
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

    /// Why it does nothing, if it does nothing.
    pub fn why_not(&self) -> Option<(&'static str, &'static str)> {
        match self.effect {
            Ignored(why) => Some(("ignored", why)),
            Refused(why) => Some(("refused", why)),
            _ => None,
        }
    }

    /// What its value is called, if it has one.
    pub fn value_name(&self) -> Option<&'static str> {
        match self.effect {
            Options => Some("OPTION[,...]"),
            Value(name, _) => Some(name),
            _ => None,
        }
    }

    /// As the help shows it.
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

/// mount(8) passes on what stands in fstab, such as `fuse.sshfs`.
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
