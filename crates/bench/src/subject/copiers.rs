//! Programs that copy: scp, sftp, rsync, a tar at each end, this program, those of the user, and
//! `cat`, which is the floor. They cache nothing between two copies.
//!
//! Each is a script of `sh` that copies one file or tree. Its arguments are the options of ssh
//! (`-F FILE -o KEYWORD=VALUE …`), one word each. Its variables:
//!
//! | variable | what it has |
//! |---|---|
//! | `FROM`, `TO` | source and target; that of the server is `HOST:PATH`. A source that is a directory has a slash behind it: its contents are to become the target |
//! | `DIRECTION` | `pull` or `push` |
//! | `LOCAL`, `REMOTE` | the absolute paths here and on the server |
//! | `SLASH` | `/` for a directory, else empty |
//! | `HOST` | the server as ssh knows it, with the options of ssh |
//! | `OPTIONS` | the options of ssh as one word, quoted for a shell |
//! | `RSYNC_RSH` | ssh and its options, as rsync has it |
//! | `ADDRESS`, `PORT`, `LOGIN` | the server for a program that does not use ssh's configuration |
//!
//! The scripts of this module have a few more: see [`CopySession::copy`].

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::quoting::{double, joined, no_pattern, rsync_word, shell_quoted};
use crate::results::Wire;
use crate::server::{Endpoint, Server, wire_of};
use crate::step::ServerMeter;
use crate::subject::{Access, Copier, Direction, Session};

use super::daemons::{self, Daemon, END_LIMIT, StartDaemon};
use super::programs::{self, Program};

/// A program that copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copying {
    pub(super) script: &'static str,
    /// For the script: words of the program.
    flags: &'static str,
    /// Programs that must be installed on this machine, that of the subject first.
    pub(super) programs: &'static [&'static Program],
    ssh: &'static str,
    /// It takes options of ssh, and another ssh.
    pub(super) takes_options: bool,
    pub(super) takes_ssh: bool,
    /// It copies files only.
    is_stream: bool,
    /// It shows what ssh itself does.
    pub(super) is_floor: bool,
    /// It uses two links to the server at once.
    pub(super) has_two_links: bool,
    /// It copies by a protocol of its own, from and to a daemon beside the server.
    pub(super) daemon: Option<StartDaemon>,
}

/// A program that copies over ssh.
const fn over_ssh(
    script: &'static str,
    flags: &'static str,
    programs: &'static [&'static Program],
) -> Copying {
    Copying {
        script,
        flags,
        programs,
        ssh: "ssh",
        takes_options: true,
        takes_ssh: true,
        is_stream: false,
        is_floor: false,
        has_two_links: false,
        daemon: None,
    }
}

/// A program that copies without ssh.
const fn by_daemon(
    script: &'static str,
    programs: &'static [&'static Program],
    start: StartDaemon,
) -> Copying {
    let copying = over_ssh(script, "", programs);
    Copying { takes_options: false, takes_ssh: false, daemon: Some(start), ..copying }
}

const SCP_SCRIPT: &str = r#"case $DIRECTION in
pull) exec $FLAGS -r ${SSH_COMMAND:+-S "$SSH_COMMAND"} "$@" "$HOST:$PATTERN" "$LOCAL" ;;
*) exec $FLAGS -r ${SSH_COMMAND:+-S "$SSH_COMMAND"} "$@" "$LOCAL${SLASH:+/.}" "$HOST:$REMOTE" ;;
esac"#;

const SFTP_SCRIPT: &str = r#"case $DIRECTION in
pull) order="get -r $REMOTE_QUOTED $LOCAL_QUOTED" ;;
*) order="put -r $LOCAL_QUOTED${SLASH:+/.} $REMOTE_QUOTED" ;;
esac
printf '%s\n' "$order" | exec sftp -b - ${SSH_COMMAND:+-S "$SSH_COMMAND"} "$@" "$HOST""#;

/// `-s`: the server's shell does not expand names.
const RSYNC_SCRIPT: &str = r#"exec rsync -a -s $FLAGS "$FROM" "$TO""#;

/// In a POSIX shell the status of a pipe's left side is lost; it leaves a file when it fails. A
/// name may begin with `-`, so it follows `--`; that of the member has no effect on standard
/// output.
const TAR_SCRIPT: &str = r#"case $DIRECTION$SLASH in
pull/) mkdir -p "$LOCAL" && { "$SSH" "$@" "$HOST" "tar -C $SHELL_QUOTED -cf - ." || : >"$FAILED"; } |
    tar -C "$LOCAL" -xf - ;;
pull) { "$SSH" "$@" "$HOST" "tar -P -cf - -- $SHELL_QUOTED" || : >"$FAILED"; } |
    tar -xOf - >"$LOCAL" ;;
