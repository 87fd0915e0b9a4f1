//! Programs that read a tree: what they say of it through a mount has to be what they say of the
//! original.

use std::path::Path;
use std::process::Command;

use crate::failure::Failure;
use crate::measure::{Cache, Measure};
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::script::{program, script};

use super::expected::Expected;
use super::{DEADLINE_FACTOR, EXPECTED, SOURCE, measure, shown};

/// A program that reads the tree.
pub(super) struct Look {
    pub(super) question: Question,
    pub(super) cache: Cache,
    /// That is searched for.
    pub(super) word: &'static str,
}

/// What it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The names of all files.
    Find,
    /// Those of files of more than a KiB, so that each is looked at.
    FindSize,
    /// Names, sizes, times, owners.
    List,
    /// The sum of sizes.
    Usage,
    /// All that is in it.
    Archive,
    /// Lines with a word.
    Search,
}

/// `$1` archived, its bytes counted; GNU tar reads nothing when it writes to `/dev/null` itself.
/// The status is tar's, which a pipe would lose.
pub(in crate::work) const ARCHIVE_SCRIPT: &str = r#"exec 3>&1
status=$({ { tar --hard-dereference -C "$1" -cf - .; echo $? >&4; } | wc -c >&3; } 4>&1)
exit "$status""#;

/// The same with all left out that may differ between two copies of a tree, and with the digest of
/// that.
pub(in crate::work) const CANONICAL_SCRIPT: &str = r#"exec 3>&1
status=$({ { tar --hard-dereference --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 \
--numeric-owner --mode=0644 -C "$1" -cf - .; echo $? >&4; } | sha256sum >&3; } 4>&1)
exit "$status""#;

/// `grep` says by 1 that there is no such line.
const SEARCH_SCRIPT: &str = r#"grep -r -e "$2" "$1" || [ $? -eq 1 ]"#;

impl Question {
    fn command(self, dir: &Path, word: &str) -> Command {
        let with = |name: &str, before: &[&str], after: &[&str]| {
            let mut command = program(name);
            command.args(before).arg(dir).args(after);
            command
        };
        match self {
            Question::Find => with("find", &[], &["-type", "f"]),
            Question::FindSize => with("find", &[], &["-size", "+1k"]),
            Question::List => with("ls", &["-lR"], &[]),
            Question::Usage => with("du", &["-s", "-b", "-l"], &[]),
            Question::Archive => script(ARCHIVE_SCRIPT, &[dir]),
            Question::Search => script(SEARCH_SCRIPT, &[dir.as_os_str(), word.as_ref()]),
        }
    }

    fn id(self) -> &'static str {
        match self {
            Question::Find => "find",
            Question::FindSize => "find_size",
            Question::List => "ls",
            Question::Usage => "du",
            Question::Archive => "tar",
            Question::Search => "grep",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Question::Find => "names found, find -type f",
            Question::FindSize => "sizes looked at, find -size +1k",
            Question::List => "listed, ls -lR",
            Question::Usage => "sizes summed up, du -s",
            Question::Archive => "read, tar cf - | wc -c",
            Question::Search => "searched, grep -r",
        }
    }
}

impl Step for Look {
    fn measure(&self) -> Measure {
        measure(self.question.id(), &format!("tree {}", self.question.title()), self.cache)
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        matches!(access, Access::Directory(_))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let Access::Directory(dir) = context.access() else {
            return Err(Failure::failed("it has no directory to look at"));
        };
        let tree = shown(dir);
        let original = context.corpus.join(SOURCE);
        let expected = Expected::load(&context.corpus.join(EXPECTED))?;
        let (output, mut measured) = context.timed(self.question.command(&tree, self.word))?;
        let answer = Answer { said: &output.stdout, of: &tree };
        if self.question == Question::Usage {
            check_usage(&answer, &original, context)?;
        } else {
            let right = context.aside(self.question.command(&original, self.word))?;
            let right = Answer { said: &right.stdout, of: &original };
            compare(self.question, &answer, &right)?;
        }
        if self.question == Question::Archive {
            let shown = context.aside(script(CANONICAL_SCRIPT, &[&tree]))?.stdout;
            if shown != context.aside(script(CANONICAL_SCRIPT, &[&original]))?.stdout {
                return Err(Failure::wrong("the tree is shown with other contents than it has"));
            }
        }
        expected.fill(&mut measured);
        Ok(measured)
    }
}

