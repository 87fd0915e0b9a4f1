//! What fio tells: its `json+`, of which some numbers are needed.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::failure::Failure;
use crate::results::{Latency, Measured};
use crate::worker::{distribution, histogram};

/// Which half of a job's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
}

/// Of one job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    seconds: f64,
    bytes: u64,
    operations: u64,
    latency: Option<Latency>,
}

impl Figures {
    /// With the usages of `measured`.
    pub(super) fn into_measured(self, measured: Measured) -> Measured {
        let Figures { seconds, bytes, operations, latency } = self;
        Measured { seconds, bytes, operations, latency, ..measured }
    }
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
pub(super) fn parse(json: &[u8], way: Way) -> Result<Figures, Failure> {
    let unreadable =
        |why: String| Failure::failed(format!("fio's output is not understood: {why}"));
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
    let (half, runtime_ms) = match way {
        Way::Read => (&job.read, job.read.runtime),
        Way::Write => (&job.write, job.write.runtime.max(job.job_runtime)),
    };
    if half.total_ios == 0 || runtime_ms == 0 {
        return Err(Failure::failed("fio has done nothing in its time"));
    }
    Ok(Figures {
        seconds: runtime_ms as f64 / 1e3,
        bytes: half.io_bytes,
        operations: half.total_ios,
        latency: latency(&half.clat_ns.bins)
            .ok_or_else(|| unreadable("no latencies".to_owned()))?,
    })
}

/// `None` if a bin is no number; nothing in it if there are no bins.
fn latency(bins: &BTreeMap<String, u64>) -> Option<Option<Latency>> {
    let mut all = histogram();
    for (ns, &count) in bins {
        all.saturating_record_n(ns.parse().ok()?, count);
    }
    Some((!all.is_empty()).then(|| distribution(&all)))
}

#[cfg(test)]
mod tests;
