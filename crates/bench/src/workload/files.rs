//! `files`: one large file copied out and in, with the subject's default cipher and with others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Result;
use crate::measure::{Cache, Unit};
use crate::results::{Measured, SubjectInfo};
use crate::size::Size;
use crate::step::StepContext;
use crate::subject::{Direction, Tuning};

use super::copying::copy_all;
use super::{COPY_FILES, Step, Workload, measure, program};

/// The workload.
pub struct Files;

/// The same contents in every run.
const SEED: u64 = 2;

/// The file, in the corpus and in a storage.
const LARGE: &str = "files/large";

/// Its digest, in the corpus.
const DIGEST: &str = "files/large.sha256";

/// Programs that copy without ssh. bbcp only starts by it.
const WITHOUT_SSH: [&str; 3] = ["ftp", "rsyncd", "bbcp"];

impl Workload for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn about(&self) -> &'static str {
        "One large file copied out and in, cipher by cipher"
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        (2 * size.file_bytes, 2 * size.file_bytes)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        corpus::file(corpus, LARGE, size.file_bytes, SEED)?;
        fs::write(corpus.join(DIGEST), corpus::digest_content(SEED, size.file_bytes))?;
        Ok(())
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        vec![LARGE.into()]
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let ciphers = size.ciphers.iter().map(|cipher| Some(cipher.clone()));
        let mut steps = Vec::new();
        for cipher in std::iter::once(None).chain(ciphers) {
            steps.push(step(Direction::Out, cipher.clone()).over(size.file_bytes));
            steps.push(step(Direction::In, cipher).over(size.file_bytes));
        }
        steps
    }
}

/// A copy by a cipher in ssh's name, or by the subject's default.
fn step(direction: Direction, cipher: Option<String>) -> Step {
    let (way, words, cache) = match direction {
        Direction::Out => ("out", "copied out", Cache::Cold),
        Direction::In => ("in", "copied in", Cache::None),
    };
    let (id, name) = match &cipher {
        None => ("default", "its own cipher"),
        // Without the domain of its author.
        Some(cipher) => (cipher.split('@').next().unwrap_or(cipher), cipher.as_str()),
    };
    let title = format!("large file {words} (a mount: cp), {name}");
    let measure = measure("files", &format!("{way}.{id}"), &title, Unit::BytesPerSecond, cache);
    let tuning = Tuning { cipher };
    let is_default = tuning == Tuning::default();
    // A directory that the user has mounted, and programs without ssh, have no choice of cipher.
    let has_ssh = |subject: &SubjectInfo| match subject.kind.as_str() {
        "local" | "target" => false,
        "copy" => !subject.is_any_of(&WITHOUT_SSH),
        _ => true,
    };
    let step = Step::new(measure, COPY_FILES, move |context| copy(context, direction));
    step.only_for(move |subject| is_default || has_ssh(subject)).with_tuning(tuning)
}

fn copy(context: &mut StepContext<'_>, direction: Direction) -> Result<Measured> {
    let expected = fs::read_to_string(context.corpus.join(DIGEST))?;
    let measured = copy_all(context, direction, &[LARGE], "files/in", copy_file, &expected)?;
    Ok(Measured { bytes: context.size.file_bytes, verified: true, ..measured })
}

fn copy_file(from: &Path, to: &Path) -> Command {
    let mut command = program("cp");
    command.arg(from).arg(to);
    command
}

#[cfg(test)]
mod tests;
