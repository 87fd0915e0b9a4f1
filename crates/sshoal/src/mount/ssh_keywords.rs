//! The keywords of ssh_config(5): each may be given as `-o Keyword=value` and goes to ssh.
//!
//! The list contains the keywords of OpenSSH up to 10.x, those that earlier versions had, and those
//! that Debian's and Apple's builds add. It only distinguishes keywords from misspelled mount
//! options: the installed ssh decides whether a keyword exists and which values are valid.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The keywords that are passed to ssh, separated by spaces.
const PASSED: &str = "\
    AddKeysToAgent AddressFamily BatchMode BindAddress BindInterface CASignatureAlgorithms \
    CanonicalDomains CanonicalizeFallbackLocal CanonicalizeHostname CanonicalizeMaxDots \
    CanonicalizePermittedCNAMEs CertificateFile ChallengeResponseAuthentication ChannelTimeout \
    CheckHostIP Cipher Ciphers ClearAllForwardings Compression CompressionLevel ConnectTimeout \
    ConnectionAttempts ControlMaster ControlPath ControlPersist DSAAuthentication DynamicForward \
    EnableEscapeCommandline EnableSSHKeysign EscapeChar ExitOnForwardFailure FallBackToRsh \
    FingerprintHash ForkAfterAuthentication ForwardX11Timeout GSSAPIAuthentication \
    GSSAPIClientIdentity GSSAPIDelegateCredentials GSSAPIKexAlgorithms GSSAPIKeyExchange \
    GSSAPIRenewalForcesRekey GSSAPIServerIdentity GSSAPITrustDns GatewayPorts \
    GlobalKnownHostsFile GlobalKnownHostsFile2 HashKnownHosts HostKeyAlgorithms HostKeyAlias \
    HostName HostbasedAcceptedAlgorithms HostbasedAuthentication HostbasedKeyTypes IPQoS \
    IdentitiesOnly IdentityAgent IdentityFile IdentityFile2 IgnoreUnknown Include \
    KbdInteractiveAuthentication KbdInteractiveDevices KeepAlive KexAlgorithms KnownHostsCommand \
    LocalCommand LocalForward LogLevel LogVerbose MACs NoHostAuthenticationForLocalhost \
    NumberOfPasswordPrompts ObscureKeystrokeTiming PKCS11Provider PasswordAuthentication \
    PermitLocalCommand PermitRemoteOpen Port PreferredAuthentications Protocol ProxyCommand \
    ProxyJump ProxyUseFdpass PubkeyAcceptedAlgorithms PubkeyAcceptedKeyTypes \
    PubkeyAuthentication RSAAuthentication RefuseConnection RekeyLimit RemoteCommand \
    RemoteForward RequestTTY RequiredRSASize RevokedHostKeys RhostsRSAAuthentication \
    SecurityKeyProvider SendEnv ServerAliveCountMax ServerAliveInterval SessionType SetEnv \
    SkeyAuthentication SmartcardDevice StdinNull StreamLocalBindMask StreamLocalBindUnlink \
    StrictHostKeyChecking SyslogFacility TCPKeepAlive TISAuthentication Tag UpdateHostKeys \
    UseBlacklistedKeys UseKeychain UsePrivilegedPort UseRoaming UseRsh User UserKnownHostsFile \
    UserKnownHostsFile2 VerifyHostKeyDNS VersionAddendum VisualHostKey WarnWeakCrypto \
    XAuthLocation";

/// Keywords whose value is a path, or `none` or the like.
const WITH_FILE: &[&str] = &[
    "CertificateFile",
    "ControlPath",
    "GlobalKnownHostsFile2",
    "IdentityAgent",
    "IdentityFile",
    "IdentityFile2",
    "PKCS11Provider",
    "RevokedHostKeys",
    "UserKnownHostsFile2",
];

/// Keywords whose value is several paths, separated by white space.
const WITH_FILES: &[&str] = &["GlobalKnownHostsFile", "UserKnownHostsFile"];

/// Keywords that are accepted but not passed to ssh, with the reason.
pub const WITHHELD: &[(&str, &str)] = &[
    ("ForwardAgent", "a mount never forwards the agent"),
    ("ForwardX11", "a mount never forwards X11"),
    ("ForwardX11Trusted", "a mount never forwards X11"),
    ("Host", "works only in ssh's configuration file (-F)"),
    ("Match", "works only in ssh's configuration file (-F)"),
    ("Tunnel", "a mount never opens a tunnel"),
    ("TunnelDevice", "a mount never opens a tunnel"),
];

/// Values that are valid where a path is expected, but are not paths.
const NO_PATHS: &[&str] = &["none", "SSH_AUTH_SOCK"];

/// The effect of `-o Keyword=value`.
#[derive(Debug, PartialEq, Eq)]
pub enum Keyword {
    /// An argument for ssh.
    Argument(OsString),
    /// None: the keyword is not passed to ssh, for this reason.
    Withheld(&'static str, &'static str),
}

