//! ssh's command line, as a value: pure, so that all of it can be tested.
//!
//! ```text
//! ssh -x -a -oClearAllForwardings=yes [-p PORT] [user's arguments] [ours] [-s] -- HOST WHAT
//! ```
//!
//! ssh uses the first value given for a keyword. So mandatory options come first (no forwarding of
//! displays, agents and ports to a server that only serves files), and defaults come after the
//! user's arguments:
//!
//! | argument | when | why |
//! |---|---|---|
//! | `ServerAliveInterval=15` | not set by the user | a dead link is detected after 45 s (three times) instead of hours |
//! | `ConnectTimeout=15`, or 60 through a proxy | not set by the user | a mount that hangs is worse than one that fails |
//! | `Ciphers=` with aes128-gcm first | not set by the user, the processor has AES instructions, ssh supports it | 1.7 times the throughput of the default |
//! | `BatchMode=yes` | for further sessions, and, without an askpass program, for reconnections and without a terminal; no password is given | the user is not prompted again, and without a terminal ssh would send an empty password |
//! | `NumberOfPasswordPrompts=1` | a password is given | a wrong password is not sent twice |
//! | `RemoteCommand=none` and the like | the user's configuration sets another value, for interactive use | the stream must carry nothing but SFTP |
//!
//! The user's values are kept of, among others: `IPQoS` (ssh treats a session without terminal as
//! bulk anyway), `ControlMaster` and `ControlPath` (a shared connection is slower, but may be the
//! only one that needs no second factor), `Compression`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::config::Config;
use crate::effective::Effective;
use crate::error::{Error, Result};

/// Seconds between keep-alive messages to a silent server. ssh disconnects after three without a
/// reply. Most instructions for sshfs recommend this value.
const SERVER_ALIVE_SECONDS: u32 = 15;

/// Seconds until the TCP connection is established and the server has sent its banner: four SYN
/// packets (at 0, 1, 3 and 7 s) and some time for the reply to the last.
const CONNECT_SECONDS: u64 = 15;

/// `ConnectTimeout` in seconds through a jump host: includes the login there, during which the user
/// may type a password.
const CONNECT_BY_PROXY_SECONDS: u64 = 60;

/// The fastest of OpenSSH's ciphers on processors with AES instructions (measured; published
/// measurements agree).
const FAST_CIPHER: &str = "aes128-gcm@openssh.com";

/// Settings for interactive use that would corrupt a byte stream: keyword as `ssh -G` prints it,
/// the required value, and the argument for it. ssh prints only keywords that it knows, so that an
/// old ssh is never given a new keyword.
const SPOILERS: [(&str, &str, &str); 6] = [
    ("remotecommand", "none", "-oRemoteCommand=none"),
    ("requesttty", "auto", "-oRequestTTY=no"),
    ("permitlocalcommand", "no", "-oPermitLocalCommand=no"),
    ("forkafterauthentication", "no", "-oForkAfterAuthentication=no"),
    ("stdinnull", "no", "-oStdinNull=no"),
    ("sessiontype", "default", "-oSessionType=default"),
];

/// Stops ssh from prompting for passwords, passphrases, codes and host keys.
pub(crate) const ASK_NOTHING: &str = "-oBatchMode=yes";

/// A wrong password is not sent twice.
pub(crate) const ASK_ONCE: &str = "-oNumberOfPasswordPrompts=1";

/// Splits a command at its spaces, as sshfs does: `\ ` is a space inside a word, any other
/// backslash is literal.
///
/// # Errors
/// [`Error::EmptyCommand`] when there are no words.
pub fn split(command: &OsStr) -> Result<Vec<OsString>> {
    let mut words = Vec::new();
    let mut word = Vec::new();
    let mut bytes = command.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if bytes.next_if_eq(&b' ').is_some() => word.push(b' '),
            b' ' if word.is_empty() => (),
            b' ' => words.push(OsString::from_vec(std::mem::take(&mut word))),
            _ => word.push(byte),
        }
    }
    if !word.is_empty() {
        words.push(OsString::from_vec(word));
    }
    if words.is_empty() { Err(Error::EmptyCommand) } else { Ok(words) }
}

