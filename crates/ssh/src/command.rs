//! ssh's command line, as a value: pure, so that all of it can be tested.
//!
//! ```text
//! ssh -x -a -oClearAllForwardings=yes [-p PORT] [user's arguments] [ours] [-s] -- HOST WHAT
//! ```
//!
//! ssh takes the first value that it sees for a keyword. So what must hold stands in front
//! (no forwarding of displays, agents and ports to a server that only serves files), and what
//! is merely our preference stands behind the user's arguments:
//!
//! | argument | when | why |
//! |---|---|---|
//! | `ServerAliveInterval=15` | the user has none | a dead link is noticed after 45 s (three times), not after hours |
//! | `ConnectTimeout=15`, or 60 through a proxy | the user has none | a mount that hangs is worse than one that fails |
//! | `Ciphers=` with aes128-gcm first | the user named none, this processor has AES, ssh knows it | 1.7 times the bytes a second of the default |
//! | `BatchMode=yes` | for a further session, and, without an askpass program, for one in the place of a lost one; no password is given | whoever has logged in once is not asked again, and where nobody can be asked ssh sends an empty password |
//! | `NumberOfPasswordPrompts=1` | a password is given | the same wrong password is not tried again |
//! | `RemoteCommand=none` and the like | the user's configuration has something else, made for interactive use | the stream must be the SFTP server's alone |
//!
//! Left as the user has them, among others: `IPQoS` (ssh treats a session without terminal as
//! bulk by itself), `ControlMaster` and `ControlPath` (a shared connection is slower, but it may
//! be the only way past a second factor), `Compression`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use crate::config::Config;
use crate::effective::Effective;
use crate::error::{Error, Result};

/// Seconds between questions to a silent server. ssh gives up after three without an answer.
/// The same value stands in most instructions for sshfs.
const SERVER_ALIVE_SECONDS: u32 = 15;

/// Seconds for the connection to stand and the server to greet: four SYN packets (at 0, 1, 3 and
/// 7 s) and some time for the last to be answered.
const CONNECT_SECONDS: u64 = 15;

/// The same through a jump host: its login counts too, with a person typing a password.
const CONNECT_BY_PROXY_SECONDS: u64 = 60;

/// The fastest of OpenSSH's ciphers where the processor has AES instructions (measured; also
/// all public tables).
const FAST_CIPHER: &str = "aes128-gcm@openssh.com";

/// Settings, made for interactive use, that would spoil a byte stream: keyword as `ssh -G` shows
/// it, the value that is needed, and the argument for it. ssh prints only those that it knows,
/// so that no old ssh is given a new keyword.
const SPOILERS: [(&str, &str, &str); 6] = [
    ("remotecommand", "none", "-oRemoteCommand=none"),
    ("requesttty", "auto", "-oRequestTTY=no"),
    ("permitlocalcommand", "no", "-oPermitLocalCommand=no"),
    ("forkafterauthentication", "no", "-oForkAfterAuthentication=no"),
    ("stdinnull", "no", "-oStdinNull=no"),
    ("sessiontype", "default", "-oSessionType=default"),
];

/// Keeps ssh from asking for passwords, passphrases, codes, and about host keys.
pub(crate) const ASK_NOTHING: &str = "-oBatchMode=yes";

/// Keywords whose value is the name of a file.
const FILE_KEYWORDS: [&str; 2] = ["identityfile", "certificatefile"];

/// Splits a command at its spaces, as sshfs does: `\ ` is a space inside of a word, any other
/// backslash is itself.
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

/// The options that say where to connect and what the user wants: with them ssh is asked for its
/// settings, and with them it connects.
#[must_use]
pub fn users_options(config: &Config) -> Vec<OsString> {
    let mut options: Vec<OsString> =
        ["-x", "-a", "-oClearAllForwardings=yes"].map(OsString::from).into();
    if let Some(port) = config.port.or(config.destination.port()) {
        options.push("-p".into());
        options.push(port.to_string().into());
    }
    options.extend(config.args.iter().cloned());
    if config.compression {
        options.push("-C".into());
    }
    options
}

/// The options that are ours, to stand behind the user's. `effective` is `None` when it is not
/// known what the user's configuration says.
#[must_use]
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
    if config.password.is_some() {
        options.push("-oNumberOfPasswordPrompts=1".into());
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

/// For how long ssh waits for a server that does not greet.
#[must_use]
pub fn connect_limit(effective: Option<&Effective>) -> Duration {
    let seconds = users_connect_seconds(effective).and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or_else(|| our_connect_seconds(effective)))
}

/// What the user's configuration says of it, as ssh writes it.
fn users_connect_seconds(effective: Option<&Effective>) -> Option<&str> {
    effective?.get("connecttimeout").filter(|seconds| *seconds != "none")
}

fn our_connect_seconds(effective: Option<&Effective>) -> u64 {
    let direct = effective.is_some_and(|settings| !settings.has_proxy());
    if direct { CONNECT_SECONDS } else { CONNECT_BY_PROXY_SECONDS }
}

/// Whether the user has a program that asks in the place of the terminal, as ssh decides it.
#[must_use]
pub fn has_askpass() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match std::env::var("SSH_ASKPASS_REQUIRE").as_deref() {
        Ok("never") => false,
        Ok("force" | "prefer") => true,
        _ => set("SSH_ASKPASS") && (set("DISPLAY") || set("WAYLAND_DISPLAY")),
    }
}

