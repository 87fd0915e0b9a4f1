//! Why a login is refused, or which keys cannot be used for it: the files that ssh would use, the
//! agent, and what the server answers to the keys.
//!
//! No key is read but for its first bytes, which say whether it is a private one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use nix::unistd::{User, geteuid};
use tokio::process::Command;
use tokio::time::timeout;

use cli::word;
use ssh::{Cause, Dialer, Failure};

use super::login::{Line, options};
use super::server::{CHECK_LIMIT, in_time, silent};
use super::{Check, Checks, Verdict};
use crate::connector::log_in;
use crate::quantity::count;

/// How a file with a private key begins, in each format.
const PRIVATE: &[u8] = b"-----BEGIN";

/// The checks after a login that succeeded.
pub async fn check_accepted(checks: &mut Checks, dialer: &Dialer) {
    for check in [keys(dialer).await.checks, vec![in_time("agent", agent(dialer)).await]].concat() {
        // The login did without.
        checks.add(match check.verdict {
            Verdict::Wrong => Check { verdict: Verdict::Note, ..check },
            Verdict::Fine => Check { remedy: None, ..check },
            Verdict::Note | Verdict::Unknown => check,
        });
    }
}

/// The checks after a login that was refused. Returns whether they name all that can be wrong.
pub async fn check_refused(checks: &mut Checks, dialer: &Dialer, failure: &Failure) -> bool {
    let keys = keys(dialer).await;
    let agent = in_time("agent", agent(dialer)).await;
    let agent = match agent.remedy {
        Some(_) => Check { verdict: Verdict::Note, ..agent },
        None => agent,
    };
    let mut found = keys.checks.clone();
    found.push(agent);
    if keys.are_offered && takes_keys(failure) {
        let offers = timeout(CHECK_LIMIT, offers(dialer, &keys)).await;
        found.extend(offers.unwrap_or_else(|_| Some(silent("offered keys", CHECK_LIMIT))));
    }
    let is_named = found.iter().any(|check| check.verdict == Verdict::Wrong);
    found.into_iter().for_each(|check| checks.add(check));
    // A password may have been wrong as well.
    is_named && !failure.to_string().contains("password")
}

/// Whether the server may let keys log in: ssh's last message names no methods, or this one.
fn takes_keys(failure: &Failure) -> bool {
    let message = failure.to_string();
    !message.contains("ermission denied (") || message.contains(KEY_METHOD)
}

/// The method by which keys log in, in ssh's messages.
const KEY_METHOD: &str = "publickey";

/// The files that ssh would use.
#[derive(Default)]
struct Keys {
    checks: Vec<Check>,
    /// Whether ssh offers keys, as far as it says so.
    are_offered: bool,
    /// All of them.
    files: Vec<String>,
    /// Those that are wrong.
    wrong: Vec<String>,
}

async fn keys(dialer: &Dialer) -> Keys {
    let mut keys = Keys::default();
    let is_off = dialer.setting("pubkeyauthentication").await;
    if is_off.is_some_and(|value| ["no", "false"].contains(&&*value)) {
        let check = Check::note("keys", "not used: PubkeyAuthentication is off");
        keys.checks.push(check.remedy("-o PubkeyAuthentication=yes"));
        return keys;
    }
    let Some((names, are_chosen)) = dialer.identity_files().await else { return keys };
    keys.are_offered = true;
    let tokens = Tokens::of(dialer).await;
    let named = names.iter().map(|name| (name.clone(), are_chosen));
    // ssh leaves out those of its command line that do not exist.
    let words = options(dialer.config()).into_iter().filter(|(option, _)| *option == 'i');
    let words = words.map(|(_, name)| (name, true)).filter(|(name, _)| !names.contains(name));
    let mut usable = Vec::new();
    for (name, is_chosen) in named.chain(words) {
        let is_file = !name.eq_ignore_ascii_case("none");
        let Some(file) = tokens.expand(&name).filter(|_| is_file) else { continue };
        keys.files.push(file.clone());
        match examine(&file, is_chosen, geteuid().as_raw()) {
            Found::Usable => usable.push(file),
            Found::Absent => {}
            Found::Wrong(check) => {
                keys.checks.push(check.naming(&file).naming(word(&file)));
                keys.wrong.push(file);
            }
        }
    }
    if keys.checks.is_empty() {
        let found = match usable.is_empty() {
            true => "no file".to_owned(),
            false => usable.join(", "),
        };
        let check = Check::fine("keys", found);
        keys.checks.push(usable.into_iter().fold(check, Check::naming));
    }
    keys
}