push/) { tar -C "$LOCAL" -cf - . || : >"$FAILED"; } |
    "$SSH" "$@" "$HOST" "mkdir -p $SHELL_QUOTED && tar -C $SHELL_QUOTED -xf -" ;;
*) { tar -C "${LOCAL%/*}/" -cf - -- "${LOCAL##*/}" || : >"$FAILED"; } |
    "$SSH" "$@" "$HOST" "tar -xOf - >$SHELL_QUOTED" ;;
esac && [ ! -e "$FAILED" ]"#;

const CAT_SCRIPT: &str = r#"case $DIRECTION in
pull) exec "$SSH" "$@" "$HOST" "exec cat $SHELL_QUOTED" >"$LOCAL" ;;
*) exec "$SSH" "$@" "$HOST" "exec cat >$SHELL_QUOTED" <"$LOCAL" ;;
esac"#;

const OWN_SCRIPT: &str = r#"exec "$SSHOAL" "$DIRECTION" -q -o helper=no $FLAGS "$@" \
    ${SSH_COMMAND:+-o "ssh_command=$SSH_COMMAND"} -- "$FROM" "$TO""#;

/// ssh only starts it at the other end, by the option for that end.
const BBCP_SCRIPT: &str = r#"start="ssh -x -a $OPTIONS $HOST bbcp"
case $DIRECTION in
pull) exec bbcp -S "$start" "$LOGIN@$ADDRESS:$REMOTE" "$LOCAL" ;;
*) exec bbcp -T "$start" "$LOCAL" "$LOGIN@$ADDRESS:$REMOTE" ;;
esac"#;

const RSYNCD_SCRIPT: &str = r#"server="rsync://bench@127.0.0.1:$PORT/bench/$NAME$SLASH"
case $DIRECTION in
pull) exec rsync -a -s "$server" "$LOCAL" ;;
*) exec rsync -a -s "$LOCAL$SLASH" "$server" ;;
esac"#;

/// Nothing of the user's own configuration and history. The password is in no argument.
const LFTP_SCRIPT: &str = r#"case $DIRECTION$SLASH in
pull/) order="mirror --no-perms $NAME_QUOTED $LOCAL_QUOTED" ;;
pull) order="get $NAME_QUOTED -o $LOCAL_QUOTED" ;;
push/) order="mirror -R --no-perms $LOCAL_QUOTED $NAME_QUOTED" ;;
*) order="put $LOCAL_QUOTED -o $NAME_QUOTED" ;;
esac
printf '%s\n' 'set cmd:fail-exit yes' 'set net:max-retries 1' 'set xfer:log no' \
    'set ftp:ssl-allow no' "open -u anonymous,$PASSWORD ftp://127.0.0.1:$PORT" "$order" |
    exec lftp --norc"#;

pub(super) const SCP: Copying = over_ssh(SCP_SCRIPT, "scp", &[&programs::SCP, &programs::SSH]);
/// The scp of HPN-SSH, which uses its ssh.
pub(super) const HPN: Copying = Copying {
    ssh: programs::HPNSSH.name,
    takes_ssh: false,
    ..over_ssh(SCP_SCRIPT, "hpnscp", &[&programs::HPNSCP, &programs::HPNSSH])
};
pub(super) const SFTP: Copying = over_ssh(SFTP_SCRIPT, "", &[&programs::SFTP, &programs::SSH]);
pub(super) const RSYNC: Copying = over_ssh(RSYNC_SCRIPT, "", &[&programs::RSYNC, &programs::SSH]);
/// rsync without its comparison of blocks.
pub(super) const RSYNC_WHOLE: Copying = Copying { flags: "-W", ..RSYNC };
pub(super) const TAR: Copying = over_ssh(TAR_SCRIPT, "", &[&programs::TAR, &programs::SSH]);
/// `sshoal pull` and `sshoal push`, with their own choices or given ones.
pub(super) const OWN: Copying = over_ssh(OWN_SCRIPT, "", &[&programs::SSH]);
pub(super) const OWN_TAR: Copying = Copying { flags: "--engine tar", ..OWN };
pub(super) const OWN_SFTP: Copying = Copying { flags: "--engine sftp", ..OWN };
pub(super) const OWN_PLAIN: Copying = Copying { flags: "--compress never", ..OWN };
pub(super) const OWN_TWO: Copying = Copying { has_two_links: true, ..OWN };
/// bbcp, which copies files by connections of its own.
pub(super) const BBCP: Copying = Copying {
    is_stream: true,
    takes_options: false,
    takes_ssh: false,
    ..over_ssh(BBCP_SCRIPT, "", &[&programs::BBCP, &programs::SSH])
};
/// `ssh HOST cat`: files only, as streams.
pub(super) const CAT: Copying = Copying {
    is_stream: true,
    is_floor: true,
    takes_options: false,
    takes_ssh: false,
    ..over_ssh(CAT_SCRIPT, "", &[&programs::SSH])
};
pub(super) const RSYNCD: Copying = by_daemon(RSYNCD_SCRIPT, &[&programs::RSYNC], daemons::rsyncd);
pub(super) const FTP: Copying =
    by_daemon(LFTP_SCRIPT, &[&programs::VSFTPD, &programs::LFTP], daemons::ftp);