/// `Ciphers` with the fast one in front, unless it is there already or unknown to this ssh.
fn fast_cipher_first(ciphers: &str) -> Option<OsString> {
    let others: Vec<&str> = ciphers.split(',').filter(|cipher| *cipher != FAST_CIPHER).collect();
    let known = ciphers.split(',').any(|cipher| cipher == FAST_CIPHER);
    let first = ciphers.starts_with(FAST_CIPHER);
    (known && !first).then(|| format!("-oCiphers={FAST_CIPHER},{}", others.join(",")).into())
}

/// The end of the command line: `-s -- HOST sftp`, or `-- HOST command`.
#[must_use]
pub fn target(config: &Config) -> Vec<OsString> {
    let server = config.sftp_server.as_deref().unwrap_or("sftp");
    let mut words = Vec::new();
    if !server.contains('/') {
        words.push("-s".into());
    }
    // Nothing behind the two dashes is an option, whatever it looks like.
    words.push("--".into());
    words.push(config.destination.to_string().into());
    words.push(server.into());
    words
}

/// Replaces relative names of files by absolute ones, since ssh is started in `/`.
#[must_use]
pub fn with_absolute_files(args: &[OsString], directory: &Path) -> Vec<OsString> {
    let mut absolute: Vec<OsString> = Vec::with_capacity(args.len());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some((option, replace)) = file_option(arg.as_bytes()) else {
            absolute.push(arg.clone());
            continue;
        };
        let glued = &arg.as_bytes()[option.len()..];
        if !glued.is_empty() {
            let value = replace(glued, directory).unwrap_or_else(|| glued.to_owned());
            absolute.push(OsString::from_vec([option, &value].concat()));
            continue;
        }
        absolute.push(arg.clone());
        // The value is a word of its own, and no option, even if it looks like one.
        if let Some(value) = args.next() {
            let replaced = replace(value.as_bytes(), directory);
            absolute.push(replaced.map_or_else(|| value.clone(), OsString::from_vec));
        }
    }
    absolute
}

/// Makes the file in an option's value absolute; `None` when it stays as it is.
type Replace = fn(&[u8], &Path) -> Option<Vec<u8>>;

/// The option that `arg` is or begins with, if its value may have a file in it.
fn file_option(arg: &[u8]) -> Option<(&'static [u8], Replace)> {
    const OPTIONS: [(&[u8], Replace); 3] =
        [(b"-F", absolute_file), (b"-i", absolute_file), (b"-o", absolute_setting)];
    OPTIONS.into_iter().find(|(option, _)| arg.starts_with(option))
}

/// The absolute name of `file`, or `None` where it is one, or none at all.
fn absolute_file(file: &[u8], directory: &Path) -> Option<Vec<u8>> {
    let special = matches!(file, [] | [b'/' | b'~' | b'%' | b'$' | b'"', ..])
        || file.eq_ignore_ascii_case(b"none");
    (!special).then(|| directory.join(OsStr::from_bytes(file)).into_os_string().into_vec())
}

/// `KEYWORD=file` or `KEYWORD file` with an absolute file, or `None` as it is.
fn absolute_setting(setting: &[u8], directory: &Path) -> Option<Vec<u8>> {
    let end = setting.iter().position(|byte| matches!(byte, b'=' | b' '))?;
    let keyword = setting[..end].to_ascii_lowercase();
    if !FILE_KEYWORDS.iter().any(|known| known.as_bytes() == keyword) {
        return None;
    }
    let file = setting[end..].iter().position(|byte| !matches!(byte, b'=' | b' '))? + end;
    Some([&setting[..file], &absolute_file(&setting[file..], directory)?].concat())
}

/// Whether this processor has instructions for AES.
#[must_use]
pub fn processor_has_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Destination, Password};

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
    fn what_must_hold_stands_before_the_users_words() {
        let config = Config {
            port: Some(2222),
            args: ["-F", "/f", "-oCiphers=x"].map(OsString::from).into(),
            compression: true,
            ..config("user@host:dir")
        };
        assert_eq!(
            text(&users_options(&config)),
            "-x -a -oClearAllForwardings=yes -p 2222 -F /f -oCiphers=x -C"
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
    fn of_an_unknown_program_little_is_asked() {
        let config = Config { password: Some(Password::new("x")), ..config("host:") };
        assert_eq!(
            text(&our_options(&config, None, true)),
            "-oServerAliveInterval=15 -oConnectTimeout=60 -oNumberOfPasswordPrompts=1"
        );
    }

    #[test]
    fn files_are_named_from_the_root() {
        for (args, absolute) in [
            ("-F f -i key -v", "-F /d/f -i /d/key -v"),
            ("-Ff -ikey", "-F/d/f -i/d/key"),
            ("-F /f -F none -i ~/key -i %d/key", "-F /f -F none -i ~/key -i %d/key"),
            (
                "-oIdentityFile=key -o CertificateFile=c",
                "-oIdentityFile=/d/key -o CertificateFile=/d/c",
            ),
            ("-o User=key -oUser=f", "-o User=key -oUser=f"),
            ("-i -F -o", "-i /d/-F -o"),
        ] {
            let args: Vec<OsString> = args.split(' ').map(OsString::from).collect();
            assert_eq!(text(&with_absolute_files(&args, Path::new("/d"))), absolute);
        }
        let spaced = with_absolute_files(&["-oIdentityFile key".into()], Path::new("/d"));
        assert_eq!(spaced, ["-oIdentityFile /d/key"]);
    }
}