/// What one file is.
#[derive(Debug)]
enum Found {
    Usable,
    /// One of ssh's defaults is not there.
    Absent,
    Wrong(Check),
}

/// Checks what ssh checks, for the user `me`.
fn examine(file: &str, is_chosen: bool, me: u32) -> Found {
    let path = Path::new(file);
    let quoted = word(file);
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The private key may be in the agent alone.
            return match Path::new(&format!("{file}.pub")).exists() {
                true => Found::Usable,
                false if !is_chosen => Found::Absent,
                false => Found::Wrong(
                    Check::wrong("keys", format!("{file} does not exist")).remedy(format!(
                        "ls -l ~/.ssh shows which keys there are; name one with -o \
                         IdentityFile=FILE; ssh-keygen -t ed25519 -f {quoted} makes this one"
                    )),
                ),
            };
        }
        Err(error) => return Found::Wrong(Check::wrong("keys", format!("{file}: {error}"))),
        // To open a pipe would wait for its other end.
        Ok(found) if !found.is_file() => {
            return Found::Wrong(Check::wrong("keys", format!("{file}: not a file")));
        }
        Ok(found) => found,
    };
    let mut begin = Vec::new();
    let read =
        File::open(path).and_then(|it| it.take(PRIVATE.len() as u64).read_to_end(&mut begin));
    let mode = found.mode() & 0o7777;
    let (owner, chmod) = (found.uid(), format!("chmod 600 {quoted}"));
    match read {
        Err(_) if owner != me => Found::Wrong(
            Check::wrong("keys", format!("{file} belongs to user {owner}; ssh cannot read it"))
                .remedy(format!("as root: chown {me} {quoted}")),
        ),
        Err(error) => Found::Wrong(
            Check::wrong("keys", format!("{file} has mode {mode:04o}: {error}")).remedy(chmod),
        ),
        // ssh does not check the mode of another user's file, nor that of a public key.
        Ok(_) if owner == me && mode & 0o077 != 0 && begin == PRIVATE => Found::Wrong(
            Check::wrong(
                "keys",
                format!(
                    "{file} has mode {mode:04o}: ssh ignores it (UNPROTECTED PRIVATE KEY FILE)"
                ),
            )
            .remedy(chmod),
        ),
        Ok(_) => Found::Usable,
    }
}

/// What ssh replaces in the names of files. It prints them as they were written.
#[derive(Default)]
struct Tokens {
    home: String,
    local_user: String,
    uid: u32,
    host: String,
    named_host: String,
    port: String,
    user: String,
}

impl Tokens {
    async fn of(dialer: &Dialer) -> Tokens {
        let setting = async |keyword| dialer.setting(keyword).await.unwrap_or_default();
        // ssh does not use HOME.
        let me = User::from_uid(geteuid()).ok().flatten();
        Tokens {
            home: me.as_ref().map(|me| me.dir.display().to_string()).unwrap_or_default(),
            local_user: me.map(|me| me.name).unwrap_or_default(),
            uid: geteuid().as_raw(),
            host: setting("hostname").await,
            named_host: dialer.config().destination.host().to_owned(),
            port: setting("port").await,
            user: setting("user").await,
        }
    }