/// By a script that the user has given.
pub(super) const GIVEN: Copying = over_ssh("", "", &[&programs::SSH]);

/// A program that copies, and its route to the server.
pub(super) struct CopySession {
    pub(super) copying: Copying,
    pub(super) script: String,
    pub(super) server: Arc<Server>,
    pub(super) cipher: Option<String>,
    /// A program in place of `ssh`.
    pub(super) ssh_command: Option<PathBuf>,
    /// `Keyword=value` of ssh, for the subject.
    pub(super) ssh_option: Option<String>,
    /// For a script that uses it.
    pub(super) endpoint: Endpoint,
    pub(super) daemon: Option<Daemon>,
    /// This program.
    pub(super) sshoal: PathBuf,
    pub(super) scratch: PathBuf,
}

impl Session for CopySession {
    fn access(&self) -> Access<'_> {
        if self.copying.is_stream { Access::Stream(self) } else { Access::Copier(self) }
    }

    fn server_pids(&self) -> Vec<u32> {
        self.daemon.iter().flat_map(|daemon| daemon.process.running_pid()).collect()
    }

    fn wire(&self, server: &dyn ServerMeter) -> Option<Wire> {
        match &self.daemon {
            Some(daemon) => wire_of(daemon.links.iter().flatten()),
            None => server.wire(),
        }
    }

    fn abandon(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.process.stop(END_LIMIT);
        }
    }
}

impl Copier for CopySession {
    fn copy(&self, direction: Direction, is_tree: bool, storage: &Path, local: &Path) -> Command {
        let remote = self.server.storage().root().join(storage);
        let slash = if is_tree { "/" } else { "" };
        let second = self.server.second_destination().filter(|_| self.copying.has_two_links);
        let second = second.map_or(String::new(), |it| format!(",{it}"));
        let host = self.server.destination();
        let server = joined(&[host.as_ref(), second.as_ref(), ":".as_ref(), remote.as_ref()]);
        let [from, to] = direction.sorted(server, local.into());
        let verb = if direction == Direction::Out { "pull" } else { "push" };
        let ssh = self.ssh_command.as_ref().map_or(self.copying.ssh.as_ref(), |it| it.as_os_str());
        let options = self.options();
        let words = |quoted: fn(&OsStr) -> OsString, words: &[OsString]| {
            words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(OsStr::new(" "))
        };
        let Endpoint { address, port, user, .. } = &self.endpoint;

        let mut command = Command::new("sh");
        command.args(["-c", &self.script, "copy"]).args(&options);
        command.env("FROM", joined(&[&from, slash.as_ref()])).env("TO", to);
        command.env("DIRECTION", verb).env("SLASH", slash).env("HOST", host);
        command.env("LOCAL", local).env("REMOTE", &remote).env("NAME", storage);
        command.env("ADDRESS", address).env("PORT", port.to_string()).env("LOGIN", user);
        command.env("OPTIONS", words(shell_quoted, &options));
        let shell = [&[ssh.to_owned()], &options[..]].concat();
        command.env("RSYNC_RSH", words(rsync_word, &shell));
        // For the scripts of this module: paths in the language of each program.
        command.env("SHELL_QUOTED", shell_quoted(remote.as_ref()));
        command.env("PATTERN", no_pattern(remote.as_ref()));
        command.env("LOCAL_QUOTED", double(local.as_ref()));
        command.env("REMOTE_QUOTED", double(remote.as_ref()));
        command.env("NAME_QUOTED", double(storage.as_ref()));
        command.env("FLAGS", self.copying.flags).env("SSHOAL", &self.sshoal).env("SSH", ssh);
        command.env("FAILED", self.scratch.join("failed"));
        command.env("LFTP_HOME", self.scratch.join("lftp"));
        command.envs(self.ssh_command.iter().map(|ssh| ("SSH_COMMAND", ssh)));
        command.envs(self.daemon.iter().flat_map(|daemon| daemon.variables.clone()));
        command
    }
}

impl CopySession {
    /// Options of ssh, scp and sftp.
    fn options(&self) -> Vec<OsString> {
        let mut options = self.server.ssh_options(self.cipher.as_deref());
        options.extend(self.ssh_option.iter().flat_map(|it| ["-o".into(), it.into()]));
        options
    }

    /// An ssh to the server, without what it is to do.
    pub(super) fn login(&self) -> Command {
        let ssh = self.ssh_command.clone().unwrap_or_else(|| self.copying.ssh.into());
        let mut command = Command::new(ssh);
        command.args(self.options()).arg(self.server.destination());
        command
    }
}