/// All keywords as ssh_config(5) spells them, including the withheld ones, in no order.
pub fn all() -> impl Iterator<Item = &'static str> {
    PASSED.split(' ').chain(WITHHELD.iter().map(|(keyword, _)| *keyword))
}

/// The keyword with this name, in upper or lower case, as ssh_config(5) spells it.
pub fn find(name: &OsStr) -> Option<&'static str> {
    all().find(|keyword| name.eq_ignore_ascii_case(keyword))
}

/// Whether `name` is a keyword, in upper or lower case.
pub fn is_keyword(name: &OsStr) -> bool {
    find(name).is_some()
}

/// `None` if `name` is not a keyword. A relative path in the value becomes absolute from `cwd`,
/// since ssh runs in `/`.
pub fn recognize(name: &OsStr, value: &OsStr, cwd: &Path) -> Option<Keyword> {
    let keyword = find(name)?;
    if let Some((keyword, why)) = WITHHELD.iter().find(|(withheld, _)| *withheld == keyword) {
        return Some(Keyword::Withheld(keyword, why));
    }
    let mut argument = OsString::from(format!("-o{keyword}="));
    match value.to_str() {
        _ if WITH_FILE.contains(&keyword) => argument.push(absolute(value, cwd)),
        // With quotes, ssh's own grammar decides where a word ends.
        Some(list) if WITH_FILES.contains(&keyword) && !list.contains('"') => {
            let paths = list.split_whitespace().map(|path| absolute(OsStr::new(path), cwd));
            argument.push(paths.collect::<Vec<OsString>>().join(OsStr::new(" ")));
        }
        _ => argument.push(value),
    }
    Some(Keyword::Argument(argument))
}

/// `path` below `cwd` if it is relative. A word that ssh expands itself (`~`, `%d`, `$HOME`), a
/// quoted word and a word that is not a path stay as they are.
pub fn absolute(path: &OsStr, cwd: &Path) -> OsString {
    let first = path.as_encoded_bytes().first();
    let is_left_to_ssh = matches!(first, None | Some(b'/' | b'~' | b'%' | b'$' | b'"'));
    if is_left_to_ssh || NO_PATHS.iter().any(|word| path == *word) {
        path.to_owned()
    } else {
        cwd.join(path).into_os_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn argument(name: &str, value: &str) -> String {
        match recognize(OsStr::new(name), OsStr::new(value), Path::new("/home/u")) {
            Some(Keyword::Argument(argument)) => argument.into_string().unwrap(),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn a_keyword_is_known_in_any_case_and_goes_on_in_ssh_s() {
        assert_eq!(argument("identitiesonly", "yes"), "-oIdentitiesOnly=yes");
        assert_eq!(argument("MACS", "a,b"), "-oMACs=a,b");
        assert_eq!(argument("SetEnv", "A=\"x y\""), "-oSetEnv=A=\"x y\"");
        assert_eq!(recognize(OsStr::new("IdentitiesOnl"), OsStr::new(""), Path::new("/")), None);
    }

    #[test]
    fn relative_paths_become_absolute_and_nothing_else_does() {
        assert_eq!(argument("IdentityFile", "key"), "-oIdentityFile=/home/u/key");
        for value in ["/etc/key", "~/.ssh/key", "%d/key", "none", "\"a b\"", ""] {
            assert_eq!(argument("IdentityFile", value), format!("-oIdentityFile={value}"));
        }
        assert_eq!(argument("IdentityAgent", "SSH_AUTH_SOCK"), "-oIdentityAgent=SSH_AUTH_SOCK");
        assert_eq!(
            argument("UserKnownHostsFile", "known /etc/known"),
            "-oUserKnownHostsFile=/home/u/known /etc/known"
        );
        assert_eq!(argument("ProxyCommand", "./gate %h"), "-oProxyCommand=./gate %h");
    }

    #[test]
    fn forwarding_is_withheld() {
        let word = recognize(OsStr::new("forwardagent"), OsStr::new("yes"), Path::new("/"));
        assert_eq!(word, Some(Keyword::Withheld("ForwardAgent", WITHHELD[0].1)));
    }

    #[test]
    fn every_keyword_of_the_installed_ssh_is_in_the_list_once() {
        let ours: BTreeSet<String> = all().map(str::to_ascii_lowercase).collect();
        assert_eq!(ours.len(), all().count(), "a keyword is listed twice");
        // ssh prints its effective configuration, and so most of its keywords.
        let output = std::process::Command::new("ssh")
            .args(["-G", "-F", "none", "localhost"])
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.lines().count() > 30, "{output}");
        for line in output.lines() {
            let keyword = line.split(' ').next().unwrap();
            let keyword = keyword.to_ascii_lowercase();
            assert!(ours.contains(&keyword), "{keyword} is not in the list");
        }
    }
}
