//! Servers that let logins do little, and the shells that start the helper.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::site::{Logins, Package, Site, installed};

/// The login shells, as sshd starts them.
const SHELLS: [&str; 6] = ["bash", "dash", "zsh", "fish", "tcsh", "busybox sh"];

/// `sshd_config` for logins whose shell is this one.
fn login_shell(shell: &str) -> Vec<String> {
    vec![format!("ForceCommand exec {shell} -c \"$SSH_ORIGINAL_COMMAND\"")]
}

#[test]
fn every_login_shell_starts_it() {
    for shell in SHELLS {
        let Some(site) = Site::new(&login_shell(shell)) else { return };
        site.put_helper();
        for option in ["helper=auto", "helper=auto", "helper=./.cache/../.cache/sshoal"] {
            let option = match option.ends_with('l') {
                true => format!("helper=./{}", installed()),
                false => option.to_owned(),
            };
            let (seen, _) = site.mount_once(&["-o", &option]);
            seen.is_served_by("helper");
        }
    }
}

#[test]
fn every_login_shell_installs_it() {
    let package = Package::new();
    for shell in SHELLS {
        let Some(site) = Site::new(&login_shell(shell)) else { return };
        let ended = site.helper(package.program(), "install", &[]);
        assert_eq!(ended.status.code(), Some(0), "{shell}: {ended:?}");
        assert!(site.home(installed()).exists(), "{shell}");
    }
}

/// The helper is there, and the server does not start it.
#[test]
fn a_server_that_allows_only_sftp_serves_plain_sftp() {
    let refusal = "ForceCommand case $SSH_ORIGINAL_COMMAND in */sftp-server) exec \
        $SSH_ORIGINAL_COMMAND;; esac; echo 'This account is restricted by rssh.'; exit 1";
    for (setting, said) in [
        ("ForceCommand internal-sftp", "This service allows sftp connections only"),
        (refusal, "server sent text before the SFTP stream: \"This account is restricted"),
    ] {
        let Some(site) = Site::new(&[setting.to_owned()]) else { return };
        site.put_helper();
        let (seen, logins) = site.mount_once(&[]);
        seen.is_served_by("sftp");
        let words = &seen.words;
        assert!(words.contains("is not used, but plain SFTP") && words.contains(said), "{words}");
        assert_eq!(logins.subsystem + logins.command, 2, "{setting}");
        assert_eq!(site.records(), 0);
        let ended = site.helper(site.program(), "status", &[]);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stdout.contains("the helper does not serve"), "{ended:?}");
        let package = Package::new();
        let ended = site.helper(package.program(), "install", &[]);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.contains("does not run commands for this login"), "{ended:?}");
    }
}

#[test]
fn a_login_in_a_chroot_has_plain_sftp() {
    let settings = ["ChrootDirectory %h", "ForceCommand internal-sftp"].map(str::to_owned);
    let Some(site) = Site::new(&settings) else { return };
    fs::set_permissions(site.home(""), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(site.home("data")).unwrap();
    let source = format!("{}:/data", site.world.sshd().alias());
    let shown = |words: &str, logins: Logins| {
        let mount = site.world.mount_of(&source, &[]).with_errors();
        fs::write(mount.at("file"), "content").unwrap();
        assert_eq!(super::site::session(&mount)["server"], "sftp");
        assert!(mount.words().contains(words), "{}", mount.words());
        mount.unmount();
        let seen = site.logins();
        assert_eq!(seen.subsystem + seen.command, logins.subsystem + logins.command);
    };
    shown("", super::site::PLAIN);
    // In the directory where the sessions begin, the root of the chroot.
    site.put(&installed(), "#!/bin/sh\nexec sshoal \"$@\"\n");
    shown("This service allows sftp connections only", super::site::BOTH);
    assert_eq!(fs::read_to_string(site.home("data/file")).unwrap(), "content");
}