/// The mandatory options and the user's: `ssh -G` is run with them, and the connection is made with
/// them.
pub fn users_options(config: &Config) -> Vec<OsString> {
    let mut options: Vec<OsString> =
        ["-x", "-a", "-oClearAllForwardings=yes"].map(OsString::from).into();
    if let Some(port) = config.port.or(config.destination.port()) {
        options.push("-p".into());
        options.push(port.to_string().into());
    }
    options.extend(config.args.iter().cloned());
    options
}

/// The default options, which come after the user's. `effective` is `None` if the user's
/// configuration is unknown.
pub fn our_options(
    config: &Config,
    effective: Option<&Effective>,
    processor_has_aes: bool,
) -> Vec<OsString> {
    let mut options: Vec<OsString> = Vec::new();
    if !effective.is_some_and(Effective::has_keepalive) {
        options.push(format!("-oServerAliveInterval={SERVER_ALIVE_SECONDS}").into());
    }
    if users_connect_seconds(effective).is_none() {
        options.push(format!("-oConnectTimeout={}", our_connect_seconds(effective)).into());
    }
    if let Some(settings) = effective {
        for (keyword, needed, option) in SPOILERS {
            if settings.get(keyword).is_some_and(|value| value != needed) {
                options.push(option.into());
            }
        }
        if config.prefer_fast_cipher && processor_has_aes {
            options.extend(settings.unchosen_ciphers().and_then(fast_cipher_first));
        }
    }
    options
}

/// How long a server may take to answer: the user's `ConnectTimeout`, or the one without a proxy.
pub fn answer_limit(effective: Option<&Effective>) -> Duration {
    let seconds = users_connect_seconds(effective).and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(CONNECT_SECONDS))
}

/// `ConnectTimeout` of the user's configuration, as ssh prints it.
fn users_connect_seconds(effective: Option<&Effective>) -> Option<&str> {
    effective?.get("connecttimeout").filter(|seconds| *seconds != "none")
}

fn our_connect_seconds(effective: Option<&Effective>) -> u64 {
    let direct = effective.is_some_and(|settings| !settings.has_proxy());
    if direct { CONNECT_SECONDS } else { CONNECT_BY_PROXY_SECONDS }
}

/// Whether ssh would prompt with an askpass program that the user has chosen.
pub fn has_askpass() -> bool {
    match std::env::var("SSH_ASKPASS_REQUIRE").as_deref() {
        Ok("never") => false,
        Ok("force" | "prefer") => true,
        _ => is_set("SSH_ASKPASS") && has_display(),
    }
}

/// Whether ssh without a terminal would prompt with an askpass program, perhaps its default one.
pub fn may_use_askpass() -> bool {
    match std::env::var("SSH_ASKPASS_REQUIRE").as_deref() {
        Ok("never") => false,
        Ok("force" | "prefer") => true,
        _ => has_display(),
    }
}

