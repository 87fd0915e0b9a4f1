//! What a server's `find` reports of a tree and SFTP does not: entries that the server cannot
//! `lstat` and omits from its listings, and which names are of one file.
//!
//! OpenSSH's server lists the entries of a directory with what `lstat` returns, and omits those for
//! which it fails: the mount point of a FUSE file system that has died or belongs to another user,
//! a stale NFS handle, a bad inode. SFTP does not report that. A `find` at the server that calls
//! `lstat` on each entry does. So where there is a shell, one more command walks each source whose
//! directories are listed over SFTP, and each of its error messages is a problem of the run.
//!
//! `find` walks from directory to directory, and reaches entries whose path is longer than a server
//! can look at (`PATH_MAX`). It reports the first such entry of each branch.
//!
//! The command may fail: then nothing is known, and `deletion` queries each name.
//!
//! Where hard links are preserved, another command finds the files with several names. Without it
//! only a stream shows which names are of one file, and only if it carries all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Errno, RemotePath};

use crate::job::below;
use crate::outcome::Fault;
use crate::run::Core;
use crate::shell::{Shell, command, plain_path, unescape};
use crate::task::AbortOnDrop;

/// Bytes of the longest path that a server can look at, with the NUL at its end.
const PATH_MAX: usize = 4096;

/// Why an entry with a longer path is omitted.
const TOO_LONG: &str = "File name too long";

/// Limit of the answer, in bytes: some thousand messages.
const ANSWER_BYTES: u64 = 256 << 10;

/// Limit of the answer about files with several names, in bytes: some million names.
const LINKS_BYTES: u64 = 128 << 20;

/// Minimum wait for the command when the run has nothing else to do.
const SHORT_WAIT: Duration = Duration::from_secs(10);

/// Maximum wait for the command. Between the two the wait is as long as the run has taken.
const LONG_WAIT: Duration = Duration::from_secs(300);

/// An error message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The path in the remote; `None` if the message does not contain it.
    pub path: Option<RemotePath>,
    /// The reason, or the whole message.
    pub words: String,
}

/// The files with several names, by their paths in the remote: device and inode.
pub type Links = HashMap<RemotePath, (u64, u64)>;

/// Reports of a tree what SFTP does not.
#[async_trait]
pub trait Unseen: Send + Sync + 'static {
    /// The messages for entries below `top` that the server cannot `lstat`; `None` if nothing is
    /// known.
    async fn below(&self, top: &RemotePath) -> Option<Vec<Complaint>>;

    /// The files below `top` that have several names; `None` if nothing is known.
    async fn links(&self, _top: &RemotePath) -> Option<Links> {
        None
    }
}

/// Runs `find` at the server.
pub struct ShellFind {
    shell: Arc<dyn Shell>,
    root: Vec<u8>,
    one_file_system: bool,
    finds_links: bool,
}

impl ShellFind {
    /// For a remote whose root is the directory `root` of the server's shell: absolute, or relative
    /// to the directory where its commands start.
    pub fn new(shell: Arc<dyn Shell>, root: Vec<u8>, one_file_system: bool) -> ShellFind {
        ShellFind { shell, root, one_file_system, finds_links: true }
    }

    /// One that does not find which names are of one file: it may not see all that SFTP shows.
    pub fn without_links(self) -> ShellFind {
        ShellFind { finds_links: false, ..self }
    }

    async fn complaints(&self, top: &RemotePath) -> Result<Vec<Complaint>, String> {
        let (root, top) = (plain_path(&self.root), plain_path(top.as_bytes()));
        let stay = if self.one_file_system { "-xdev " } else { "" };
        // No size is below zero, but the test makes `find` call `lstat` on each entry. A path from
        // the root is as long as the one from here and that of this directory, but for the `.`.
        let script = format!(
            "cd -- \"$1\" || exit 3; LC_ALL=C; export LC_ALL; d=$(pwd -P); \
             l=$(printf \"%$(({PATH_MAX} + 1 - ${{#d}}))s*\" '' | tr ' ' '?'); \
             find \"$2\" {stay}-path \"$l\" -prune -exec printf \"find: '%s': {TOO_LONG}\\n\" {{}} \\; \
             -o -size -0c 2>&1 </dev/null; echo \"end $?\""
        );
        let command = command(&script, &[&root, &top]).ok_or("a name has a newline")?;
        let answer = self.shell.output(&command, ANSWER_BYTES).await;
        let answer = answer.map_err(|error| error.to_string())?;
        parse(&answer, &top).ok_or_else(|| String::from_utf8_lossy(&answer).into_owned())
    }

