//! The flags other than mount options: one definition feeds the parser, the help,
//! `docs/options.md`, the manual and the completion.

use std::ffi::OsString;

use super::draft::Draft;

/// One flag.
pub struct FlagDefinition {
    /// After one hyphen.
    pub short: char,
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
    /// No value; passed to ssh.
    Ssh,
    /// A value with this name. The function gets the flag, too. The error says what the value
    /// should be.
    Value(&'static str, fn(&mut Draft, char, OsString) -> Result<(), String>),
    /// No value, and no effect, for this reason.
    Ignored(&'static str),
    /// Known, but an error, for this reason.
    Refused(&'static str),
}

use FlagEffect::{Help, Ignored, Options, Refused, Set, Ssh, Value, Version};

/// The flags of sshfs, and those of ssh that make sense for a mount.
pub const FLAGS: &[FlagDefinition] = &[
    flag('o', "mount options", Options).prominent(),
    flag('p', "port of the SSH server", Value("PORT", set_port)).prominent(),
    flag('F', "configuration file of ssh", Value("FILE", set_ssh_config)).prominent(),
    flag('C', "compress the connection", Set(|draft| draft.add_ssh_argument("-oCompression=yes")))
        .prominent(),
    flag('i', "identity file", Value("FILE", Draft::pass_path_to_ssh)).prominent(),
    flag('J', "jump host", Value("HOST", Draft::pass_to_ssh)).prominent(),
    flag('l', "login name", Value("USER", Draft::pass_to_ssh)),
    flag('c', "ciphers for encryption", Value("LIST", Draft::pass_to_ssh)),
    flag('m', "message authentication codes", Value("LIST", Draft::pass_to_ssh)),
    flag('4', "use IPv4 only", Ssh),
    flag('6', "use IPv6 only", Ssh),
    flag('b', "local address to connect from", Value("ADDRESS", Draft::pass_to_ssh)),
    flag('B', "local interface to connect from", Value("NAME", Draft::pass_to_ssh)),
    flag('I', "PKCS#11 library", Value("FILE", set_library)),
    flag('S', "control socket of ssh", Value("PATH", Draft::pass_path_to_ssh)),
    flag('q', "quiet (ssh -q)", Ssh),
    flag('K', "GSSAPI authentication", Ssh),
    flag('k', "do not delegate GSSAPI credentials", Ssh),
    flag('f', "stay in the foreground", Set(|draft| draft.request.run.foreground = true))
        .long("foreground")
        .prominent(),
    flag('d', "log each request; implies -f", Set(|draft| draft.request.run.debug = true))
        .long("debug")
        .prominent(),
    flag('v', "more messages", Set(|draft| draft.request.run.verbose = true)).long("verbose"),
    flag('s', "use one thread only", Set(|draft| draft.request.run.single_thread = true)),
    flag('h', "print this help", Help).long("help").prominent(),
    flag('V', "print the version", Version).long("version").prominent(),
    flag('1', "use SSH protocol 1", Refused("no ssh supports protocol 1 any more")),
    flag('2', "use SSH protocol 2", Ignored("always on")),
    flag('a', "do not forward the agent", Ignored("always on")),
    flag('x', "do not forward X11", Ignored("always on")),
    flag('A', "forward the agent", Ignored("a mount never forwards the agent")),
    flag('X', "forward X11", Ignored("a mount never forwards X11")),
    flag('Y', "forward X11 as trusted", Ignored("a mount never forwards X11")),
];

/// The flags that mount(8) passes to its helpers. When the program runs as one, they take
/// precedence over [`FLAGS`].
pub const HELPER_FLAGS: &[FlagDefinition] = &[
    flag('s', "ignore unknown options", Set(|draft| draft.is_sloppy = true)),
    flag('f', "check everything, but do not mount", Set(|draft| draft.request.run.fake = true)),
    flag('n', "do not write /etc/mtab", Ignored("the kernel keeps the mount table")),
    flag('t', "type of the file system", Value("TYPE", set_type)),
    flag('N', "mount namespace", Value("NAMESPACE", |_, _, _| Err(NO_NAMESPACE.to_owned()))),
];

const NO_NAMESPACE: &str = "mounting into another namespace is not supported; use nsenter(1)";

const fn flag(short: char, help: &'static str, effect: FlagEffect) -> FlagDefinition {
    FlagDefinition { short, long: None, help, is_prominent: false, effect }
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
        let long = self.long.map(|long| format!(", --{long}")).unwrap_or_default();
        let value = self.value_name().map(|value| format!(" {value}")).unwrap_or_default();
        format!("-{}{long}{value}", self.short)
    }
}

fn set_ssh_config(draft: &mut Draft, _: char, file: OsString) -> Result<(), String> {
    draft.set_ssh_config(file);
    Ok(())
}

/// A word without a `/` is the name of a library.
fn set_library(draft: &mut Draft, flag: char, file: OsString) -> Result<(), String> {
    match file.as_encoded_bytes().contains(&b'/') {
        true => draft.pass_path_to_ssh(flag, file),
        false => draft.pass_to_ssh(flag, file),
    }
}

fn set_port(draft: &mut Draft, _: char, port: OsString) -> Result<(), String> {
    let number = port.to_str().and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
    let number = number.ok_or_else(|| "needs a number from 1 to 65535".to_owned())?;
    draft.add_ssh_argument(format!("-oPort={number}"));
    Ok(())
}

/// mount(8) passes the type from fstab, such as `fuse.sshfs`.
fn set_type(draft: &mut Draft, _: char, kind: OsString) -> Result<(), String> {
    let subtype = kind.to_str().map(|kind| kind.strip_prefix("fuse.").unwrap_or(kind));
    if let Some(subtype @ ("sshoal" | "sshfs")) = subtype {
        draft.request.mount.subtype = subtype.into();
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
            let shorts: BTreeSet<_> = table.iter().map(|flag| flag.short).collect();
            assert_eq!(shorts.len(), table.len());
        }
    }
}
