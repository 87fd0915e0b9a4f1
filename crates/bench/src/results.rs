//! The results of a run, as `results.json` contains them.
//!
//! The schema is a promise: a field is only ever added, and [`SCHEMA`] counts changes that an
//! older reader would misread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::measure::Measure;
use crate::stats::Spread;

/// Of this file's form.
pub const SCHEMA: u32 = 1;

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// This program and its version.
    pub program: String,
    /// When it began, RFC 3339 with the zone.
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// Why it ended early or measured nothing, if it did.
    pub partial: Option<String>,
    /// The machine, or both machines.
    pub environment: Environment,
    /// What is between client and server.
    pub link: LinkReport,
    /// What was asked for.
    pub settings: Settings,
    /// In the order in which reports show them.
    pub subjects: Vec<SubjectInfo>,
    /// Subjects and works that were asked for and could not be.
    pub left_out: Vec<LeftOut>,
    /// In the order in which reports show them.
    pub measures: Vec<Measure>,
    /// Every one, in the order of time.
    pub samples: Vec<Sample>,
    /// What follows from the samples (see [`crate::stats`]); here for readers of the file
    /// without this program.
    pub summaries: Vec<Summary>,
    /// What the reader has to know to trust the figures: noise, throttling, a busy machine, each
    /// with the remedy.
    pub warnings: Vec<String>,
}

/// Where it ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// `uname -srm` of the client.
    pub kernel: String,
    /// The distribution's own name of itself.
    pub system: String,
    /// Model name of the processor.
    pub cpu: String,
    /// How many this process may use.
    pub cpus: u32,
    /// Those that matter to ciphers: `aes`, `vaes`, `avx2`, `pclmulqdq`, `sha_ni` …
    pub cpu_flags: Vec<String>,
    /// All of the machine.
    pub memory_bytes: u64,
    /// Kind of file system under the scratch directory, and under the server's.
    pub scratch: String,
    /// What the server says of itself, and its `uname` where it could be asked.
    pub server: String,
    /// Program → its version.
    pub versions: Vec<(String, String)>,
    /// Load average when it began.
    pub load: f64,
}

/// The link: what was asked for and what it was measured to be, before the first subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// `loopback`, `lan`, `wan`, `intercontinental`, `custom`, or `host NAME`.
    pub name: String,
    /// Added round trip asked for, if the link is simulated.
    pub asked_rtt_us: Option<f64>,
    /// Rate asked for, of bytes a second, each way.
    pub asked_bytes_per_s: Option<f64>,
    /// Median round trip of one byte through it.
    pub measured_rtt_us: Option<f64>,
    /// Of bulk data through it, bytes a second.
    pub measured_bytes_per_s: Option<f64>,
}

/// What the run was asked to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The command line.
    pub command: Vec<String>,
    /// `quick`, `normal` or `full`.
    pub size: String,
    /// Rounds: samples of each measure of each subject.
    pub rounds: u32,
    /// Names of the workloads.
    pub works: Vec<String>,
    /// The subject to which ratios are given.
    pub reference: String,
    /// Longest time for one step.
    pub deadline_s: f64,
    /// Of all pseudo-random orders, those of fio included. Data have seeds of their own.
    pub seed: u64,
    /// The published comparison that the run repeats: a name in [`crate::published`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<String>,
    /// The factor by which its amounts of data were multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// How much of what the works did: `iozone.random_bytes` (see
    /// [`crate::size::Size::quantities`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quantities: BTreeMap<String, f64>,
}

/// What a subject is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectInfo {
    /// Unique in the run: `sshoal`, `sshfs`, `sshfs:opt1`, `nfs`.
    pub name: String,
    /// `mount`, `copy`, `target`, `local` or `floor`.
    pub kind: String,
    /// The program's own word.
    pub version: String,
    /// How it is started, as a user would type it.
    pub command: String,
    /// The cipher that its connection takes, where it has one.
    pub cipher: Option<String>,
    /// This is the same as that subject, measured again: the control.
    pub control_of: Option<String>,
}

