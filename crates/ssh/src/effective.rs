//! The user's effective ssh configuration, as `ssh -G` prints it.
//!
//! The command line takes precedence over the configuration files, so a default set there would
//! silently replace the user's setting. Hence the settings are queried first: once for each
//! [`Dialer`](crate::Dialer), for each connection that may need a password, and only if the program
//! certainly is an ssh.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// How long `ssh -G` may take. It takes milliseconds, unless a `Match exec` of the user runs a slow
/// command or `CanonicalizeHostname` waits for a name server; then the connection is made without
/// the settings.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes read of a program's output. That of `ssh -G` is about 6 KiB.
const OUTPUT_MAX_BYTES: u64 = 256 * 1024;

/// The settings that ssh would use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effective {
    /// The values of each keyword, in ssh's order.
    settings: HashMap<String, Vec<String>>,
    /// The settings of an ssh without any configuration.
    default: HashMap<String, Vec<String>>,
}

impl Effective {
    /// Runs `program` with `prefix` and `options` as for a connection. `None` if its output is not
    /// ssh's.
    pub async fn query(
        program: &OsStr,
        prefix: &[OsString],
        options: &[OsString],
        destination: &str,
    ) -> Option<Effective> {
        if !is_ssh(program) {
            return None;
        }
        let mut effective = Command::new(program);
        effective.args(prefix).args(options).args(["-G", "--", destination]);
        // The host does not matter, since no configuration file is read.
        let mut default = Command::new(program);
        default.args(["-G", "-F", "none", "--", "localhost"]);
        let (effective, default) = tokio::join!(answer(effective), answer(default));
        Some(Effective { settings: parse(&effective?), default: parse(&default?) })
    }

    /// The value of a keyword, which is written in lower case; of several the first.
    pub fn get(&self, keyword: &str) -> Option<&str> {
        first(&self.settings, keyword)
    }

    /// The values of `IdentityFile`.
    pub fn identity_files(&self) -> &[String] {
        self.settings.get("identityfile").map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the user has named the identity files. ssh adds its defaults only without any.
    pub fn has_chosen_identities(&self) -> bool {
        self.settings.get("identityfile") != self.default.get("identityfile")
    }

    /// Whether the user has set `ServerAliveInterval`, to any value.
    pub fn has_keepalive(&self) -> bool {
        match self.get("serveraliveinterval") {
            None | Some("0") => false,
            // Debian's ssh sets this value itself with BatchMode.
            Some("300") => self.get("batchmode") != Some("yes"),
            Some(_) => true,
        }
    }

    /// The ciphers, if they are ssh's default.
    pub fn unchosen_ciphers(&self) -> Option<&str> {
        let ciphers = self.get("ciphers")?;
        (Some(ciphers) == first(&self.default, "ciphers")).then_some(ciphers)
    }

    /// Whether each prompt for a password begins with user and host: since OpenSSH 8.5, which
    /// introduced this keyword.
    pub fn names_hosts_in_prompts(&self) -> bool {
        self.get("pubkeyacceptedalgorithms").is_some()
    }

    /// Whether the connection uses a proxy command or a jump host.
    pub fn has_proxy(&self) -> bool {
        let set = |keyword| self.get(keyword).is_some_and(|value| value != "none");
        set("proxycommand") || set("proxyjump")
    }
}

/// Whether the program certainly is an ssh.
pub(crate) fn is_ssh(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new("ssh"))
}

/// Runs a program of this machine, and returns its status and output. If the future is dropped,
/// the program is killed.
pub(crate) async fn output(mut command: Command) -> Option<(ExitStatus, String)> {
    command.current_dir("/").env_remove("OLDPWD").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().ok()?;
    let mut text = Vec::new();
    child.stdout.take()?.take(OUTPUT_MAX_BYTES).read_to_end(&mut text).await.ok()?;
    let status = child.wait().await.ok()?;
    Some((status, String::from_utf8_lossy(&text).into_owned()))
}

/// The output of `command`, if it succeeds in time.
async fn answer(command: Command) -> Option<String> {
    match tokio::time::timeout(QUERY_TIMEOUT, output(command)).await {
        Ok(answer) => answer.filter(|(status, _)| status.success()).map(|(_, text)| text),
        Err(_) => {
            tracing::warn!(
                "`ssh -G` did not finish within {} s; its settings are not used",
                QUERY_TIMEOUT.as_secs()
            );
            None
        }
    }
}