fn has_display() -> bool {
    is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// `Ciphers` with the fast one first, unless it already is or this ssh does not support it.
fn fast_cipher_first(ciphers: &str) -> Option<OsString> {
    let others: Vec<&str> = ciphers.split(',').filter(|cipher| *cipher != FAST_CIPHER).collect();
    let known = ciphers.split(',').any(|cipher| cipher == FAST_CIPHER);
    let first = ciphers.starts_with(FAST_CIPHER);
    (known && !first).then(|| format!("-oCiphers={FAST_CIPHER},{}", others.join(",")).into())
}

/// The end of the command line: `-s -- HOST sftp`, or `-- HOST command`.
pub fn target(config: &Config) -> Vec<OsString> {
    let server = config.sftp_server.as_deref().unwrap_or("sftp");
    let mut words = Vec::new();
    if !server.contains('/') {
        words.push("-s".into());
    }
    // After the two dashes, nothing is an option.
    words.push("--".into());
    words.push(config.destination.to_string().into());
    words.push(server.into());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Destination;

    const DEFAULT: &str = "ciphers chacha20-poly1305@openssh.com,aes128-ctr,\
        aes128-gcm@openssh.com\nconnecttimeout none\nserveraliveinterval 0\nrequesttty auto\n\
        permitlocalcommand no\nsessiontype default\n";

    fn config(source: &str) -> Config {
        Config::new(Destination::parse(source.as_bytes()).unwrap().0)
    }

    fn text(words: &[OsString]) -> String {
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    fn ours(config: &Config, effective: &str, has_aes: bool) -> String {
        let effective = Effective::from_answers(effective, DEFAULT);
        text(&our_options(config, Some(&effective), has_aes))
    }

    #[test]
    fn a_command_is_split_as_sshfs_splits_it() {
        for (command, words) in [
            ("ssh", vec!["ssh"]),
            ("  ssh  -v ", vec!["ssh", "-v"]),
            (r"/my\ dir/ssh -F a\ b", vec!["/my dir/ssh", "-F", "a b"]),
            (r"a\b \ c", vec![r"a\b", " c"]),
        ] {
            assert_eq!(split(command.as_ref()).unwrap(), words, "{command}");
        }
        for command in ["", "   "] {
            assert!(matches!(split(command.as_ref()), Err(Error::EmptyCommand)));
        }
    }

    #[test]
    fn mandatory_options_precede_the_users() {
        let config = Config {
            port: Some(2222),
            args: ["-F", "/f", "-oCiphers=x"].map(OsString::from).into(),
            ..config("user@host:dir")
        };
        assert_eq!(
            text(&users_options(&config)),
            "-x -a -oClearAllForwardings=yes -p 2222 -F /f -oCiphers=x"
        );
        assert_eq!(text(&target(&config)), "-s -- user@host sftp");
    }

    #[test]
    fn the_port_of_an_url_yields_to_a_named_one() {
        let url = config("ssh://host:22/x");
        assert!(text(&users_options(&url)).ends_with("-p 22"));
        let named = Config { port: Some(23), ..url };
        assert!(text(&users_options(&named)).ends_with("-p 23"));
    }

    #[test]
    fn a_server_with_a_slash_is_a_command() {
        for (server, words) in [
            ("sftp", "-s -- host sftp"),
            ("other", "-s -- host other"),
            ("/usr/lib/sftp-server", "-- host /usr/lib/sftp-server"),
            ("sudo /usr/lib/sftp-server", "-- host sudo /usr/lib/sftp-server"),
        ] {
            let config = Config { sftp_server: Some(server.to_owned()), ..config("host:") };
            assert_eq!(text(&target(&config)), words);
        }
    }

    #[test]
    fn our_preferences_fill_what_the_user_left_open() {
        let plain = config("host:");
        assert_eq!(
            ours(&plain, DEFAULT, true),
            "-oServerAliveInterval=15 -oConnectTimeout=15 \
             -oCiphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"
        );
        assert!(!ours(&plain, DEFAULT, false).contains("Ciphers"));
        let unwanted = Config { prefer_fast_cipher: false, ..plain.clone() };
        assert!(!ours(&unwanted, DEFAULT, true).contains("Ciphers"));
        let chosen = "ciphers aes256-ctr\nconnecttimeout 5\nserveraliveinterval 60\n";
        assert_eq!(ours(&plain, chosen, true), "");
        let jump = format!("{DEFAULT}proxyjump gate\n");
        assert!(ours(&plain, &jump, true).contains("-oConnectTimeout=60"));
    }

    #[test]
    fn an_ssh_without_the_fast_cipher_keeps_its_own() {
        assert_eq!(fast_cipher_first("aes128-ctr,3des-cbc"), None);
        assert_eq!(fast_cipher_first("aes128-gcm@openssh.com,aes128-ctr"), None);
    }

    #[test]
    fn settings_for_interactive_use_are_undone() {
        let interactive = "serveraliveinterval 1\nconnecttimeout 1\nrequesttty force\n\
            remotecommand tmux attach\npermitlocalcommand yes\nsessiontype none\n";
        assert_eq!(
            ours(&config("host:"), interactive, false),
            "-oRemoteCommand=none -oRequestTTY=no -oPermitLocalCommand=no -oSessionType=default"
        );
    }

    #[test]
    fn an_unknown_ssh_command_gets_few_options() {
        let words = text(&our_options(&config("host:"), None, true));
        assert_eq!(words, "-oServerAliveInterval=15 -oConnectTimeout=60");
    }
}
