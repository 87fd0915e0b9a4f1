//! What fio is told.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::step::StepContext;
use crate::work::script::program;

use super::output::{Figures, Way, parse};
use super::{Shape, run_time};

/// fio takes a colon for the end of a file name.
fn file_name(path: &Path) -> Result<OsString, Failure> {
    let path = path.to_str().ok_or_else(|| Failure::failed("a path that is not UTF-8"))?;
    Ok(format!("--filename={}", path.replace('\\', r"\\").replace(':', r"\:")).into())
}

/// All but what makes it one of the jobs.
fn common(path: &Path, shape: Shape, way: Way, file_bytes: u64) -> Result<Command, Failure> {
    let kind = match (shape, way) {
        (Shape::Sequential, Way::Read) => "read",
        (Shape::Sequential, Way::Write) => "write",
        (Shape::Random, Way::Read) => "randread",
        (Shape::Random, Way::Write) => "randwrite",
    };
    let mut fio = program("fio");
    fio.args(["--name=bench", "--ioengine=libaio", "--direct=1", "--fallocate=none"]);
    fio.arg(file_name(path)?).arg(format!("--rw={kind}")).arg(format!("--size={file_bytes}"));
    fio.arg(format!("--bs={}", shape.record_bytes())).arg(format!("--iodepth={}", shape.depth()));
    Ok(fio)
}

/// Runs a job for its time, as what is measured.
pub(super) fn job(
    context: &mut StepContext<'_>,
    path: &Path,
    shape: Shape,
    way: Way,
) -> Result<(Figures, crate::results::Measured), Failure> {
    let told = context.scratch.join("fio.json");
    let mut fio = common(path, shape, way, context.size.random_file_bytes)?;
    fio.args(["--time_based", "--end_fsync=1", "--output-format=json+"]);
    fio.arg(format!("--runtime={}ms", run_time(context.size).as_millis()));
    fio.arg(format!("--randseed={}", context.seed)).arg(output(&told));
    let (_, measured) = context.timed(fio)?;
    Ok((parse(&std::fs::read(&told)?, way)?, measured))
}

/// Has fio write a part of the file and read that again, each block with a checksum, its place and
/// its number; its words are the failure.
pub(super) fn verified_writes(
    context: &mut StepContext<'_>,
    path: &Path,
    shape: Shape,
    records: u64,
) -> Result<(), Failure> {
    let bytes = (records * u64::from(shape.record_bytes())).min(context.size.random_file_bytes);
    let mut fio = common(path, shape, Way::Write, context.size.random_file_bytes)?;
    fio.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_dump=0"]);
    // It would leave a file in the directory in which it runs.
    fio.arg("--verify_state_save=0");
    fio.arg(format!("--io_size={bytes}")).arg(format!("--randseed={}", context.seed));
    fio.arg(output(&context.scratch.join("fio.verified")));
    let verified = context.aside(fio);
    verified.map(drop).map_err(|failure| match failure {
        Failure::Failed { why } => Failure::wrong(format!("fio verifies its writes: {why}")),
        other => other,
    })
}

fn output(path: &Path) -> OsString {
    let mut word = OsString::from("--output=");
    word.push(PathBuf::from(path));
    word
}
