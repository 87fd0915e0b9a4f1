//! Digests of whole files: by a command where the file is, or by reading it.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Access, Attr, DigestEffort, DigestKind, OpenFlags, OwnedFh, Remote, RemotePath, Result,
};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::job::Tree;
use crate::shell::{Running, Shell, command, plain_path, unescape};
use crate::task::{AbortOnDrop, blocking};

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Makes digests of a tree's files without transferring them.
#[async_trait]
pub trait Digester: Send + Sync + 'static {
    /// The digest of the regular file `path` of the remote; `None` if it cannot be made without
    /// reading the file.
    async fn digest(&self, path: &RemotePath) -> Option<Digest>;

    /// As [`Digester::digest`], of the first `len` bytes of the file.
    async fn digest_of_first(&self, path: &RemotePath, len: u64) -> Option<Digest>;
}

/// Bytes of one read, and reads in flight.
const READ_BYTES: u32 = 256 << 10;
const READS_AHEAD: u64 = 16;

/// The digest of `content`.
pub fn of_bytes(content: &[u8]) -> Digest {
    Sha256::digest(content).into()
}

/// Files that are read for their digests at once.
pub(crate) const READ_AT_ONCE: usize = 64;

/// The digest of a file of `tree`, by the cheapest method.
///
/// # Errors
/// When no command makes it, and the file cannot be read.
pub async fn of_file(tree: &Tree, path: &RemotePath) -> Result<Digest> {
    let attr = tree.remote.lstat(path).await?;
    of_known(tree, path, &attr, &Semaphore::new(1)).await
}

/// The digest of a file of `tree`, which has these attributes, by the cheapest method. `reading`
/// bounds the files that are read for it.
///
/// # Errors
/// When no command makes it, and the file cannot be read.
pub(crate) async fn of_known(
    tree: &Tree,
    path: &RemotePath,
    attr: &Attr,
    reading: &Semaphore,
) -> Result<Digest> {
    if tree.local.is_none() && tree.remote.may_exceed_sftp() {
        let attr = match attr.inode {
            Some(_) => *attr,
            // Those of a listing by another program have times of whole seconds.
            None => tree.remote.lstat(path).await?,
        };
        let effort = DigestEffort::Compute;
        let computed = tree.remote.digest(path, &attr, DigestKind::Sha256, effort).await;
        if let Ok(Some(computed)) = computed
            && let Ok(digest) = Digest::try_from(&computed[..])
        {
            return Ok(digest);
        }
    }
    if let Some(digester) = &tree.digester
        && let Some(digest) = digester.digest(path).await
    {
        return Ok(digest);
    }
    let _room = reading.acquire().await;
    by_reading(&tree.remote, path, u64::MAX).await
}

/// The digest of the first `len` bytes of a file of `tree`, if it can be made without transferring
/// them.
pub(crate) async fn of_first(tree: &Tree, path: &RemotePath, len: u64) -> Option<Digest> {
    match (&tree.digester, &tree.local) {
        (_, Some(_)) => by_reading(&tree.remote, path, len).await.ok(),
        (Some(digester), None) => digester.digest_of_first(path, len).await,
        (None, None) => None,
    }
}

/// Reads the file, up to `len` bytes.
async fn by_reading(remote: &Arc<dyn Remote>, path: &RemotePath, len: u64) -> Result<Digest> {
    let opened = remote.open(path, OpenFlags::existing(Access::Read)).await?;
    let file = OwnedFh::new(remote.clone(), opened.fh);
    let mut hasher = Sha256::new();
    let mut ahead = std::collections::VecDeque::new();
    let mut next = 0;
    let end = opened.attr.size.min(len);
    loop {
        while ahead.len() < READS_AHEAD as usize && (next == 0 || next < end) {
            let (remote, fh, offset) = (remote.clone(), file.fh(), next);
            let asked = (len - next).min(u64::from(READ_BYTES)) as u32;
            ahead.push_back(AbortOnDrop(tokio::spawn(async move {
                remote.read(fh, offset, asked).await
            })));
            next += u64::from(READ_BYTES);
        }
        let Some(read) = ahead.pop_front() else {
            break;
        };
        let data = read.join().await?;
        // Elsewhere, since a file of megabytes takes milliseconds.
        hasher = blocking(move || {
            data.pieces().iter().for_each(|piece| hasher.update(piece));
            hasher
        })
        .await;
    }
    Ok(hasher.finalize().into())
}

