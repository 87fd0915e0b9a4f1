//! A command at the host that tells digests of files without moving them (`digest_command`).
//!
//! It gets names of files as arguments, and prints a line for each as `sha256sum` does: the digest
//! in hexadecimal digits, a space, another or a `*`, and the name. Names go to `xargs -0` over the
//! connection, so that neither their number nor what is in them matters to a shell.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::{DigestKind, Errno, RemotePath, Result};
use bytes::Bytes;
use cache::DigestSource;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connector::SshConnector;
use crate::report::{Problem, printable};

/// Within this time the command has told all that it was asked for. It is asked for what takes a
/// server about a second to read and to hash; a slow disk takes ten times as long.
const LIMIT: Duration = Duration::from_secs(30);

/// Most bytes of an answer: some hundred lines with names as long as they can be.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// See the [module](self).
pub(super) struct DigestCommand {
    kind: DigestKind,
    /// Each runs the command at one gateway.
    gateways: Vec<ssh::Dialer>,
    /// That it does not work has been told.
    has_failed: AtomicBool,
}

impl DigestCommand {
    /// One that runs `command` in `directory`.
    pub fn new(
        command: &OsStr,
        directory: &[u8],
        connectors: &[Arc<SshConnector>],
    ) -> std::result::Result<DigestCommand, Problem> {
        let about = || Problem::new("option 'digest_command'", "it is not valid UTF-8");
        let text = command.to_str().ok_or_else(about)?;
        let kind = kind(text).ok_or_else(|| {
            let why = format!("which digest '{}' makes cannot be told", printable(command));
            Problem::new("option 'digest_command'", why)
                .hint("a command whose name has md5, sha1, sha256 or b3 in it, as sha256sum")
        })?;
        let directory = std::str::from_utf8(directory).map_err(|_| about())?;
        let script = script(text, directory);
        let dialer = |connector: &Arc<SshConnector>| {
            let config =
                ssh::Config { sftp_server: Some(script.clone()), ..connector.config().clone() };
            ssh::Dialer::new(config, Arc::new(|_: &[u8]| {}))
                .map_err(|error| Problem::new("option 'digest_command'", error.to_string()))
        };
        let gateways = connectors.iter().map(dialer).collect::<std::result::Result<_, _>>()?;
        Ok(DigestCommand { kind, gateways, has_failed: AtomicBool::new(false) })
    }

    async fn ask(&self, paths: &[RemotePath]) -> std::result::Result<Vec<u8>, String> {
        let gateway = self.gateways.first().ok_or("there is no host")?;
        let connection = gateway.connect_unasked().await.map_err(|error| error.to_string())?;
        let (mut reader, mut writer) = connection.stream.into_split();
        let names: Vec<u8> =
            paths.iter().flat_map(|path| [b"./", path.as_bytes(), b"\0"].concat()).collect();
        let send = async {
            writer.write_all(&names).await?;
            writer.shutdown().await
        };
        let mut answer = Vec::new();
        let mut limited = (&mut reader).take(ANSWER_MAX_BYTES);
        let receive = limited.read_to_end(&mut answer);
        let (sent, received) = tokio::join!(send, receive);
        received.map_err(|error| error.to_string())?;
        if answer.is_empty() {
            // It has failed for all of them, or was not run.
            let said = connection.diagnosis.summary().or(sent.err().map(|error| error.to_string()));
            return Err(said.unwrap_or_else(|| "it has said nothing".to_owned()));
        }
        Ok(answer)
    }
}

#[async_trait]
impl DigestSource for DigestCommand {
    fn kind(&self) -> DigestKind {
        self.kind
    }

    async fn digests(&self, paths: &[RemotePath]) -> Result<Vec<Option<Bytes>>> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let asked = tokio::time::timeout(LIMIT, self.ask(paths)).await;
        let answer = asked.unwrap_or_else(|_| Err(format!("no answer in {} s", LIMIT.as_secs())));
        match answer {
            Ok(answer) => Ok(parse(&answer, self.kind, paths)),
            Err(why) => {
                if !self.has_failed.swap(true, Ordering::Relaxed) {
                    tracing::warn!("digest_command tells nothing: {}", printable(&why));
                }
                Err(Errno::EIO)
            }
        }
    }
}