impl SubjectInfo {
    /// One without a version or a cipher, so far.
    pub fn new(name: &str, kind: &str, command: impl Into<String>) -> SubjectInfo {
        SubjectInfo {
            name: name.to_owned(),
            kind: kind.to_owned(),
            version: String::new(),
            command: command.into(),
            cipher: None,
            control_of: None,
        }
    }

    /// Whether it is on this machine before it is measured: nothing is started anew, and what it
    /// shows is its storage itself.
    pub fn is_there(&self) -> bool {
        matches!(self.kind.as_str(), "local" | "target")
    }

    /// Whether it is one of these, with any options, or the control of such a one.
    pub fn is_any_of(&self, names: &[&str]) -> bool {
        let own = self.control_of.as_deref().unwrap_or(&self.name);
        let options = |name: &&str| own.strip_prefix(*name);
        names.iter().filter_map(options).any(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

/// What was asked for and not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The subject or work.
    pub name: String,
    /// For example that it is not installed.
    pub why: String,
    /// What to do about it: the package to install.
    pub remedy: Option<String>,
}

impl LeftOut {
    /// One that nothing can be done about.
    pub fn new(name: impl Into<String>, why: impl Into<String>) -> LeftOut {
        LeftOut { name: name.into(), why: why.into(), remedy: None }
    }

    /// With what to do about it.
    pub fn with_remedy(self, remedy: impl Into<String>) -> LeftOut {
        LeftOut { remedy: Some(remedy.into()), ..self }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// [`Measure::id`].
    pub measure: String,
    /// [`SubjectInfo::name`].
    pub subject: String,
    /// From 0.
    pub round: u32,
    /// Seconds from the start of the run.
    pub at_s: f64,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A value, or why there is none.
#[expect(clippy::large_enum_variant, reason = "nearly all are measured")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was measured.
    Measured(Measured),
    /// It was not.
    Failed {
        /// Why.
        failure: Failure,
    },
}

/// What a sample is worth, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// In the measure's unit.
    pub value: f64,
    /// Wall clock of the measured part.
    pub seconds: f64,
    /// User data moved, 0 where that means nothing.
    pub bytes: u64,
    /// Operations done, 0 where that means nothing.
    pub operations: u64,
    /// The data were compared with what they had to be.
    pub verified: bool,
    /// Distribution over single operations, where they were timed.
    pub latency: Option<Latency>,
    /// The subject on the client: its daemon, its ssh, all below them. For a program that copies,
    /// itself.
    pub client: Usage,
    /// sshd and what it started; `None` where the server is another machine.
    pub server: Option<Usage>,
    /// What did the workload on the client (`fio`, `tar`), where the subject is a file system.
    pub application: Option<Usage>,
    /// Bytes on the link; `None` without a forwarder that counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Requests of the kernel and to the server; `None` for a subject that does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
    /// CPU over time, where it was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_trace: Option<CpuTrace>,
}

/// Numbers of requests, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// FUSE requests: `lookup`, `getattr`, `open`.
    pub kernel: BTreeMap<String, u64>,
    /// SFTP requests: `lstat`, `open`, `read`.
    pub server: BTreeMap<String, u64>,
    /// Hits and misses of the caches of the mount: `lookup_hits`, `open_misses`.
    pub caches: BTreeMap<String, u64>,
}

impl Requests {
    /// What was added after `before`.
    pub fn since(&self, before: &Requests) -> Requests {
        let since = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let added = |(name, now): (&String, &u64)| {
                let added = now.saturating_sub(before.get(name).copied().unwrap_or(0));
                (added > 0).then(|| (name.clone(), added))
            };
            now.iter().filter_map(added).collect()
        };
        Requests {
            kernel: since(&self.kernel, &before.kernel),
            server: since(&self.server, &before.server),
            caches: since(&self.caches, &before.caches),
        }
    }
}