    async fn linked(&self, top: &RemotePath) -> Result<Links, String> {
        let (root, top) = (plain_path(&self.root), plain_path(top.as_bytes()));
        let stay = if self.one_file_system { "-xdev " } else { "" };
        // What `find` cannot look at, SFTP cannot copy either.
        let script = format!(
            "cd -- \"$1\" && [ \"$(find . -prune -printf x 2>/dev/null)\" = x ] || exit 3; \
             find \"$2\" {stay}-type f -links +1 -printf '%D %i %p\\0' 2>/dev/null </dev/null; \
             echo end"
        );
        let command = command(&script, &[&root, &top]).ok_or("a name has a newline")?;
        let answer = self.shell.output(&command, LINKS_BYTES).await;
        let answer = answer.map_err(|error| error.to_string())?;
        parse_links(&answer).ok_or_else(|| "there is no GNU find, or no end".to_owned())
    }
}

/// Parses the records of `find` for files with several names, and the word at the end.
fn parse_links(answer: &[u8]) -> Option<Links> {
    let mut records: Vec<&[u8]> = answer.split(|byte| *byte == 0).collect();
    if records.pop()? != b"end\n" {
        return None;
    }
    let link = |record: &[u8]| {
        let mut words = record.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let identity = (number()?, number()?);
        let path = words.next()?.strip_prefix(b"./")?;
        // Of the top, if that is the root of the remote.
        let path = path.strip_prefix(b"/").unwrap_or(path);
        Some((RemotePath::parse(path).ok()?, identity))
    };
    records.into_iter().map(link).collect()
}

#[async_trait]
impl Unseen for ShellFind {
    async fn below(&self, top: &RemotePath) -> Option<Vec<Complaint>> {
        match self.complaints(top).await {
            Ok(complaints) => Some(complaints),
            Err(why) => {
                tracing::debug!("what the server cannot look at is not known: {why}");
                None
            }
        }
    }

    async fn links(&self, top: &RemotePath) -> Option<Links> {
        if !self.finds_links {
            return None;
        }
        match tokio::time::timeout(LONG_WAIT, self.linked(top)).await {
            Ok(Ok(links)) => Some(links),
            failed => {
                tracing::debug!("which names are of one file is not known: {failed:?}");
                None
            }
        }
    }
}

/// Parses the lines of `find`, whose names begin with `top`, and its exit status; `None` if there
/// was no `find`, or it was cut off.
fn parse(answer: &[u8], top: &[u8]) -> Option<Vec<Complaint>> {
    let mut lines: Vec<&[u8]> = answer.split(|byte| *byte == b'\n').collect();
    // Behind the last newline is nothing, unless the answer was cut off.
    let is_whole = lines.pop()?.is_empty();
    let end = lines.pop_if(|line| is_whole && line.starts_with(b"end "));
    match end {
        Some(b"end 127" | b"end 126") => return None,
        None if is_whole => return None,
        _ => {}
    }
    Some(
        lines
            .into_iter()
            .filter(|line| !line.is_empty())
            .map(|line| complaint(line, top))
            .collect(),
    )
}

/// Parses one line: `find: 'NAME': REASON` of GNU find, with escapes in the name; others print no
/// quotes.
fn complaint(line: &[u8], top: &[u8]) -> Complaint {
    let told = || {
        let rest = line.strip_prefix(b"find: ")?;
        let colon = rest.windows(2).rposition(|it| it == b": ")?;
        let (name, reason) = (&rest[..colon], &rest[colon + 2..]);
        let quoted = name.strip_prefix(b"'").and_then(|name| name.strip_suffix(b"'"));
        let name = match quoted {
            Some(name) => unescape(name)?,
            None => name.to_vec(),
        };
        let path = if name == top { &b""[..] } else { name.strip_prefix(top)? };
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let top = RemotePath::parse(top.strip_prefix(b"./")?).ok()?;
        Some((below(&top, &RemotePath::parse(path).ok()?), reason.escape_ascii().to_string()))
    };
    match told() {
        Some((path, words)) => Complaint { path: Some(path), words },
        None => Complaint { path: None, words: line.escape_ascii().to_string() },
    }
}

