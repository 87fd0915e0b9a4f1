//! The identity of a login at a server, so that a cache never serves data of one login to another.
//!
//! It consists of the destination of the connection (user, host and port after ssh's configuration,
//! and the jump hosts), and of the host's key in the user's `known_hosts`. If a host has several
//! keys, one is used, in a fixed order of types: ssh adds the others later (`UpdateHostKeys`). The
//! key alone is not enough, since cloned machines share it.
//!
//! No connection is made. Only ssh's own programs read ssh's files.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use crate::config::Transport;
use crate::dialer::Dialer;
use crate::effective::{Effective, output};

/// How long `ssh-keygen -F` may take to search one file. A list of ten thousand hosts takes a tenth
/// of a second.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Key types, in ssh's order of preference.
const KINDS: [&str; 4] =
    ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"];

/// The settings that determine the destination of a connection, as `ssh -G` prints them.
const PLACES: [&str; 6] = ["user", "hostname", "port", "hostkeyalias", "proxyjump", "proxycommand"];

impl Dialer {
    /// A text that is equal for the same login at the same host, and, as far as can be determined,
    /// differs for all others. If `ssh -G` prints nothing (another program is used), it is the
    /// destination as the user wrote it.
    pub async fn identity(&self) -> String {
        let config = self.config();
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Values are single lines printed by ssh.
            let _ = writeln!(text, "{name} {value}");
        };
        let host = config.destination.host();
        match config.transport {
            Transport::DirectPort(port) => line("tcp", &format!("{host} {port}")),
            Transport::Vsock { cid, port } => line("vsock", &format!("{cid} {port}")),
            Transport::Passive => line("passive", &config.destination.to_string()),
            Transport::Ssh => match self.effective().await {
                None => {
                    let command = config.ssh_command.as_bytes().escape_ascii();
                    line("command", &command.to_string());
                    line("destination", &config.destination.to_string());
                    let args: Vec<String> = config
                        .args
                        .iter()
                        .map(|arg| arg.as_bytes().escape_ascii().to_string())
                        .collect();
                    line("arguments", &args.join(" "));
                }
                Some(settings) => {
                    for (place, value) in places(settings) {
                        line(place, value);
                    }
                    if let Some(key) = known_key(settings).await {
                        line("key", &key);
                    }
                }
            },
        }
        if let Some(server) = &config.sftp_server {
            line("server", server);
        }
        text
    }

    /// The host's name in `known_hosts`; `None` if `ssh -G` prints nothing.
    pub async fn known_name(&self) -> Option<String> {
        known_name(self.effective().await?)
    }

    /// User, host and port after ssh's configuration, and the jump hosts, one a line. `None` if
    /// `ssh -G` prints nothing, and for a connection without ssh.
    pub async fn place(&self) -> Option<String> {
        if self.config().transport != Transport::Ssh {
            return None;
        }
        let settings = self.effective().await?;
        Some(places(settings).map(|(place, value)| format!("{place} {value}\n")).collect())
    }
}

fn places(settings: &Effective) -> impl Iterator<Item = (&'static str, &str)> {
    let place = |place| Some((place, settings.get(place).filter(|value| *value != "none")?));
    PLACES.into_iter().filter_map(place)
}

/// The host's key.
async fn known_key(settings: &Effective) -> Option<String> {
    let name = known_name(settings)?;
    let lists = ["userknownhostsfile", "globalknownhostsfile"];
    let mut keys = Vec::new();
    for file in lists.iter().filter_map(|keyword| settings.get(keyword)).flat_map(files) {
        keys.extend(keys_in(&look_up(&name, &file).await.unwrap_or_default()));
    }
    keys.sort_by_cached_key(|(kind, key)| {
        let rank = KINDS.iter().position(|known| known == kind).unwrap_or(KINDS.len());
        (rank, kind.clone(), key.clone())
    });
    keys.into_iter().next().map(|(kind, key)| format!("{kind} {key}"))
}

/// The host's name in `known_hosts`.
fn known_name(settings: &Effective) -> Option<String> {
    if let Some(alias) = settings.get("hostkeyalias").filter(|alias| *alias != "none") {
        return Some(alias.to_owned());
    }
    let host = settings.get("hostname")?;
    Some(match settings.get("port") {
        None | Some("22") => host.to_owned(),
        Some(port) => format!("[{host}]:{port}"),
    })
}

/// The file names in a setting. `ssh -G` separates them by spaces, but does not escape spaces in a
/// name; so the whole value may also be one name.
fn files(list: &str) -> Vec<OsString> {
    if Path::new(list).exists() {
        return vec![list.into()];
    }
    list.split_ascii_whitespace().filter(|word| *word != "none").map(OsString::from).collect()
}

/// The output of `ssh-keygen -F` for `name` in `file`, whose names may be hashed.
async fn look_up(name: &str, file: &OsString) -> Option<String> {
    let mut command = Command::new("ssh-keygen");
    command.arg("-F").arg(name).arg("-f").arg(file);
    let found = tokio::time::timeout(LOOKUP_TIMEOUT, output(command)).await.ok()?;
    found.map(|(_, text)| text)
}

