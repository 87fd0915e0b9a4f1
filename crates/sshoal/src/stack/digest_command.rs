//! A command at the host that computes digests of files, without a transfer (`digest_command`).
//!
//! It gets names of files as arguments, and prints a line for each as `sha256sum` does: the digest
//! in hexadecimal digits, a space, another or a `*`, and the name.
//!
//! A tree has hundreds of directories, each of which is asked for, and to connect costs more than
//! to hash what is in one. So a connection is kept, on which a shell reads a line for each
//! question: a directory, and names in it, as words of the shell. It ends each answer by a line
//! with a dot, which is no line of such a command. One that was given up in the middle is closed.
//!
//! Where little differs these lines are a good part of all that moves. So a directory is named
//! once, and the connection is compressed: digits take half of their room then.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::shell::{quote, word};
use base::{Attr, DigestKind, Errno, Mutex, RemotePath, Result};
use bytes::Bytes;
use cache::DigestSource;
use cli::{OrProblem, Problem, printable};
use ssh::{Diagnosis, Reader, Writer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use transfer::digest::lines;

use crate::connector::SshConnector;

/// Within this time the command has told all that it was asked for. It is asked for what takes a
/// server about a second to read and to hash; a slow disk takes ten times as long.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a question waits for those before it. Without an answer the files are fetched.
const TURN_LIMIT: Duration = Duration::from_secs(2);

/// Most bytes of an answer: some hundred lines with names as long as they can be.
const ANSWER_MAX_BYTES: usize = 4 << 20;

/// Questions under way at once, and connections that are kept for the next ones. More would only
/// have the host's disk seek.
const MAX_CONNECTIONS: usize = 2;

/// The last line of an answer.
const END: &[u8] = b"\n.\n";

/// See the [module](self).
pub(super) struct DigestCommand {
    kind: DigestKind,
    /// Runs the command at the host.
    gateway: ssh::Dialer,
    /// Connections that wait for a question.
    idle: Mutex<Vec<Shell>>,
    turns: Semaphore,
    /// That it does not work has been told.
    has_failed: AtomicBool,
}

/// A shell at the host that waits for names.
struct Shell {
    reader: Reader,
    writer: Writer,
    diagnosis: Diagnosis,
}

impl Shell {
    /// What the command says of the files in this line.
    async fn ask(&mut self, line: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let mut answer = vec![b'\n'];
        let (sent, received) = tokio::join!(
            async {
                self.writer.write_all(line).await?;
                self.writer.flush().await
            },
            read_answer(&mut self.reader, &mut answer)
        );
        match received.and(sent) {
            Ok(()) => Ok(answer),
            Err(error) => Err(self.diagnosis.summary().unwrap_or_else(|| error.to_string())),
        }
    }
}

/// Reads up to the line that ends an answer.
async fn read_answer(
    reader: &mut (impl AsyncRead + Unpin),
    answer: &mut Vec<u8>,
) -> std::io::Result<()> {
    while !answer.ends_with(END) {
        if answer.len() > ANSWER_MAX_BYTES {
            return Err(std::io::Error::other("its answer does not end"));
        }
        if reader.read_buf(answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

impl DigestCommand {
    /// One that runs `command` in `directory`.
    pub fn new(
        command: &OsStr,
        directory: &[u8],
        connector: &SshConnector,
    ) -> std::result::Result<DigestCommand, Problem> {
        let about = || Problem::new("option 'digest_command'", "it is not valid UTF-8");
        let text = command.to_str().ok_or_else(about)?;
        let kind = kind(text).ok_or_else(|| {
            let why = format!("which digest '{}' makes cannot be told", printable(command));
            Problem::new("option 'digest_command'", why)
                .hint("a command whose name has md5, sha1, sha256 or b3 in it, as sha256sum")
        })?;
        let directory = std::str::from_utf8(directory).map_err(|_| about())?;
        let script = script(text, directory).ok_or_else(|| {
            let why =
                "neither it nor the directory may have a newline: not every login shell takes one";
            Problem::new("option 'digest_command'", why)
        })?;
        let config = ssh::Config {
            sftp_server: Some(script),
            compression: true,
            ..connector.dialer.config().clone()
        };
        let gateway = ssh::Dialer::new(config, Arc::new(|_: &str| {}));
        Ok(DigestCommand {
            kind,
            gateway: gateway.or_problem("option 'digest_command'")?,
            idle: Mutex::default(),
            turns: Semaphore::new(MAX_CONNECTIONS),
            has_failed: AtomicBool::new(false),
        })
    }

    async fn ask(&self, line: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let kept = self.idle.lock().pop();
        let is_new = kept.is_none();
        let mut shell = match kept {
            Some(shell) => shell,
            None => self.connect().await?,
        };
        let mut answer = shell.ask(line).await;
        if answer.is_err() && !is_new {
            // It was lost while no request was in flight.
            shell = self.connect().await?;
            answer = shell.ask(line).await;
        }
        let answer = answer?;
        if answer.len() <= b"\n".len() + END.len() {
            // It has failed for all of them, or was not run. What such a shell says next is not
            // relied on.
            return Err("it has said nothing".to_owned());
        }
        self.idle.lock().push(shell);
        Ok(answer)
    }

    async fn connect(&self) -> std::result::Result<Shell, String> {
        let connected = self.gateway.connect_unasked().await;
        let connection = connected.map_err(|error| error.to_string())?;
        let ssh::Connection { reader, writer, diagnosis, .. } = connection;
        Ok(Shell { reader, writer, diagnosis })
    }
}

/// The directory that all of these are in, or the source's own where they are in several.
fn directory(paths: &[RemotePath]) -> RemotePath {
    let first = paths.first().and_then(RemotePath::parent).unwrap_or_default();
    match paths.iter().all(|path| path.parent().as_ref() == Some(&first)) {
        true => first,
        false => RemotePath::root(),
    }
}

/// A path as it is called in a directory that it is in.
fn name_in<'a>(directory: &RemotePath, path: &'a RemotePath) -> &'a [u8] {
    match directory.as_bytes().len() {
        0 => path.as_bytes(),
        len => &path.as_bytes()[len + 1..],
    }
}

/// A question: the directory and the names as words of the shell, which reads a line and no more.
/// So a path with a newline in it is left out; `None` if all are.
fn line(paths: &[RemotePath]) -> Option<Vec<u8>> {
    let directory = directory(paths);
    let name = |path: &RemotePath| match name_in(&directory, path) {
        // It would be taken for an option.
        name @ [b'-', ..] => word(&[b"./", name].concat()),
        name => word(name),
    };
    let mut words = vec![word(&[b"./", directory.as_bytes()].concat())?];
    words.extend(paths.iter().filter_map(name));
    let is_empty = words.len() == 1;
    (!is_empty).then(|| [&words.join(&b' ')[..], b"\n"].concat())
}

#[async_trait]
impl DigestSource for DigestCommand {
    fn kind(&self) -> DigestKind {
        self.kind
    }

    async fn digests(&self, files: &[(RemotePath, Attr)]) -> Result<Vec<Option<Bytes>>> {
        let paths: Vec<RemotePath> = files.iter().map(|(path, _)| path.clone()).collect();
        let Some(line) = line(&paths) else { return Ok(vec![None; paths.len()]) };
        // Who opens a file waits for this, and not for the questions of others as well.
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN_LIMIT, self.turns.acquire()).await else {
            return Ok(vec![None; paths.len()]);
        };
        let asked = tokio::time::timeout(LIMIT, self.ask(&line)).await;
        let answer = asked.unwrap_or_else(|_| Err(format!("no answer in {} s", LIMIT.as_secs())));
        match answer {
            Ok(answer) => Ok(parse(&answer, self.kind, &paths)),
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

/// What the host's shell runs, whichever it is: a shell of POSIX, which knows `read -r`.
fn script(command: &str, directory: &str) -> Option<String> {
    // An empty directory is the home, in which a login starts.
    let directory = if directory.is_empty() { "." } else { directory };
    let quoted = |text: &str| String::from_utf8(quote(text.as_bytes())?).ok();
    // That of a link may begin with a dash.
    let dashed = if directory.starts_with('/') { directory } else { &format!("./{directory}") };
    let asked = format!("{{ {command} \"$@\"; }} </dev/null 2>/dev/null");
    // Each question is asked where the directory is by then: it may be a link, and lead elsewhere.
    let there = "eval \"set -- $n\" && cd -- \"$1\" && shift";
    let asked = format!("( cd -- {} && {there} && {asked} )", quoted(dashed)?);
    let shell = format!("while IFS= read -r n; do {asked}; echo; echo .; done");
    Some(format!("exec env LC_ALL=C /bin/sh -c {}", quoted(&shell)?))
}

/// The digests of `paths` that the command has printed.
fn parse(answer: &[u8], kind: DigestKind, paths: &[RemotePath]) -> Vec<Option<Bytes>> {
    let len = match kind {
        DigestKind::Md5 => 16,
        DigestKind::Sha1 => 20,
        DigestKind::Sha256 | DigestKind::Blake3 => 32,
    };
    // A file whose name is shown with escapes has no digest.
    let digests: HashMap<Vec<u8>, Bytes> = lines::parse(answer, len)
        .filter(|line| !line.is_escaped)
        .map(|line| {
            (line.name.strip_prefix(b"./").unwrap_or(&line.name).to_vec(), line.digest.into())
        })
        .collect();
    let directory = directory(paths);
    paths.iter().map(|path| digests.get(name_in(&directory, path)).cloned()).collect()
}

/// Body of a fuzz target: any bytes as what a command has answered. A digest has the length of its
/// kind, and is that of a line which names its file.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) {
    let paths = ["dir/a", "dir/b c", "dir/-n"]
        .map(|path| RemotePath::parse(path.as_bytes()).expect("a path"));
    for (kind, len) in [(DigestKind::Md5, 16), (DigestKind::Sha256, 32)] {
        let digests = parse(data, kind, &paths);
        assert_eq!(digests.len(), paths.len());
        for (digest, path) in digests.iter().zip(&paths) {
            let Some(digest) = digest else { continue };
            assert_eq!(digest.len(), len);
            let hex = hex::encode(digest);
            let name = path.file_name().expect("a name");
            let names = |line: &[u8]| {
                line.to_ascii_lowercase().starts_with(hex.as_bytes())
                    && line.ends_with(name.as_bytes())
            };
            assert!(data.split(|byte| *byte == b'\n').any(names), "{hex}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[test]
    fn changed_answers_give_no_digest_of_another_file() {
        let md5 =
            "0cc175b9c0f1b6a831c399e269772661  ./b c\n900150983cd24fb0d6963f7d28e17f72 *./a\n";
        let sha = format!("{}  -n\n{}  ./a\n", "5f".repeat(32), "A0".repeat(32));
        let seeds = [md5.as_bytes(), sha.as_bytes()];
        testkit::mutated::each(&seeds, std::time::Duration::from_secs(1), fuzz);
    }

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

    /// Any name is one argument, and each question has its own answer, from where the directory is
    /// by then.
    #[tokio::test]
    async fn a_shell_answers_one_question_after_the_other() {
        use std::process::Stdio;
        let base = tempfile::tempdir().unwrap();
        let (dir, other) = (base.path().join("one; $(touch bad)"), base.path().join("other"));
        let source = base.path().join("-it's a 'link'");
        std::fs::create_dir(&dir).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&dir, &source).unwrap();
        std::fs::write(other.join("a"), "b").unwrap();
        let names = ["a", "b c", "it's", "$(touch bad)", "-n", "new\nline", "back\\slash", "last"];
        std::fs::create_dir_all(dir.join("sub dir/-x")).unwrap();
        for name in names.iter().chain(&["sub dir/-n", "sub dir/-x/a", "sub dir/~"]) {
            std::fs::write(dir.join(name), name).unwrap();
        }
        let mut shell = tokio::process::Command::new("/bin/sh")
            .args(["-c", &script("md5sum", source.to_str().unwrap()).unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut writer, mut reader) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let questions = [
            names[..3].to_vec(),
            names[3..].to_vec(),
            vec!["absent"],
            vec!["a"],
            vec!["a"],
            vec!["sub dir/-n", "sub dir/~"],
            vec!["sub dir/-x/a"],
            vec!["sub dir/~", "a"],
        ];
        let mut told = Vec::new();
        for (number, question) in questions.into_iter().enumerate() {
            if [4, 5].contains(&number) {
                std::fs::remove_file(&source).unwrap();
                let target = if number == 4 { &other } else { &dir };
                std::os::unix::fs::symlink(target, &source).unwrap();
            }
            let paths: Vec<RemotePath> = question.into_iter().map(path).collect();
            writer.write_all(&line(&paths).unwrap()).await.unwrap();
            let mut answer = vec![b'\n'];
            read_answer(&mut reader, &mut answer).await.unwrap();
            told.push(parse(&answer, DigestKind::Md5, &paths));
        }
        let known: Vec<Vec<bool>> =
            told.iter().map(|told| told.iter().map(Option::is_some).collect()).collect();
        assert_eq!(known[0], [true; 3]);
        // Of a name that is shown otherwise nothing is taken.
        assert_eq!(known[1], [true, true, false, false, true]);
        assert_eq!(known[2..5], [vec![false], vec![true], vec![true]]);
        // Of one directory, of another, and of several at once.
        assert_eq!(known[5..], [vec![true; 2], vec![true], vec![true; 2]]);
        let different: std::collections::HashSet<_> = told[5..].iter().flatten().collect();
        assert_eq!(different.len(), 4);
        assert_eq!(told[7][1], told[0][0]);
        assert_eq!(told[3][0], told[0][0]);
        assert_ne!(told[4][0], told[0][0]);
        assert!(!dir.join("bad").exists() && !other.join("bad").exists());
        drop(writer);
        assert!(shell.wait().await.unwrap().success());
    }

    /// The shell reads a line: what is behind a newline would be another question, or a command.
    #[test]
    fn a_question_is_one_line() {
        let inside = ["x\n$(touch bad) '/a", "x\n$(touch bad) '/b"].map(path);
        assert_eq!(line(&inside), None);
        assert_eq!(line(&["d/a\nb"].map(path)), None);
        let mixed = ["x\ny/a", "x/b", "c\nd", "e f"].map(path);
        assert_eq!(line(&mixed).unwrap(), b"./ x/b 'e f'\n");
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn the_name_of_a_command_tells_its_digest() {
        assert_eq!(kind("/usr/bin/sha256sum"), Some(DigestKind::Sha256));
        assert_eq!(kind("b3sum --no-mmap"), Some(DigestKind::Blake3));
        assert_eq!(kind("cksum"), None);
    }
}