fn parse(answer: &str) -> HashMap<String, Vec<String>> {
    let mut settings: HashMap<String, Vec<String>> = HashMap::new();
    for line in answer.lines() {
        let (keyword, value) = line.split_once(' ').unwrap_or((line, ""));
        settings.entry(keyword.to_ascii_lowercase()).or_default().push(value.to_owned());
    }
    settings
}

fn first<'a>(settings: &'a HashMap<String, Vec<String>>, keyword: &str) -> Option<&'a str> {
    settings.get(keyword)?.first().map(String::as_str)
}

#[cfg(test)]
impl Effective {
    pub(crate) fn from_answers(effective: &str, default: &str) -> Effective {
        Effective { settings: parse(effective), default: parse(default) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn ciphers_that_the_user_named_are_his() {
        let default = "ciphers a,b,c\n";
        let same = Effective::from_answers("ciphers a,b,c\n", default);
        assert_eq!(same.unchosen_ciphers(), Some("a,b,c"));
        let other = Effective::from_answers("ciphers b,a,c\n", default);
        assert_eq!(other.unchosen_ciphers(), None);
        assert_eq!(Effective::default().unchosen_ciphers(), None);
    }

    #[test]
    fn identity_files_that_the_user_named_are_his() {
        let default = "identityfile ~/.ssh/id_rsa\nidentityfile ~/.ssh/id_ed25519\n";
        let same = Effective::from_answers(default, default);
        assert_eq!(same.identity_files(), ["~/.ssh/id_rsa", "~/.ssh/id_ed25519"]);
        assert!(!same.has_chosen_identities());
        let one = Effective::from_answers("identityfile ~/.ssh/id_rsa\n", default);
        assert!(one.has_chosen_identities());
        assert_eq!(one.get("identityfile"), Some("~/.ssh/id_rsa"));
    }

    #[test]
    fn a_jump_host_is_a_proxy_and_none_is_not() {
        assert!(Effective::from_answers("proxyjump gate\n", "").has_proxy());
        assert!(Effective::from_answers("proxycommand nc %h %p\n", "").has_proxy());
        assert!(!Effective::from_answers("proxycommand none\n", "").has_proxy());
        assert!(!Effective::from_answers("host x\n", "").has_proxy());
    }

    #[test]
    fn a_keepalive_of_the_distribution_is_not_the_users() {
        let has = |text: &str| Effective::from_answers(text, "").has_keepalive();
        assert!(has("serveraliveinterval 5\nbatchmode yes\n"));
        assert!(has("serveraliveinterval 300\nbatchmode no\n"));
        assert!(!has("serveraliveinterval 300\nbatchmode yes\n"));
        assert!(!has("serveraliveinterval 0\n"));
    }

    #[tokio::test]
    async fn the_installed_ssh_reports_its_settings() {
        let options = words("-F none -oServerAliveInterval=7 -J gate");
        let effective =
            Effective::query("ssh".as_ref(), &[], &options, "host.invalid").await.unwrap();
        assert_eq!(effective.get("serveraliveinterval"), Some("7"));
        assert_eq!(effective.get("hostname"), Some("host.invalid"));
        assert!(effective.unchosen_ciphers().unwrap().contains("aes128-gcm@openssh.com"));
        assert!(effective.has_proxy());

        let options = words("-F none -c aes256-ctr");
        let chosen = Effective::query("ssh".as_ref(), &[], &options, "host.invalid").await;
        assert_eq!(chosen.unwrap().unchosen_ciphers(), None);
    }

    #[tokio::test]
    async fn a_program_other_than_ssh_reports_no_settings() {
        for program in ["/bin/true", "/bin/echo", "/nonexistent/ssh"] {
            assert_eq!(Effective::query(program.as_ref(), &[], &[], "host").await, None);
        }
        // An ssh that does not like its options says so when it connects.
        let options = words("-oNoSuchKeyword=1");
        assert_eq!(Effective::query("ssh".as_ref(), &[], &options, "host").await, None);
    }
}
