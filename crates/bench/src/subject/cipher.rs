//! Which cipher a connection really takes, found from outside: by ssh's own words.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::executor::Executor;

/// Longest time for one login.
const LOGIN_LIMIT: Duration = Duration::from_secs(30);

/// The cipher from the server to the client that an `ssh` takes, by logging in once.
/// `None` when that does not work; then it does not matter either.
pub(super) fn negotiated(mut ssh: Command, executor: &Executor) -> Option<String> {
    ssh.args(["-v", "true"]);
    let ran = executor.run(ssh, LOGIN_LIMIT).ok()?;
    parse(&String::from_utf8_lossy(&ran.output.stderr))
}

/// The list of ciphers that an `ssh` among these processes was told to take, if it was told.
pub(super) fn told(processes: &[u32]) -> Option<String> {
    processes.iter().find_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<OsString> =
            line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
        // The daemon's own command line may be made of wishes that it does not follow.
        let is_ssh = Path::new(words.first()?).file_name()? == "ssh";
        if is_ssh { option(&words) } else { None }
    })
}

/// The first of `-c LIST`, `-o Ciphers=LIST`, `-oCiphers=LIST`: ssh takes the first.
fn option(words: &[OsString]) -> Option<String> {
    let mut words = words.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let setting = match word {
            "-c" => return words.next().map(str::to_owned),
            "-o" => words.next()?,
            word => word.strip_prefix("-o").unwrap_or_default(),
        };
        if let Some((key, value)) = setting.split_once(['=', ' '])
            && key.eq_ignore_ascii_case("ciphers")
        {
            return Some(value.trim().to_owned());
        }
    }
    None
}

/// `debug1: kex: server->client cipher: aes128-gcm@openssh.com MAC: <implicit> compression: none`
fn parse(words: &str) -> Option<String> {
    let line = words.lines().find(|line| line.contains("kex: server->client cipher: "))?;
    line.split("cipher: ").nth(1)?.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cipher_is_read_from_the_words_of_ssh() {
        let words = "debug1: kex: algorithm: sntrup761x25519-sha512@openssh.com\r\n\
            debug1: kex: server->client cipher: aes128-gcm@openssh.com MAC: <implicit> compression: none\r\n\
            debug1: kex: client->server cipher: aes256-ctr MAC: umac-64@openssh.com compression: none\r\n";
        assert_eq!(parse(words).as_deref(), Some("aes128-gcm@openssh.com"));
        assert_eq!(parse("Permission denied"), None);
    }

    #[test]
    fn the_option_is_found_in_all_its_forms() {
        let found = |words: &[&str]| option(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(found(&["ssh", "-oCiphers=a,b", "-oCiphers=c", "h"]).as_deref(), Some("a,b"));
        assert_eq!(found(&["ssh", "-o", "ciphers a", "h"]).as_deref(), Some("a"));
        assert_eq!(found(&["ssh", "-x", "-c", "a,b", "h"]).as_deref(), Some("a,b"));
        assert_eq!(found(&["ssh", "-o", "Port=22", "h", "-s", "sftp"]), None);
    }
}
