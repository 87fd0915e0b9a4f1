//! Keys and configuration files of a private server and its clients.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Options, SftpServer};
use crate::write_private;

/// sshd wants to be started by its absolute name, since it starts itself again by it.
pub(super) const SSHD: &str = "/usr/sbin/sshd";
pub(super) const CLIENT_CONFIG: &str = "ssh_config";
pub(super) const HOST_KEY: &str = "host_key";
const USER_KEY: &str = "user_key";

/// The name of the user who runs this, as sshd looks it up.
pub(super) fn user_name() -> io::Result<String> {
    let output = run(Command::new("id").arg("-un"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes both keys, and what each side knows of the other's.
pub(super) fn write_keys(dir: &Path, alias: &str) -> io::Result<()> {
    for key in [HOST_KEY, USER_KEY] {
        generate_key(&dir.join(key))?;
    }
    fs::copy(dir.join(USER_KEY).with_extension("pub"), dir.join("authorized_keys"))?;
    let host_key = fs::read_to_string(dir.join(HOST_KEY).with_extension("pub"))?;
    // Known by the alias (`HostKeyAlias`), so that the port may be another one's.
    fs::write(dir.join("known_hosts"), format!("{alias} {host_key}"))
}

/// Makes a key pair at `path`, in the place of an older one.
pub(super) fn generate_key(path: &Path) -> io::Result<()> {
    for old in [path.to_owned(), path.with_extension("pub")] {
        match fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
    }
    let args = ["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"];
    run(Command::new("ssh-keygen").args(args).arg(path)).map(drop)
}

/// An `/etc/shadow` with `user` and `password` alone.
pub(super) fn write_shadow(dir: &Path, user: &str, password: &str) -> io::Result<()> {
    // perl-base is on every Debian; openssl's command need not be. The password must not be seen
    // by ps.
    let script = r#"print crypt($ENV{PASSWORD}, '$6$testkit$')"#;
    let output = run(Command::new("perl").args(["-e", script]).env("PASSWORD", password))?;
    let hash = String::from_utf8_lossy(&output.stdout).into_owned();
    let path = dir.join("shadow");
    if !path.exists() {
        write_private(&path, b"")?;
    }
    // In place: a running server has this file mounted.
    fs::write(path, format!("{user}:{hash}:1::::::\n"))
}

/// Writes `ssh_config`.
pub(super) fn write_client_config(
    dir: &Path,
    options: &Options,
    user: &str,
    port: u16,
) -> io::Result<()> {
    let at = |name: &str| dir.join(name).display().to_string();
    let Options { alias, takes_password, .. } = options;
    let (pubkey, batch) = if *takes_password { ("no", "no") } else { ("yes", "yes") };
    let text = format!(
        "Host {alias}\n\
         HostName 127.0.0.1\n\
         Port {port}\n\
         User {user}\n\
         HostKeyAlias {alias}\n\
         PubkeyAuthentication {pubkey}\n\
         BatchMode {batch}\n\
         IdentityFile {key}\n\
         IdentitiesOnly yes\n\
         IdentityAgent none\n\
         UserKnownHostsFile {known}\n\
         GlobalKnownHostsFile /dev/null\n\
         StrictHostKeyChecking yes\n\
         UpdateHostKeys no\n\
         CheckHostIP no\n\
         ControlPath none\n",
        key = at(USER_KEY),
        known = at("known_hosts"),
    );
    write_private(&dir.join(CLIENT_CONFIG), text.as_bytes())
}

/// Writes `sshd_config` and lets sshd check it.
pub(super) fn write_server_config(
    dir: &Path,
    options: &Options,
    user: &str,
    port: u16,
) -> io::Result<PathBuf> {
    let path = dir.join("sshd_config");
    let at = |name: &str| dir.join(name).display().to_string();
    let mut text = String::new();
    // sshd takes the first value that it sees.
    for line in &options.settings {
        let _ = writeln!(text, "{line}");
    }
    // Directories for temporary files are open to all, which `StrictModes` does not take.
    // With that level bash takes itself for a shell in a shell, and does not run the user's own
    // `.bashrc` at each login, which may take seconds and is no part of a test.
    let _ = write!(
        text,
        "ListenAddress 127.0.0.1\n\
         Port {port}\n\
         HostKey {host_key}\n\
         AuthorizedKeysFile {authorized}\n\
         PidFile none\n\
         LogLevel VERBOSE\n\
         UsePAM no\n\
         StrictModes no\n\
         UseDNS no\n\
         PermitRootLogin yes\n\
         AllowUsers {user}\n\
         PasswordAuthentication {password}\n\
         KbdInteractiveAuthentication no\n\
         X11Forwarding no\n\
         PrintMotd no\n\
         PrintLastLog no\n\
         SetEnv SHLVL=2\n",
        host_key = at(HOST_KEY),
        authorized = at("authorized_keys"),
        password = if options.takes_password { "yes" } else { "no" },
    );
    // The password gives no shell.
    if options.takes_password {
        text += "ForceCommand internal-sftp\n";
    }
    let _ = match &options.sftp_server {
        SftpServer::External(program) => writeln!(text, "Subsystem sftp {}", program.display()),
        SftpServer::Internal => writeln!(text, "Subsystem sftp internal-sftp"),
        SftpServer::Command(command) => {
            // sshd takes quotes away before a shell sees them, so the command gets a file.
            write_private(&dir.join("sftp_command"), command.as_bytes())?;
            writeln!(text, "Subsystem sftp sh {}", at("sftp_command"))
        }
        SftpServer::Disabled => Ok(()),
    };
    // Since 9.8 an address with failed logins is kept out for a while, which a test that fails
    // to log in on purpose does not want. Older ones do not know the keyword.
    write_private(&path, format!("{text}PerSourcePenalties no\n").as_bytes())?;
    if check(&path).is_err() {
        write_private(&path, text.as_bytes())?;
        check(&path)?;
    }
    Ok(path)
}

fn check(config: &Path) -> io::Result<()> {
    run(Command::new(SSHD).args(["-t", "-f"]).arg(config)).map(drop)
}

/// Runs a command to its end; its words are the error when it fails.
fn run(command: &mut Command) -> io::Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run {program}: {error}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} failed ({}): {}", output.status, words.trim())))
}