/// The keys in the output of `ssh-keygen -F`: type and key. Certificate authorities and revoked
/// keys are left out.
fn keys_in(answer: &str) -> Vec<(String, String)> {
    let of_host = |line: &&str| !line.starts_with(['#', '@']);
    let key = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    };
    answer.lines().filter(of_host).filter_map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Destination};
    use std::sync::Arc;

    const ED25519: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIIVt0ZfXuUoSLAPSOIIMuwKIMUlsgrvSzrUq5eOMyoQG";
    const RSA: &str = "AAAAB3NzaC1yc2EAAAADAQABAAAAQQC7";

    async fn identity(arguments: &[&str], host: &str) -> String {
        let mut config = Config::new(Destination::new(None, host, None).unwrap());
        config.args = ["-F", "none"].iter().chain(arguments).map(OsString::from).collect();
        Dialer::new(config, Arc::new(|_: &str| {})).unwrap().identity().await
    }

    fn known_hosts(dir: &Path, lines: &str) -> String {
        let file = dir.join("known hosts");
        std::fs::write(&file, lines).unwrap();
        format!("-oUserKnownHostsFile=\"{}\"", file.display())
    }

    #[tokio::test]
    async fn another_place_another_login_and_another_key_are_other_identities() {
        let dir = tempfile::tempdir().unwrap();
        let one = known_hosts(dir.path(), &format!("[host.invalid]:7 ssh-ed25519 {ED25519}\n"));
        let of =
            async |words: &[&str]| identity(&[&[&one[..]], words].concat(), "host.invalid").await;
        let plain = of(&["-l", "ann", "-p", "7"]).await;
        assert!(
            plain.contains("hostname host.invalid\n") && plain.contains("user ann\n"),
            "{plain}"
        );
        assert!(plain.contains(&format!("key ssh-ed25519 {ED25519}\n")), "{plain}");
        let mut all = vec![plain.clone()];
        for words in [
            &["-l", "bob", "-p", "7"][..],
            &["-l", "ann", "-p", "8"],
            &["-l", "ann", "-p", "7", "-J", "gate"],
            &["-l", "ann", "-p", "7", "-oHostName=other.invalid"],
        ] {
            all.push(of(words).await);
        }
        let other_key = known_hosts(dir.path(), &format!("[host.invalid]:7 ssh-rsa {RSA}\n"));
        all.push(identity(&[&other_key, "-l", "ann", "-p", "7"], "host.invalid").await);
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{one}");
        }
        assert!(!all[4].contains("key "), "that host is not known: {}", all[4]);
    }

    #[tokio::test]
    async fn one_name_or_another_for_the_same_place_is_one_identity() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = known_hosts(dir.path(), &format!("real.invalid ssh-ed25519 {ED25519}\n"));
        let named = ["-l", "ann", "-oHostName=real.invalid", &hosts];
        let real = identity(&["-l", "ann", &hosts], "real.invalid").await;
        assert!(real.contains("key "), "{real}");
        assert_eq!(identity(&named, "nick").await, real);
    }

    /// ssh adds further keys of a host that it knows.
    #[tokio::test]
    async fn keys_that_are_learned_later_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let first = format!("h.invalid ssh-ed25519 {ED25519}\n");
        let hosts = known_hosts(dir.path(), &first);
        let before = identity(&["-l", "ann", &hosts], "h.invalid").await;
        let more = format!("@revoked h.invalid ssh-rsa {RSA}\nh.invalid ssh-rsa {RSA}\n{first}");
        assert!(before.contains(&format!("key ssh-ed25519 {ED25519}\n")), "{before}");
        known_hosts(dir.path(), &more);
        assert_eq!(identity(&["-l", "ann", &hosts], "h.invalid").await, before);
    }

    #[tokio::test]
    async fn another_transport_is_identified_by_its_command_and_arguments() {
        let with = async |change: &dyn Fn(&mut Config)| {
            let mut config = Config::new(Destination::new(Some("ann"), "h", None).unwrap());
            change(&mut config);
            Dialer::new(config, Arc::new(|_: &str| {})).unwrap().identity().await
        };
        let command = with(&|config| config.ssh_command = "/bin/true -x".into()).await;
        assert_eq!(command, "command /bin/true -x\ndestination ann@h\narguments \n");
        assert_eq!(with(&|it| it.transport = Transport::DirectPort(5)).await, "tcp h 5\n");
        let vsock = with(&|it| it.transport = Transport::Vsock { cid: 3, port: 4 }).await;
        assert_eq!(vsock, "vsock 3 4\n");
    }

    #[test]
    fn lists_of_files_are_parted_and_a_file_with_spaces_is_one() {
        let list = files("/home/a/known /etc/ssh/known_hosts  none");
        assert_eq!(list, ["/home/a/known", "/etc/ssh/known_hosts"]);
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("known hosts");
        std::fs::write(&one, "").unwrap();
        assert_eq!(files(one.to_str().unwrap()), [one]);
    }
}