/// Files of one command, at most: those that were requested while the one before ran.
const BATCH_FILES: usize = 8192;

/// Files that wait for a command, at most.
const WAITING_FILES: usize = 2 * BATCH_FILES;

/// Limit of a command's answer, in bytes per file: digest, and name with escapes.
const ANSWER_BYTES: u64 = 128 + 2 * 4096;

type Wish = (Vec<u8>, oneshot::Sender<Option<Digest>>);

/// Digests by `sha256sum` at the server, many files with one command.
///
/// `None` for all files if the server does not have the command, or runs none.
pub struct ShellDigester {
    wishes: mpsc::Sender<Wish>,
    shell: Arc<dyn Shell>,
    root: Vec<u8>,
}

impl ShellDigester {
    /// For a remote whose root is the directory `root` of the server's shell: absolute, or relative
    /// to the directory where its commands start.
    ///
    /// Must be called within a tokio runtime.
    pub fn new(shell: Arc<dyn Shell>, root: Vec<u8>) -> ShellDigester {
        let (wishes, wished) = mpsc::channel(WAITING_FILES);
        tokio::spawn(serve(shell.clone(), root.clone(), wished));
        ShellDigester { wishes, shell, root }
    }
}

#[async_trait]
impl Digester for ShellDigester {
    async fn digest(&self, path: &RemotePath) -> Option<Digest> {
        let (answer, answered) = oneshot::channel();
        self.wishes.send((path.as_bytes().to_vec(), answer)).await.ok()?;
        answered.await.ok()?
    }

    async fn digest_of_first(&self, path: &RemotePath, len: u64) -> Option<Digest> {
        let script =
            format!("cd \"$1\" && head -c {len} < \"$2\" 2>/dev/null | sha256sum -b 2>/dev/null");
        let paths = [&self.root, path.as_bytes()].map(plain_path);
        let command = command(&script, &[&paths[0], &paths[1]])?;
        let answer = self.shell.output(&command, ANSWER_BYTES).await.ok()?;
        unhex(answer.get(..64)?)
    }
}

async fn serve(shell: Arc<dyn Shell>, root: Vec<u8>, mut wished: mpsc::Receiver<Wish>) {
    let mut batch = Vec::new();
    // All files that were requested while the last command ran go together.
    while wished.recv_many(&mut batch, BATCH_FILES).await > 0 {
        let paths: Vec<Vec<u8>> = batch.iter().map(|(path, _)| path.clone()).collect();
        let mut digests = match run(&*shell, &root, paths).await {
            Ok(digests) => digests,
            Err(why) => {
                tracing::debug!("no digests by a command: {why}");
                HashMap::new()
            }
        };
        for (path, answer) in batch.drain(..) {
            let _ = answer.send(digests.remove(&path));
        }
    }
}

/// Runs one command for all `paths`.
async fn run(
    shell: &dyn Shell,
    root: &[u8],
    paths: Vec<Vec<u8>>,
) -> std::result::Result<HashMap<Vec<u8>, Digest>, String> {
    // Why a file has no digest does not matter.
    let script = "cd \"$1\" && exec xargs -0 sha256sum -b 2>/dev/null";
    let command =
        command(script, &[&plain_path(root)]).ok_or("the directory's name has a newline")?;
    let Running { mut stdin, mut stdout, exit } =
        shell.start(&command).await.map_err(|error| error.to_string())?;
    let limit = paths.len() as u64 * ANSWER_BYTES;
    let feed = async move {
        for path in paths {
            stdin.write_all(&[b"./", &path[..], b"\0"].concat()).await?;
        }
        stdin.shutdown().await
    };
    let mut answer = Vec::new();
    let mut limited = (&mut stdout).take(limit);
    let (fed, read) = tokio::join!(feed, limited.read_to_end(&mut answer));
    read.map_err(|error| error.to_string())?;
    fed.map_err(|error| error.to_string())?;
    drop(exit);
    Ok(parse(&answer))
}