/// Adds a problem for each entry that a source cannot `lstat`, if that is known and not reported
/// yet. `asked`: the queries in flight, by the number of the source.
pub(crate) async fn report(core: &Arc<Core>, asked: Vec<(usize, Asked)>) {
    let wait = core.elapsed().clamp(SHORT_WAIT, LONG_WAIT);
    for (source, asked) in asked {
        let answered = core.unless_stopped(tokio::time::timeout(wait, asked.join())).await;
        let Some(answered) = answered else { return };
        let Ok(Some(complaints)) = answered else {
            tracing::debug!("what source {source} cannot look at is not known");
            continue;
        };
        for complaint in complaints {
            if core.unless_stopped(note(core, source, complaint)).await.is_none() {
                return;
            }
        }
    }
}

/// The query of a source.
pub(crate) type Asked = AbortOnDrop<Option<Vec<Complaint>>>;

async fn note(core: &Core, source: usize, complaint: Complaint) {
    let Complaint { path, words } = complaint;
    let source = &core.job.sources[source];
    let Some(path) = path else {
        let words = format!("the server could not look at all of it: {words}");
        return core.problem(&Fault::Other { words }.of(&source.to));
    };
    let below_top = path.names().skip(source.tree.path.names().count());
    let mut name = source.to.clone();
    for last in below_top {
        if core.job.options.filter.excludes(&name, true) {
            return;
        }
        let Ok(last) = base::Name::new(last) else { return };
        name.push(&last);
    }
    let filter = &core.job.options.filter;
    if filter.excludes(&name, true) || filter.excludes(&name, false) || core.has_problem_at(&name) {
        return;
    }
    match source.tree.remote.lstat(&path).await {
        // It was listed, or is gone.
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
        Err(_) => {
            let words = format!("the server cannot look at it, and leaves it out: {words}");
            core.problem(&Fault::Other { words }.of(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::tests::Here;
    use testkit::path;

    #[tokio::test]
    async fn what_a_login_prints_is_no_complaint() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        let root = dir.path().to_str().unwrap().as_bytes().to_vec();
        let find = ShellFind::new(Arc::new(Here("Welcome\n")), root, false);
        assert_eq!(find.below(&RemotePath::root()).await, Some(Vec::new()));
        assert_eq!(find.links(&RemotePath::root()).await.unwrap().len(), 2);
    }

    #[test]
    fn complaints_are_read_whoever_writes_them() {
        let answer = b"find: './a/x': Transport endpoint is not connected\n\
            find: './a/odd\\n\\'name\\303\\244': Permission denied\n\
            find: ./a/b: c: Stale file handle\n\
            find: './a': Input/output error\n\
            find: File system loop detected\n\
            end 1\n";
        let found = parse(answer, b"./a").unwrap();
        let told: Vec<_> = found.iter().map(|it| (it.path.clone(), it.words.as_str())).collect();
        assert_eq!(
            told,
            [
                (Some(path("a/x")), "Transport endpoint is not connected"),
                (Some(path("a/odd\n'name\u{e4}")), "Permission denied"),
                (Some(path("a/b: c")), "Stale file handle"),
                (Some(path("a")), "Input/output error"),
                (None, "find: File system loop detected"),
            ]
        );
        let whole = parse(b"find: './x': Permission denied\nend 1\n", b"./").unwrap();
        assert_eq!(whole[0].path, Some(path("x")));
    }

    #[test]
    fn names_of_one_file_are_read_to_the_end() {
        let answer = b"64 7 ./a\x0064 7 ./d/b c\x0064 8 ./d/new\nline\0end\n";
        let wanted = [("a", (64, 7)), ("d/b c", (64, 7)), ("d/new\nline", (64, 8))];
        let wanted = wanted.map(|(name, identity)| (path(name), identity));
        assert_eq!(parse_links(answer), Some(HashMap::from(wanted)));
        assert_eq!(parse_links(b"end\n"), Some(HashMap::new()));
        for cut in [&b""[..], b"64 7 ./a", b"64 7 ./a\0", b"64 7 ./a\0end", b"nothing\0end\n"] {
            assert_eq!(parse_links(cut), None, "{}", cut.escape_ascii());
        }
    }

    #[test]
    fn without_a_find_nothing_is_known() {
        assert_eq!(parse(b"end 0\n", b"./a"), Some(Vec::new()));
        assert_eq!(parse(b"sh: find: not found\nend 127\n", b"./a"), None);
        assert_eq!(parse(b"", b"./a"), None);
        assert_eq!(parse(b"This account is not available.\n", b"./a"), None);
        // As much as is read of very many.
        assert_eq!(parse(b"find: ./a/x: bad\nfind: ./a", b"./a").unwrap().len(), 1);
    }
}
