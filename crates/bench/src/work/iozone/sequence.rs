//! A file from its first byte to its last.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::{Access, Copier};
use crate::work::Step;
use crate::work::copying::{fresh, removed};
use crate::work::generator::{Relay, has_files, shown, timed, valued};
use crate::worker::{Check, Fill, Invocation, Job, Order, Start, Target, Transfer, Until};

use super::{READ_SEED, RECORD_BYTES, WRITE_SEEDS, digest_file, measure, read_file};

/// Requests in flight of SFTP without a file system; more than two megabytes are never asked for.
const FLOOR_DEPTH: u32 = 32;

/// A copier reads from its standard input, or writes to its standard output, in place of a file.
const STANDARD_STREAM: &str = "-";

fn transfer(target: Target, file_bytes: u64) -> Transfer {
    // Nobody makes the floor read in records of iozone's length.
    let record_bytes = match target {
        Target::Sftp { .. } => 0,
        Target::Path(_) | Target::Stream { .. } => RECORD_BYTES,
    };
    Transfer {
        target,
        file_bytes,
        record_bytes,
        order: Order::Sequential,
        until: Until::Pass,
        depth: FLOOR_DEPTH,
        direct: false,
    }
}

/// Changes the remote command, which is the last word of an `ssh` command.
fn with_remote(ssh: &Command, change: impl FnOnce(&str) -> String) -> Result<Target, Failure> {
    let mut ssh = Invocation::of(ssh)?;
    let remote = ssh.args.last_mut().ok_or_else(cannot)?;
    *remote = change(remote);
    Ok(Target::Stream { ssh })
}

fn cannot() -> Failure {
    Failure::failed("it has no way to copy this")
}

/// A stream that begins with a byte of its own.
fn pulled(copier: &dyn Copier, path: &Path) -> Result<Target, Failure> {
    let ssh = copier.pull(path, Path::new(STANDARD_STREAM)).ok_or_else(cannot)?;
    with_remote(&ssh, |cat| format!("printf R; {cat}"))
}

/// A stream that answers with a byte when it begins and when all is on the server's disk.
fn pushed(copier: &dyn Copier, path: &Path, root: &Path) -> Result<Target, Failure> {
    let ssh = copier.push(Path::new(STANDARD_STREAM), path).ok_or_else(cannot)?;
    let file = quoted(&root.join(path))?;
    with_remote(&ssh, |_| format!("printf R; cat >{file} && sync {file} && printf D"))
}

/// As one word of a shell's.
fn quoted(path: &Path) -> Result<String, Failure> {
    let path = path.to_str().ok_or_else(|| Failure::failed("a path that is not UTF-8"))?;
    Ok(format!("'{}'", path.replace('\'', r"'\''")))
}

/// Write and re-write.
#[derive(Debug)]
pub(super) struct Write {
    /// Over the file that is there.
    pub(super) again: bool,
    pub(super) written: Arc<Relay<PathBuf>>,
}

impl Write {
    fn target(&self, context: &StepContext<'_>, path: &Path) -> Result<Target, Failure> {
        match context.access() {
            Access::Stream(copier) => pushed(copier, path, context.subject.place().root()),
            _ => shown(context, path),
        }
    }

    /// The file to write, and what is there.
    fn file(&self, context: &StepContext<'_>) -> Result<(PathBuf, Start), Failure> {
        if self.again {
            return Ok((self.written.need(context)?, Start::Present));
        }
        let place = context.subject.place();
        if let Some(left) = self.written.take(context) {
            place.remove(&left)?;
        }
        place.make_dir(Path::new("iozone"))?;
        Ok((fresh("iozone/new"), Start::Absent))
    }

    fn write(
        &self,
        context: &mut StepContext<'_>,
        path: &Path,
        start: Start,
    ) -> Result<Measured, Failure> {
        let seed = WRITE_SEEDS[usize::from(self.again)];
        let transfer = transfer(self.target(context, path)?, context.size.file_bytes);
        let job = Job::Write { transfer, fill: Fill { seed }, start, fsync: true };
        let (_, mut measured) = timed(context, &job)?;
        context.settle(&mut measured)?;
        let expected = fs::read_to_string(digest_file(context.corpus, seed))?;
        let found = context.subject.place().digest(path)?;
        if found != expected {
            return Err(Failure::wrong("the file at the place is not what was written"));
        }
        valued(Measured { verified: true, ..measured }, Unit::BytesPerSecond)
    }
}

impl Step for Write {
    fn measure(&self) -> Measure {
        let (id, title) = match self.again {
            false => ("write", "sequential write, 64 KiB records, fsync and close included"),
            true => ("rewrite", "sequential re-write, 64 KiB records, fsync and close included"),
        };
        measure(id, title, Unit::BytesPerSecond, Cache::None)
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        has_files(access) || (!self.again && matches!(access, Access::Stream(_)))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let (path, start) = self.file(context)?;
        let measured = self.write(context, &path, start);
        // A stream has no later step that needs it.
        if measured.is_err() || matches!(context.access(), Access::Stream(_)) {
            return removed(context, &path, measured);
        }
        self.written.leave(context, path);
        measured
    }
}

/// Read and re-read.
#[derive(Debug)]
pub(super) struct Read {
    /// What was read just before.
    pub(super) again: bool,
}

impl Step for Read {
    fn measure(&self) -> Measure {
        let (id, title, cache) = match self.again {
            false => ("read", "sequential read, 64 KiB records", Cache::Cold),
            true => ("reread", "sequential re-read, 64 KiB records, file reopened", Cache::Hot),
        };
        measure(id, title, Unit::BytesPerSecond, cache)
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        match access {
            Access::Directory(_) => true,
            Access::Sftp(_) | Access::Stream(_) => !self.again,
            Access::Copier(_) => false,
        }
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let bytes = context.size.file_bytes;
        let path = read_file(bytes);
        let target = match context.access() {
            Access::Stream(copier) => pulled(copier, &path)?,
            _ => shown(context, &path)?,
        };
        let check = Check::Content { seed: READ_SEED };
        let job = Job::Read { transfer: transfer(target, bytes), check };
        valued(timed(context, &job)?.1, Unit::BytesPerSecond)
    }
}