/// The digests that `sha256sum` has printed, by the path below `./`.
fn parse(answer: &[u8]) -> HashMap<Vec<u8>, Digest> {
    answer.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// A line: digest, space, another space or `*`, name. If the program shows the name with escapes,
/// the line begins with a backslash.
fn line(text: &[u8]) -> Option<(Vec<u8>, Digest)> {
    let escaped = text.strip_prefix(b"\\");
    let (digits, rest) = escaped.unwrap_or(text).split_at_checked(2 * size_of::<Digest>())?;
    let name = rest.strip_prefix(b"  ").or(rest.strip_prefix(b" *"))?;
    let name = if escaped.is_some() { unescape(name)? } else { name.to_vec() };
    Some((name.strip_prefix(b"./")?.to_vec(), unhex(digits)?))
}

/// The digest that hexadecimal digits stand for.
fn unhex(digits: &[u8]) -> Option<Digest> {
    let mut digest = Digest::default();
    hex::decode_to_slice(digits, &mut digest).ok()?;
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::ShellError;
    use crate::shell::tests::Here;
    use testkit::{MemRemote, path};

    #[tokio::test]
    async fn a_command_gives_the_digests_of_odd_names() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["plain", "two words", "li\nne", "back\\slash", "'quoted'", "-b", "d/ü"];
        std::fs::create_dir(dir.path().join("d")).unwrap();
        for name in names {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let root = dir.path().to_str().unwrap().as_bytes().to_vec();
        let shells: [Arc<dyn Shell>; 2] = [Arc::new(Here("Welcome\n")), Arc::new(Csh)];
        for shell in shells {
            assert_digests(&names, Arc::new(ShellDigester::new(shell, root.clone()))).await;
        }
    }

    /// Its redirections are others.
    struct Csh;

    #[async_trait]
    impl Shell for Csh {
        async fn start(&self, command: &[u8]) -> std::result::Result<Running, ShellError> {
            let command = base::shell::quote(command).unwrap();
            Here("").start(&[b"exec tcsh -f -c ", &command[..]].concat()).await
        }
    }

    /// The content of each file is its name.
    async fn assert_digests(names: &[&'static str], digester: Arc<ShellDigester>) {
        let mut asked = tokio::task::JoinSet::new();
        for &name in names {
            let digester = digester.clone();
            asked.spawn(async move { (name, digester.digest(&path(name)).await) });
        }
        while let Some(answer) = asked.join_next().await {
            let (name, digest) = answer.unwrap();
            assert_eq!(digest, Some(Sha256::digest(name).into()), "{name:?}");
        }
        assert_eq!(digester.digest(&path("absent")).await, None);
        for &name in names {
            let of_three = Sha256::digest(&name.as_bytes()[..name.len().min(3)]);
            let digest = digester.digest_of_first(&path(name), 3).await;
            // Not every login shell can be given a newline.
            let expected = (!name.contains('\n')).then(|| of_three.into());
            assert_eq!(digest, expected, "{name:?}");
        }
    }

    #[tokio::test]
    async fn reading_gives_the_digest_of_all_pieces() {
        let remote = Arc::new(MemRemote::new());
        for len in [0, 1, READ_BYTES as usize, 20 * READ_BYTES as usize + 7] {
            let content: Vec<u8> = (0..len).map(|at| (at / 251 + at) as u8).collect();
            remote.put_file("f", &content);
            let tree = Tree::remote(remote.clone());
            let digest = of_file(&tree, &path("f")).await.unwrap();
            assert_eq!(digest, Digest::from(Sha256::digest(&content)), "{len} bytes");
            let first = len / 2 + len.min(1);
            let digest = by_reading(&tree.remote, &path("f"), first as u64).await.unwrap();
            assert_eq!(digest, Digest::from(Sha256::digest(&content[..first])), "{len} bytes");
            assert_eq!(remote.open_handles(), 0);
        }
    }
}
