//! The command line of fio, and its `json+` output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::failure::{Failure, Result};
use crate::results::{Latency, Measured};
use crate::step::StepContext;
use crate::worker::Latencies;
use crate::workload::program;

use super::Shape;

/// Which figures of a job are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// fio takes a colon for the end of a file name.
fn file_name(path: &Path) -> Result<OsString> {
    let path = path.to_str().ok_or_else(|| Failure::failed("a path that is not UTF-8"))?;
    Ok(format!("--filename={}", path.replace('\\', r"\\").replace(':', r"\:")).into())
}

/// The options that all jobs have.
fn common(path: &Path, shape: Shape, direction: Direction, file_bytes: u64) -> Result<Command> {
    let direction = if direction == Direction::Read { "read" } else { "write" };
    let mut fio = program("fio");
    fio.args(["--name=bench", "--ioengine=libaio", "--direct=1", "--fallocate=none"]);
    fio.arg(file_name(path)?)
        .arg(format!("--rw={}{direction}", shape.prefix))
        .arg(format!("--size={file_bytes}"));
    fio.arg(format!("--bs={}", shape.record_bytes)).arg(format!("--iodepth={}", shape.depth));
    Ok(fio)
}

/// Runs a job for its time, or over its whole file; the value is left out.
pub(super) fn job(
    context: &mut StepContext<'_>,
    path: &Path,
    shape: Shape,
    direction: Direction,
) -> Result<Measured> {
    let report = context.scratch.join("fio.json");
    let mut fio = common(path, shape, direction, context.size.fio.bytes)?;
    fio.args(["--end_fsync=1", "--output-format=json+"]);
    if !shape.whole {
        let run_time_ms = Duration::from_secs_f64(context.size.random_seconds).as_millis();
        fio.arg("--time_based").arg(format!("--runtime={run_time_ms}ms"));
    }
    fio.arg(format!("--randseed={}", context.seed)).arg(output(&report));
    let (_, usages) = context.timed(fio)?;
    let Measured { seconds, bytes, operations, latency, .. } =
        parse(&fs::read(&report)?, direction)?;
    Ok(Measured { seconds, bytes, operations, latency, ..usages })
}

/// Has fio write a part of the file and read it back, each block with a checksum, its offset and
/// its number. The message of fio is the failure.
pub(super) fn verified_writes(
    context: &mut StepContext<'_>,
    path: &Path,
    shape: Shape,
    records: u64,
) -> Result<()> {
    let bytes = (records * u64::from(shape.record_bytes)).min(context.size.fio.bytes);
    let mut fio = common(path, shape, Direction::Write, context.size.fio.bytes)?;
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
    word.push(path);
    word
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Deserialize)]
struct JobOutput {
    /// A number of an errno, the first.
    error: i32,
    /// Milliseconds with the last fsync.
    job_runtime: u64,
    read: Half,
    write: Half,
}

#[derive(Deserialize)]
struct Half {
    io_bytes: u64,
    total_ios: u64,
    /// Milliseconds.
    runtime: u64,
    clat_ns: Clat,
}

#[derive(Deserialize)]
struct Clat {
    /// Nanoseconds, and how many took as long.
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

/// The figures of the only job.
pub(super) fn parse(json: &[u8], direction: Direction) -> Result<Measured> {
    let unreadable = |why: String| Failure::failed(format!("fio's output cannot be read: {why}"));
    // In front of it are warnings, if there are any.
    let begin = json.iter().position(|&byte| byte == b'{').unwrap_or(0);
    let output: Output =
        serde_json::from_slice(&json[begin..]).map_err(|error| unreadable(error.to_string()))?;
    let [job] = &output.jobs[..] else {
        return Err(unreadable(format!("{} jobs", output.jobs.len())));
    };
    if job.error != 0 {
        let error = std::io::Error::from_raw_os_error(job.error);
        return Err(Failure::failed(format!("fio: {error}")));
    }
    let (half, runtime_ms) = match direction {
        Direction::Read => (&job.read, job.read.runtime),
        Direction::Write => (&job.write, job.write.runtime.max(job.job_runtime)),
    };
    if half.total_ios == 0 || runtime_ms == 0 {
        return Err(Failure::failed("fio has completed no operation"));
    }
    Ok(Measured {
        seconds: runtime_ms as f64 / 1e3,
        bytes: half.io_bytes,
        operations: half.total_ios,
        latency: latency(&half.clat_ns.bins)
            .ok_or_else(|| unreadable("no latencies".to_owned()))?,
        ..Measured::default()
    })
}

/// `None` if a bin is no number; nothing in it if there are no bins.
fn latency(bins: &BTreeMap<String, u64>) -> Option<Option<Latency>> {
    let mut all = Latencies::new();
    for (ns, &count) in bins {
        all.add_many(ns.parse().ok()?, count);
    }
    Some(all.into_latency())
}

#[cfg(test)]
mod tests;