/// What a program said of a tree.
struct Answer<'a> {
    said: &'a [u8],
    of: &'a Path,
}

impl Answer<'_> {
    /// Its lines with the tree's own path left out, and what may differ between two copies; in
    /// the order of bytes, since directories have no order.
    fn lines(&self, question: Question) -> Vec<Vec<u8>> {
        let own = self.of.as_os_str().as_encoded_bytes();
        let mut lines: Vec<Vec<u8>> = self
            .said
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .filter_map(|line| {
                let line = without(line, own);
                match question {
                    Question::List => entry_of_list(&line),
                    _ => Some(line),
                }
            })
            .collect();
        lines.sort_unstable();
        lines
    }
}

fn compare(question: Question, answer: &Answer<'_>, right: &Answer<'_>) -> Result<(), Failure> {
    let (said, expected) = (answer.lines(question), right.lines(question));
    let missing = expected.iter().filter(|line| said.binary_search(line).is_err());
    let added = said.iter().filter(|line| expected.binary_search(line).is_err());
    let first = missing.clone().next().or(added.clone().next());
    let Some(first) = first.or_else(|| repeated(&said, &expected)) else {
        return Ok(());
    };
    Err(Failure::wrong(format!(
        "{}: {} lines are missing and {} should not be there; the first is {:?}",
        question.id(),
        missing.count(),
        added.count(),
        String::from_utf8_lossy(first)
    )))
}

/// A line that is there more often, or less often, than it should be.
fn repeated<'a>(said: &'a [Vec<u8>], expected: &'a [Vec<u8>]) -> Option<&'a Vec<u8>> {
    let differ = said.iter().zip(expected).find(|(one, other)| one != other);
    differ.map(|(one, _)| one).or_else(|| match said.len() > expected.len() {
        true => said.last(),
        false => expected.get(said.len()),
    })
}

/// The line without the first occurrence of `part`.
fn without(line: &[u8], part: &[u8]) -> Vec<u8> {
    match line.windows(part.len()).position(|window| window == part) {
        Some(at) => [&line[..at], &line[at + part.len()..]].concat(),
        None => line.to_vec(),
    }
}

/// A line of `ls -lR`: kind, size of a file, and name. A heading stays; sums of blocks go, since
/// they belong to the file system.
fn entry_of_list(line: &[u8]) -> Option<Vec<u8>> {
    if line.starts_with(b"total ") {
        return None;
    }
    if line.ends_with(b":") && (line == b":" || line.starts_with(b"/")) {
        return Some(line.to_vec());
    }
    let mut rest = line;
    let mut size: &[u8] = b"-";
    for field in 0..8 {
        let end = rest.iter().position(|&byte| byte == b' ')?;
        if field == 4 && line.starts_with(b"-") {
            size = &rest[..end];
        }
        rest = rest[end..].trim_ascii_start();
    }
    Some([&line[..1], b" ", size, b" ", rest].concat())
}

/// What `du` says is no less than what the files have. Directories count too, with what size their
/// file system likes; so the sizes of all else are looked at one by one.
fn check_usage(
    answer: &Answer<'_>,
    original: &Path,
    context: &mut StepContext<'_>,
) -> Result<(), Failure> {
    let sizes = |dir: &Path| {
        let mut command = program("find");
        command.arg(dir).args(["-not", "-type", "d", "-printf", r"%P %s\n"]);
        command
    };
    let shown = context.aside(sizes(answer.of))?.stdout;
    let right = context.aside(sizes(original))?.stdout;
    let shown = Answer { said: &shown, of: answer.of };
    compare(Question::Usage, &shown, &Answer { said: &right, of: original })?;
    let least = Expected::load(&context.corpus.join(EXPECTED))?.kept.bytes;
    let text = String::from_utf8_lossy(answer.said);
    let said: Option<u64> = text.split_whitespace().next().and_then(|sum| sum.parse().ok());
    match said {
        Some(sum) if sum >= least => Ok(()),
        _ => Err(Failure::wrong(format!("du: the files have {least} bytes; it says {text:?}"))),
    }
}

#[cfg(test)]
mod tests;