    /// The name of a file; `None` with a token that is not known here.
    fn expand(&self, name: &str) -> Option<String> {
        let (mut text, mut rest) = (String::new(), name);
        if let Some(below) = name.strip_prefix("~/") {
            text = format!("{}/", self.home);
            rest = below;
        } else if name.starts_with('~') {
            return None;
        }
        while let Some(at) = rest.find(['%', '$']) {
            text.push_str(&rest[..at]);
            let token = &rest[at..];
            if let Some(variable) = token.strip_prefix("${") {
                let (variable, after) = variable.split_once('}')?;
                text.push_str(&std::env::var(variable).ok()?);
                rest = after;
                continue;
            }
            if let Some(after) = token.strip_prefix('$') {
                text.push('$');
                rest = after;
                continue;
            }
            match token.as_bytes().get(1)? {
                b'%' => text.push('%'),
                b'd' => text.push_str(&self.home),
                b'h' => text.push_str(&self.host),
                b'i' => text.push_str(&self.uid.to_string()),
                b'n' => text.push_str(&self.named_host),
                b'p' => text.push_str(&self.port),
                b'r' => text.push_str(&self.user),
                b'u' => text.push_str(&self.local_user),
                _ => return None,
            }
            rest = &token[2..];
        }
        text.push_str(rest);
        Some(text)
    }
}

/// Whether an agent is there and has keys. Its keys are not shown: their comments are names.
async fn agent(dialer: &Dialer) -> Check {
    let what = "agent";
    let mut command = Command::new("ssh-add");
    command.arg("-l").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let place = match dialer.setting("identityagent").await.as_deref() {
        Some("none") => return Check::fine(what, "not used: IdentityAgent none"),
        None | Some("SSH_AUTH_SOCK") => std::env::var("SSH_AUTH_SOCK").ok(),
        Some(named) => match named.strip_prefix('$').filter(|name| !name.starts_with('{')) {
            Some(variable) => std::env::var(variable).ok(),
            None => Tokens::of(dialer).await.expand(named),
        },
    };
    let place = place.filter(|place| !place.is_empty());
    let Some(place) = place else {
        let check = Check::fine(what, "none: SSH_AUTH_SOCK is not set");
        return check.remedy("eval \"$(ssh-agent -s)\" && ssh-add");
    };
    let output = match command.env("SSH_AUTH_SOCK", &place).output().await {
        Ok(output) => output,
        Err(error) => return Check::unknown(what, format!("ssh-add: {error}")),
    };
    let check = match output.status.code() {
        Some(0) => {
            let keys = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            Check::fine(what, count(keys.count() as u64, "key"))
        }
        Some(1) => Check::fine(what, "it has no keys").remedy("ssh-add"),
        Some(2) => Check::note(what, format!("no agent answers at {place}"))
            .remedy("eval \"$(ssh-agent -s)\" && ssh-add"),
        _ => Check::unknown(what, format!("ssh-add ended ({})", output.status)),
    };
    check.naming(place)
}

/// A key as ssh's messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    /// Its file, if it has one.
    file: Option<String>,
    /// Its type and fingerprint.
    key: String,
}

impl Offer {
    /// From `FILE TYPE SHA256:… [agent]`; a key of an agent may have a comment instead of a file.
    /// Older versions of ssh write the file last.
    fn parse(text: &str) -> Offer {
        let Some((before, after)) = text.split_once(" SHA256:") else {
            let file = text.starts_with('/').then(|| text.to_owned());
            return Offer { file, key: "a key".to_owned() };
        };
        let mut words = after.split(' ');
        let print = words.next().unwrap_or_default();
        let (name, kind) = before.rsplit_once(' ').unwrap_or(("", before));
        let file = [name, words.next().unwrap_or_default()].into_iter();
        let file = file.into_iter().find(|name| name.starts_with('/')).map(str::to_owned);
        Offer { file, key: format!("{kind} SHA256:{print}") }
    }

    fn shown(&self) -> &str {
        self.file.as_deref().unwrap_or(&self.key)
    }
}

/// The keys that ssh has offered to the destination, by its messages with `-v`, and the last that
/// the server would have accepted. Only `files` are taken for files: comments of an agent's keys
/// may look like some, and the server writes to the same stream.
fn offered(words: &str, files: &[String]) -> (Vec<Offer>, Option<Offer>) {
    // Before, there are those for jump hosts.
    let begin = words.rfind("debug1: Authenticating to ").unwrap_or(0);
    let (mut offers, mut accepted) = (Vec::new(), None);
    for line in words[begin..].lines() {
        let Some(line) = line.trim().strip_prefix("debug1: ") else { continue };
        if line.starts_with("Server accepts key: ") {
            accepted = offers.last().cloned();
        } else if line.starts_with("Offering ")
            && let Some((_, key)) = line.split_once("public key: ")
        {
            let Offer { file, key } = Offer::parse(key);
            offers.push(Offer { file: file.filter(|file| files.contains(file)), key });
        }
    }
    (offers, accepted)
}

