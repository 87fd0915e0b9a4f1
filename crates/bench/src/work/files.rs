//! `files`: one large file copied out and in, with the cipher that the subject takes by itself
//! and with others.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::Place;
use crate::results::{LeftOut, Measured, SubjectInfo};
use crate::size::Size;
use crate::step::StepContext;
use crate::subject::{Access, Tuning};

use super::copying::{copies_files, fresh, pull, push, removed_after};
use super::script::program;
use super::{Step, Work};

/// The work.
pub struct Files;

/// The same contents in every run.
const SEED: u64 = 2;

/// Where the file is, in the corpus and in a place.
const LARGE: &str = "files/large";

/// What its contents are, in the corpus.
const DIGEST: &str = "files/large.sha256";

/// Programs that copy over a connection of their own kind.
const WITHOUT_SSH: [&str; 2] = ["ftp", "rsyncd"];

impl Work for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn about(&self) -> &'static str {
        "One large file copied out and in, cipher by cipher"
    }

    fn check(&self) -> Result<(), LeftOut> {
        Ok(())
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        (2 * size.file_bytes, 2 * size.file_bytes)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<(), Failure> {
        corpus::file(corpus, LARGE, size.file_bytes, SEED)?;
        fs::write(corpus.join(DIGEST), corpus::digest_content(SEED, size.file_bytes))?;
        Ok(())
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        place.put(&corpus.join(LARGE), Path::new(LARGE))
    }

    fn steps(&self, size: &Size) -> Vec<Box<dyn Step>> {
        let ciphers = size.ciphers.iter().map(|cipher| Some(cipher.clone()));
        let mut steps: Vec<Box<dyn Step>> = Vec::new();
        for cipher in std::iter::once(None).chain(ciphers) {
            steps.push(Box::new(CopyFile { way: Way::Out, cipher: cipher.clone() }));
            steps.push(Box::new(CopyFile { way: Way::In, cipher }));
        }
        steps
    }
}

/// One copy.
struct CopyFile {
    way: Way,
    /// In ssh's name; `None` for what the subject takes by itself.
    cipher: Option<String>,
}

#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

impl Step for CopyFile {
    fn measure(&self) -> Measure {
        let (way, words, cache) = match self.way {
            Way::Out => ("out", "copied out", Cache::Cold),
            Way::In => ("in", "copied in", Cache::None),
        };
        let (id, cipher) = match &self.cipher {
            None => ("default", "its own cipher".to_owned()),
            Some(cipher) => (short(cipher), cipher.clone()),
        };
        Measure {
            id: format!("files.{way}.{id}"),
            title: format!("large file {words} (a mount: cp), {cipher}"),
            unit: Unit::BytesPerSecond,
            cache,
        }
    }

    fn tuning(&self) -> Tuning {
        Tuning { cipher: self.cipher.clone() }
    }

    /// A directory that somebody else has mounted, and what goes without ssh, have no cipher that
    /// could be chosen.
    fn concerns(&self, subject: &SubjectInfo) -> bool {
        let has_ssh = match subject.kind.as_str() {
            "local" | "target" => false,
            "copy" => !WITHOUT_SSH.contains(&subject.name.as_str()),
            _ => true,
        };
        self.cipher.is_none() || has_ssh
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        copies_files(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let digest = fs::read_to_string(context.corpus.join(DIGEST))?;
        let mut measured = match self.way {
            Way::Out => copy_out(context, &digest)?,
            Way::In => copy_in(context, &digest)?,
        };
        measured.bytes = context.size.file_bytes;
        measured.value = measured.bytes as f64 / measured.seconds;
        measured.verified = true;
        Ok(measured)
    }
}

fn copy_out(context: &mut StepContext<'_>, digest: &str) -> Result<Measured, Failure> {
    let copy = context.scratch.join("out");
    let measured = pull(context, Path::new(LARGE), &copy, copy_file)?;
    compare(&corpus::digest_file(&copy)?, digest)?;
    Ok(measured)
}

fn copy_in(context: &mut StepContext<'_>, digest: &str) -> Result<Measured, Failure> {
    let to = fresh("files/in");
    removed_after(context, &to, |context| {
        let from = context.corpus.join(LARGE);
        let measured = push(context, &from, &to, copy_file)?;
        compare(&context.subject.place().digest(&to)?, digest)?;
        Ok(measured)
    })
}

fn compare(found: &str, expected: &str) -> Result<(), Failure> {
    match found == expected {
        true => Ok(()),
        false => Err(Failure::wrong("the copy of the file is not like the original")),
    }
}

fn copy_file(from: &Path, to: &Path) -> Command {
    let mut command = program("cp");
    command.arg(from).arg(to);
    command
}

/// Without who defined it.
fn short(cipher: &str) -> &str {
    cipher.split('@').next().unwrap_or(cipher)
}

#[cfg(test)]
mod tests;