/// Bytes on the link between client and server: the payload of TCP, with all that ssh adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// From the client.
    pub to_server_bytes: u64,
    /// To the client.
    pub from_server_bytes: u64,
}

impl Wire {
    /// The sum of two periods, or of two links.
    pub fn plus(self, other: Wire) -> Wire {
        Wire {
            to_server_bytes: self.to_server_bytes + other.to_server_bytes,
            from_server_bytes: self.from_server_bytes + other.from_server_bytes,
        }
    }

    /// What was added after `before`.
    pub fn since(self, before: Wire) -> Wire {
        Wire {
            to_server_bytes: self.to_server_bytes.saturating_sub(before.to_server_bytes),
            from_server_bytes: self.from_server_bytes.saturating_sub(before.from_server_bytes),
        }
    }
}

/// CPU of single processes while a step ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTrace {
    /// Ends of the intervals, in seconds from the start of the step.
    pub at_s: Vec<f64>,
    /// Processes with any CPU time. Those of one side with the same name are one entry.
    pub processes: Vec<ProcessTrace>,
}

/// CPU of the processes of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessTrace {
    /// `client`, `application` or `server`, as in [`Measured`].
    pub side: String,
    /// The kernel's name of the process: `ssh`, `sftp-server`.
    pub process: String,
    /// CPU seconds per second in each interval: 1 is one CPU.
    pub cpus: Vec<f64>,
}

/// What processes have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU in user mode.
    pub user_s: f64,
    /// CPU in the kernel.
    pub system_s: f64,
    /// Sum of the greatest resident sizes of the processes that lived at its end; 0 if unknown.
    pub peak_memory_bytes: u64,
    /// Voluntary and involuntary.
    pub context_switches: u64,
}

/// How long single operations took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Microseconds, as the rest.
    pub min_us: f64,
    /// Arithmetic.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90 % are at most this.
    pub p90_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// Upper end in microseconds, operations up to it and above the one before: the curve.
    #[serde(default)]
    pub buckets: Vec<(f64, u64)>,
}

/// What the samples of one measure of one subject say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`Measure::id`].
    pub measure: String,
    /// [`SubjectInfo::name`].
    pub subject: String,
    /// Samples with a value.
    pub n: u32,
    /// Samples without.
    pub failed: u32,
    /// Of the values; 0 where `n` is.
    #[serde(flatten)]
    pub spread: Spread,
    /// How many times better than the reference, round by round.
    pub ratio: Option<Ratio>,
    /// CPU seconds of the client side for a gigabyte (10^9), median.
    pub client_cpu_s_per_gb: Option<f64>,
    /// Of the server side.
    pub server_cpu_s_per_gb: Option<f64>,
    /// CPU seconds of the client side for a thousand operations, median.
    pub client_cpu_s_per_kop: Option<f64>,
    /// Of the server side.
    pub server_cpu_s_per_kop: Option<f64>,
    /// Greatest of the client side.
    pub peak_memory_bytes: Option<u64>,
}

/// A comparison with the reference subject. Above 1 is better, for any unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The reference.
    pub to: String,
    /// Median of the ratios of the rounds.
    pub value: f64,
    /// Lower end of its interval, 95 % where the rounds suffice (see `level`).
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Beyond what the control says that chance does.
    pub significant: bool,
    /// Rounds in which both were measured.
    #[serde(default)]
    pub n: u32,
    /// How sure `low..high` holds the true median, from 0 to 1. With few rounds it is the range of
    /// the rounds, and this less than 0.95; `None` below four, where it says nothing.
    #[serde(default)]
    pub level: Option<f64>,
    /// Factor by which the control and its original differ by chance: ratios between its inverse
    /// and itself mean nothing. `None` without a control.
    #[serde(default)]
    pub noise: Option<f64>,
}