/// The digest that a command makes, by its name.
fn kind(command: &str) -> Option<DigestKind> {
    let kinds = [
        ("sha256", DigestKind::Sha256),
        ("sha1", DigestKind::Sha1),
        ("md5", DigestKind::Md5),
        ("b3", DigestKind::Blake3),
        ("blake3", DigestKind::Blake3),
    ];
    kinds.iter().find(|(word, _)| command.contains(word)).map(|(_, kind)| *kind)
}

/// What the host's shell runs.
fn script(command: &str, directory: &str) -> String {
    // An empty directory is the home, in which a login starts.
    let directory = if directory.is_empty() { "." } else { directory };
    let quoted = directory.replace('\'', r"'\''");
    // That of a link may begin with a dash.
    let dashed = if quoted.starts_with('/') { quoted } else { format!("./{quoted}") };
    format!("cd '{dashed}' && exec xargs -0 {command} 2>/dev/null")
}

/// What lines of `sha256sum` tell of `paths`.
fn parse(answer: &[u8], kind: DigestKind, paths: &[RemotePath]) -> Vec<Option<Bytes>> {
    let len = match kind {
        DigestKind::Md5 => 16,
        DigestKind::Sha1 => 20,
        DigestKind::Sha256 | DigestKind::Blake3 => 32,
    };
    let mut told: HashMap<&[u8], Bytes> = HashMap::new();
    // A line that begins with a backslash has an escaped name, which is of none that is asked for
    // as it stands; so such a file has no digest.
    for line in answer.split(|byte| *byte == b'\n') {
        let Some((digits, rest)) = line.split_at_checked(2 * len) else { continue };
        let name = rest.strip_prefix(b"  ").or(rest.strip_prefix(b" *"));
        let name = name.and_then(|name| name.strip_prefix(b"./"));
        if let Some((digest, name)) = unhex(digits).zip(name) {
            told.insert(name, digest);
        }
    }
    paths.iter().map(|path| told.get(path.as_bytes()).cloned()).collect()
}

fn unhex(digits: &[u8]) -> Option<Bytes> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    digits.chunks_exact(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[test]
    fn lines_are_matched_by_name() {
        let paths = ["a", "b c", "gone", "odd\nname"].map(path);
        let answer = b"0cc175b9c0f1b6a831c399e269772661  ./b c\n\
            900150983cd24fb0d6963f7d28e17f72 *./a\n\
            \\900150983cd24fb0d6963f7d28e17f72  ./odd\\nname\n\
            xyz  ./gone\nshort\n";
        let told = parse(answer, DigestKind::Md5, &paths);
        let hex =
            |bytes: &Option<Bytes>| bytes.as_ref().map(|it| format!("{:02x}{:02x}", it[0], it[1]));
        assert_eq!(hex(&told[0]).as_deref(), Some("9001"));
        assert_eq!(hex(&told[1]).as_deref(), Some("0cc1"));
        assert_eq!(told[2..], [None, None]);
        assert_eq!(parse(answer, DigestKind::Sha256, &paths), [None, None, None, None]);
    }

    #[test]
    fn a_directory_is_no_option_and_ends_no_quotes() {
        assert_eq!(script("sha1sum", "/a b"), "cd '/a b' && exec xargs -0 sha1sum 2>/dev/null");
        assert!(script("x", "-e'; rm").starts_with(r"cd './-e'\''; rm' && "));
        assert!(script("x", "").starts_with("cd './.' && "));
    }

    #[test]
    fn the_name_of_a_command_tells_its_digest() {
        assert_eq!(kind("/usr/bin/sha256sum"), Some(DigestKind::Sha256));
        assert_eq!(kind("b3sum --no-mmap"), Some(DigestKind::Blake3));
        assert_eq!(kind("cksum"), None);
    }
}
