//! Programs that read a tree: their output on a mount must be that on the original.

use std::path::Path;
use std::process::Command;

use crate::failure::{Failure, Result};
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::step::StepContext;
use crate::workload::copying::Expected;
use crate::workload::{DIRECTORY, Step, measure, program, script};

use super::{DEADLINE_FACTOR, SOURCE};

/// A program that reads the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The names of all files.
    Find,
    /// Those of files of more than a KiB, so that each is looked at.
    FindSize,
    /// Names, sizes, times, owners.
    List,
    /// All that is in it.
    Archive,
    /// Lines with a word.
    Search,
}

/// `$1` archived, its bytes counted; GNU tar reads nothing when it writes to `/dev/null` itself.
/// The status is tar's, which a pipe would lose.
const ARCHIVE_SCRIPT: &str = r#"exec 3>&1
status=$({ { tar --hard-dereference -C "$1" -cf - .; echo $? >&4; } | wc -c >&3; } 4>&1)
exit "$status""#;

/// The digest of an archive of `$1` without what may differ between two copies of a tree.
const CANONICAL_SCRIPT: &str = r#"exec 3>&1
status=$({ { tar --hard-dereference --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 \
--numeric-owner --mode=0644 -C "$1" -cf - .; echo $? >&4; } | sha256sum >&3; } 4>&1)
exit "$status""#;

/// `grep` ends with 1 when no line matches.
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
            Question::Archive => archive(dir),
            Question::Search => script(SEARCH_SCRIPT, &[dir.as_os_str(), word.as_ref()]),
        }
    }

    /// Its id and title.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Question::Find => ("find", "names found, find -type f"),
            Question::FindSize => ("find_size", "sizes looked at, find -size +1k"),
            Question::List => ("ls", "listed, ls -lR"),
            Question::Archive => ("tar", "read, tar cf - | wc -c"),
            Question::Search => ("grep", "searched, grep -r"),
        }
    }
}

/// The step of a program that reads the tree; `word` is searched for.
pub(super) fn step(question: Question, cache: Cache, word: &'static str) -> Step {
    let state = if cache == Cache::Hot { "hot" } else { "cold" };
    let (id, title) = question.words();
    let (id, title) = (format!("{id}.{state}"), format!("tree {title}"));
    let measure = measure("tree", &id, &title, Unit::Seconds, cache);
    let step = Step::new(measure, DIRECTORY, move |context| look(context, question, word));
    step.with_deadline(DEADLINE_FACTOR)
}

fn look(context: &mut StepContext<'_>, question: Question, word: &str) -> Result<Measured> {
    let tree = context.directory()?.join(SOURCE);
    let original = context.corpus.join(SOURCE);
    let expected = Expected::load(context.corpus, SOURCE)?;
    let (output, measured) = context.timed(question.command(&tree, word))?;
    let answer = Answer { said: &output.stdout, of: &tree };
    let right = context.aside(question.command(&original, word))?;
    compare(question, &answer, &Answer { said: &right.stdout, of: &original })?;
    if question == Question::Archive {
        check_contents(context, &tree, &original)?;
    }
    Ok(expected.fill(measured))
}

/// Reads a tree with its contents: prints the length of its archive.
pub(in crate::workload) fn archive(tree: &Path) -> Command {
    script(ARCHIVE_SCRIPT, &[tree])
}

/// Compares all contents of a tree, as the subject shows it, with the original.
pub(in crate::workload) fn check_contents(
    context: &mut StepContext<'_>,
    tree: &Path,
    original: &Path,
) -> Result<()> {
    let shown = context.aside(script(CANONICAL_SCRIPT, &[tree]))?.stdout;
    if shown != context.aside(script(CANONICAL_SCRIPT, &[original]))?.stdout {
        return Err(Failure::wrong("the contents of the tree differ from the original"));
    }
    Ok(())
}

/// The output of a program on a tree.
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

fn compare(question: Question, answer: &Answer<'_>, right: &Answer<'_>) -> Result<()> {
    let (said, expected) = (answer.lines(question), right.lines(question));
    if said == expected {
        return Ok(());
    }
    let missing = expected.iter().filter(|line| said.binary_search(line).is_err());
    let added = said.iter().filter(|line| expected.binary_search(line).is_err());
    // Or a line is there more often, or less often, than it should be.
    let differ = said.iter().zip(&expected).find(|(one, other)| one != other);
    let first = missing.clone().next().or(added.clone().next()).or(differ.map(|it| it.0));
    Err(Failure::wrong(format!(
        "{}: {} lines are missing and {} should not be there; the first is {:?}",
        question.words().0,
        missing.count(),
        added.count(),
        String::from_utf8_lossy(first.or(said.last()).map_or(b"", |line| line))
    )))
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

#[cfg(test)]
mod tests;