/// The methods by which the destination lets users log in, by ssh's messages with `-v`; `None` if it
/// has named none.
fn methods(words: &str) -> Option<&str> {
    let begin = words.rfind("debug1: Authenticating to ").unwrap_or(0);
    let mut lines = words[begin..].lines();
    lines.find_map(|line| line.trim().strip_prefix("debug1: Authentications that can continue: "))
}

/// What the server says to each key. That takes one more login: the first one's messages are for
/// the user.
async fn offers(dialer: &Dialer, keys: &Keys) -> Option<Check> {
    let failure = match log_in(&dialer.verbose(), false).await {
        Ok(_) => return Some(Check::note("offered keys", "the next login succeeded")),
        Err(error) => error.into_refusal(),
    };
    let Some(failure) = failure else {
        return Some(Check::unknown("offered keys", "the next login failed for another reason"));
    };
    let (offers, accepted) = offered(&failure.words, &keys.files);
    if let Some(offer) = accepted {
        // The file is reported already.
        let is_wrong = offer.file.as_ref().is_some_and(|file| keys.wrong.contains(file));
        return (!is_wrong).then(|| unusable(&offer));
    }
    if offers.is_empty()
        && let Some(methods) = methods(&failure.words).filter(|all| !all.contains(KEY_METHOD))
    {
        return Some(Check::note(
            "offered keys",
            format!("the server takes no keys, only: {methods}"),
        ));
    }
    if offers.is_empty() {
        let is_explained = keys.checks.iter().any(|check| check.verdict != Verdict::Fine);
        return (!is_explained).then(|| {
            let line = Line::to(dialer, "ssh-copy-id");
            line.name(
                Check::wrong("offered keys", "ssh has no key for this login")
                    .remedy(format!("ssh-keygen -t ed25519 && {}", line.text)),
            )
        });
    }
    Some(refused(dialer, &offers, failure.cause))
}

/// The server would accept this key, but ssh could not sign with it.
fn unusable(offer: &Offer) -> Check {
    let shown = offer.shown();
    let remedy = match &offer.file {
        Some(file) => format!("ssh-add {}", word(file)),
        None => "ssh-add".to_owned(),
    };
    let check = Check::wrong(
        "offered keys",
        format!("the server accepts {shown}, but ssh has not got its passphrase"),
    );
    naming(check.remedy(remedy), offer)
}

fn refused(dialer: &Dialer, offers: &[Offer], cause: Cause) -> Check {
    let shown: Vec<&str> = offers.iter().map(Offer::shown).collect();
    let number = count(offers.len() as u64, "key");
    let check = Check::wrong(
        "offered keys",
        format!("the server refused {number}, all that ssh offered: {}", shown.join(", ")),
    );
    let file = offers.iter().find_map(|offer| offer.file.as_deref());
    let check = match (cause, file) {
        (Cause::TooManyFailures, _) => check.remedy(cause.hint().unwrap_or_default()),
        (_, Some(file)) => {
            let quoted = word(file);
            let line = Line::to(dialer, &format!("ssh-copy-id -i {quoted}"));
            let public = Path::new(&format!("{file}.pub")).exists() || file.ends_with(".pub");
            let made = match public {
                true => String::new(),
                false => {
                    format!("ssh-keygen -y -f {quoted} > {} && ", word(format!("{file}.pub")))
                }
            };
            line.name(check.remedy(format!("{made}{}", line.text)))
        }
        (_, None) => {
            let line = Line::to(dialer, "ssh-copy-id");
            line.name(check.remedy(line.text.clone()))
        }
    };
    offers.iter().fold(check, naming)
}

