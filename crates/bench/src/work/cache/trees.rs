//! The tree of small files: read, looked at, and its digests asked for.

use std::fs;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::measure::{Cache as State, Measure, Unit};
use crate::results::{Measured, SubjectInfo};
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::script::script;
use crate::work::tree::DEADLINE_FACTOR;
use crate::work::tree::expected::Expected;
use crate::work::tree::look::{ARCHIVE_SCRIPT, CANONICAL_SCRIPT};

use super::{DIGESTS, FIRST, SECOND, expected, measure};

/// A tree read as an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// For the first time.
    First,
    /// Again, mounted anew.
    Remounted,
    /// Once more.
    Again,
    /// The other one, of which most was read as the first.
    Revision,
}

impl Read {
    fn tree(self) -> &'static str {
        match self {
            Read::First | Read::Remounted | Read::Again => FIRST,
            Read::Revision => SECOND,
        }
    }
}

/// Where the subject shows a path of the place.
fn shown(context: &StepContext<'_>, path: &str) -> Result<PathBuf, Failure> {
    match context.access() {
        Access::Directory(dir) => Ok(dir.join(path)),
        _ => Err(Failure::failed("it has no directory to read")),
    }
}

impl Step for Read {
    fn measure(&self) -> Measure {
        let (id, title, cache) = match self {
            Read::First => ("first", "tree read for the first time", State::Cold),
            Read::Remounted => ("remounted", "tree read again, mounted anew", State::Cold),
            Read::Again => ("again", "tree read once more", State::Hot),
            Read::Revision => ("revision", "tree with 1 % changed read, mounted anew", State::Cold),
        };
        measure(id, &format!("{title}, tar cf - | wc -c"), Unit::Seconds, cache)
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        matches!(access, Access::Directory(_))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let tree = shown(context, self.tree())?;
        let original = context.corpus.join(self.tree());
        let expected = Expected::load(&context.corpus.join(expected(self.tree())))?;
        let (_, mut measured) = context.timed(script(ARCHIVE_SCRIPT, &[&tree]))?;
        let is = context.aside(script(CANONICAL_SCRIPT, &[&tree]))?.stdout;
        if is != context.aside(script(CANONICAL_SCRIPT, &[&original]))?.stdout {
            return Err(Failure::wrong("the tree is shown with other contents than it has"));
        }
        expected.fill(&mut measured);
        Ok(measured)
    }
}

/// Each file looked at by `stat`: what [`Digests`] is to be compared with.
pub(super) struct Stat;

/// Each file below `$1`, in the order of names.
const STAT_SCRIPT: &str = r#"cd -- "$1" && find . -type f -print0 | sort -z |
xargs -0 stat -c %s -- | wc -l"#;

impl Step for Stat {
    fn measure(&self) -> Measure {
        measure("stat", "stat of each file of the tree", Unit::Seconds, State::Hot)
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        matches!(access, Access::Directory(_))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let tree = shown(context, FIRST)?;
        let files = Expected::load(&context.corpus.join(expected(FIRST)))?.kept.files;
        let (output, measured) = context.timed(script(STAT_SCRIPT, &[&tree]))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if text.trim().parse() != Ok(files) {
            return Err(Failure::wrong(format!("{files} files, and {text:?} were looked at")));
        }
        Ok(Measured { value: measured.seconds, operations: files, verified: true, ..measured })
    }
}

/// The digest of each file asked for by its extended attribute.
pub(super) struct Digests;

/// The same for digests, one behind the other.
const ATTRIBUTE_SCRIPT: &str = r#"cd -- "$1" && find . -type f -print0 | sort -z |
xargs -0 getfattr --only-values -n user.sha256 --"#;

/// Digits of a SHA-256.
const DIGITS: u64 = 64;

impl Step for Digests {
    fn measure(&self) -> Measure {
        let title = "digest of each file of the tree, getfattr -n user.sha256";
        measure("digests", title, Unit::Seconds, State::Hot)
    }

    fn concerns(&self, subject: &SubjectInfo) -> bool {
        // Nobody else has them.
        subject.name.starts_with("sshoal:") && subject.name.contains("cache=disk")
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        matches!(access, Access::Directory(_))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let tree = shown(context, FIRST)?;
        // They are made when nobody reads, or by the first who asks.
        context.aside(script(ATTRIBUTE_SCRIPT, &[&tree]))?;
        let (output, measured) = context.timed(script(ATTRIBUTE_SCRIPT, &[&tree]))?;
        let right = fs::read(context.corpus.join(DIGESTS))?;
        let told = output.stdout.trim_ascii();
        if told.len() < right.len() {
            return Err(Failure::failed("not all files have a digest"));
        }
        if told != right {
            return Err(Failure::wrong("a file has the digest of another content"));
        }
        let operations = right.len() as u64 / DIGITS;
        Ok(Measured { value: measured.seconds, operations, verified: true, ..measured })
    }
}