fn naming(check: Check, offer: &Offer) -> Check {
    let check = check.naming(&offer.key);
    match &offer.file {
        Some(file) => check.naming(file).naming(word(file)),
        None => check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const JUMP: &str = "debug1: Authenticating to gate:22 as 'ann'\n\
        debug1: Offering public key: /home/ann/.ssh/gate ED25519 SHA256:gate explicit\n\
        debug1: Server accepts key: /home/ann/.ssh/gate ED25519 SHA256:gate explicit\n\
        debug1: Authenticating to host:22 as 'ann'\n";

    #[test]
    fn the_offers_to_the_destination_are_found_in_sshs_messages() {
        let offers = "debug1: Offering public key: /home/ann/a key RSA SHA256:one explicit\n\
            debug1: Authentications that can continue: publickey\n\
            debug1: Offering public key: /etc/passwd ED25519 SHA256:two agent\r\n";
        let files = ["/home/ann/a key", "/home/ann/.ssh/id_rsa"].map(str::to_owned);
        let offered = |words: &str| offered(words, &files);
        let (found, accepted) = offered(&format!("{JUMP}{offers}"));
        let shown: Vec<&str> = found.iter().map(Offer::shown).collect();
        assert_eq!(shown, ["/home/ann/a key", "ED25519 SHA256:two"]);
        assert_eq!(accepted, None);
        let accepts = "debug1: Server accepts key: /etc/passwd ED25519 SHA256:two agent\n";
        let (found, accepted) = offered(&format!("{JUMP}{offers}{accepts}"));
        assert_eq!(accepted.as_ref(), found.last());
        assert_eq!(offered(JUMP), (vec![], None));
        let continued = "debug1: Authentications that can continue: password,keyboard-interactive";
        assert_eq!(
            methods(&format!("{JUMP}{continued}\r\n")),
            Some("password,keyboard-interactive")
        );
        let of_jump = format!("{}\n{JUMP}", continued.replace("password", KEY_METHOD));
        assert_eq!(methods(&of_jump), None);
        // As OpenSSH 7 writes it.
        let old = "debug1: Offering public key: RSA SHA256:one /home/ann/.ssh/id_rsa\n";
        assert_eq!(offered(old).0[0].shown(), "/home/ann/.ssh/id_rsa");
    }

    #[test]
    fn names_of_files_are_expanded_as_ssh_does() {
        let tokens = Tokens {
            home: "/home/ann".into(),
            host: "real".into(),
            named_host: "nick".into(),
            user: "me".into(),
            uid: 7,
            ..Tokens::default()
        };
        let expand = |name| tokens.expand(name);
        assert_eq!(expand("~/.ssh/%h-%n_%r").as_deref(), Some("/home/ann/.ssh/real-nick_me"));
        assert_eq!(expand("%d/100%%/$x/%i").as_deref(), Some("/home/ann/100%/$x/7"));
        assert_eq!(expand("/plain file").as_deref(), Some("/plain file"));
        for unknown in ["~bob/key", "/x/%C", "/x/%", "${SSHOAL_NO_SUCH_VARIABLE}/x"] {
            assert_eq!(expand(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_file_is_checked_as_ssh_checks_it() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        let file = key.to_str().unwrap();
        let me = geteuid().as_raw();
        assert!(matches!(examine(file, false, me), Found::Absent));
        let Found::Wrong(missing) = examine(file, true, me) else { panic!("a missing file") };
        assert!(missing.found.ends_with("/key does not exist"), "{missing:?}");
        fs::write(format!("{file}.pub"), "").unwrap();
        assert!(matches!(examine(file, true, me), Found::Usable), "it may be in the agent");
        let mode = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(&key, "-----BEGIN OPENSSH PRIVATE KEY-----\n").unwrap();
        mode(0o600);
        assert!(matches!(examine(file, true, me), Found::Usable));
        mode(0o640);
        let Found::Wrong(open) = examine(file, true, me) else { panic!("an open file") };
        assert!(open.found.contains("mode 0640"), "{open:?}");
        assert_eq!(open.remedy, Some(format!("chmod 600 {file}")));
        assert!(matches!(examine(file, true, me + 1), Found::Usable), "ssh reads it");
        fs::write(&key, "ssh-ed25519 AAAA ann@work\n").unwrap();
        assert!(matches!(examine(file, true, me), Found::Usable), "a public key");
        let Found::Wrong(no_file) = examine(dir.path().to_str().unwrap(), true, me) else {
            panic!("a directory")
        };
        assert!(no_file.found.ends_with(": not a file"), "{no_file:?}");
    }
}
