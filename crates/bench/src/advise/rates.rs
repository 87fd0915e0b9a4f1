//! The rate of data through one or more ssh commands, and their CPU.
//!
//! Bytes are counted in a window that begins when all streams carry data and TCP has grown its
//! congestion window, so the logins are not in the rate. Closing the pipe then ends the ssh
//! commands. Trials that are compared run in turn, in an order that rotates from round to round.

use std::io::{self, PipeReader, Read};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::account;
use crate::executor::{Executor, Program, Ran, last_words};
use crate::failure::Failure;
use crate::results::Usage;
use crate::server::Server;
use crate::stats;

/// Longest time for one ssh beside its window.
const LIMIT: Duration = Duration::from_secs(60);

/// With fewer bytes than this, the CPU of a login and of the channel's last window (sent, but not
/// read) is too large a part of the CPU for a gigabyte.
const BYTES_FOR_CPU: u64 = 200_000_000;

/// When bytes are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// From the moment in which all streams carry data to the start of the window.
    pub(super) warm: Duration,
    /// Length of the window.
    pub(super) window: Duration,
}

impl Timing {
    /// For a link with this round trip; `window` is the length without one. TCP begins with 14 KB
    /// in flight and doubles that each round trip: after eight it has the 2 MiB that ssh allows.
    pub(super) fn of(rtt: Duration, window: Duration) -> Timing {
        Timing { warm: Duration::from_millis(150) + rtt * 8, window: window + rtt * 3 }
    }
}

/// Data through all streams of one trial in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Of all streams together, in the window.
    pub(super) bytes_per_s: f64,
    /// From first to last.
    pub(super) bytes: u64,
    /// CPU of all ssh commands on the client, logins included.
    pub(super) usage: Usage,
}

/// State shared by the readers of one flow.
struct Shared {
    timing: Timing,
    silent: AtomicUsize,
    begin: OnceLock<Instant>,
    /// One stream has ended too early.
    broken: AtomicBool,
}

/// Data through one stream.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    bytes: u64,
    /// In the window.
    bytes_per_s: f64,
    /// It ended before the window did.
    ended: bool,
}

impl Shared {
    /// Reads one stream until the window is over. The time is taken between the first reads after
    /// both ends of the window, so a reader that waits for a processor does not change the rate.
    fn read(&self, mut pipe: PipeReader) -> Stream {
        let mut buffer = vec![0; 256 << 10];
        let mut stream = Stream::default();
        let (mut since, mut counted) = (None, 0);
        loop {
            let got = match pipe.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => {
                    self.broken.store(true, Ordering::Relaxed);
                    return Stream { ended: true, ..stream };
                }
                Ok(got) => got as u64,
            };
            let now = Instant::now();
            if stream.bytes == 0 && self.silent.fetch_sub(1, Ordering::Relaxed) == 1 {
                let _ = self.begin.set(now + self.timing.warm);
            }
            stream.bytes += got;
            if self.broken.load(Ordering::Relaxed) {
                return stream;
            }
            let Some(&begin) = self.begin.get().filter(|begin| now >= **begin) else { continue };
            let Some(since) = since else {
                since = Some(now);
                continue;
            };
            counted += got;
            if now >= begin + self.timing.window && now > since {
                stream.bytes_per_s = counted as f64 / (now - since).as_secs_f64();
                return stream;
            }
        }
    }
}

/// Runs commands that print without end at the same time, and counts what they print.
pub(super) fn flow(
    commands: Vec<Command>,
    timing: Timing,
    executor: &Executor,
) -> Result<Flow, Failure> {
    let shared = Shared {
        timing,
        silent: AtomicUsize::new(commands.len()),
        begin: OnceLock::new(),
        broken: AtomicBool::new(false),
    };
    let mut programs = Vec::new();
    for command in commands {
        let (reader, writer) = io::pipe()?;
        programs.push((Program::from(command).stdout(writer), reader));
    }
    let limit = LIMIT + timing.warm + timing.window;
    let ends: Vec<(Stream, Result<Ran, Failure>)> = thread::scope(|scope| {
        let started: Vec<_> = programs
            .into_iter()
            .map(|(program, pipe)| {
                let shared = &shared;
                let read = scope.spawn(move || shared.read(pipe));
                (read, scope.spawn(move || executor.run(program, limit)))
            })
            .collect();
        let panicked = || Err(Failure::failed("a thread of the measurement panicked"));
        let joined = started.into_iter().map(|(read, run)| {
            (read.join().unwrap_or_default(), run.join().unwrap_or_else(|_| panicked()))
        });
        joined.collect()
    });
    if executor.is_interrupted() {
        return Err(Failure::Interrupted);
    }
    let mut flow = Flow::default();
    for (stream, ran) in ends {
        let ran = ran?;
        if stream.ended {
            let words = last_words(&ran.output.stderr);
            let why = if words.is_empty() { "it sent no data".to_owned() } else { words };
            return Err(Failure::failed(format!("ssh ended ({}): {why}", ran.output.status)));
        }
        flow.bytes_per_s += stream.bytes_per_s;
        flow.bytes += stream.bytes;
        flow.usage = account::plus(flow.usage, ran.usage);
    }
    Ok(flow)
}

/// The rates of one trial over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// What was tried: a cipher, a number of connections.
    pub name: String,
    /// Median of the rounds; 0 if it failed.
    pub bytes_per_s: f64,
    /// The slowest round.
    pub slowest_bytes_per_s: f64,
    /// The fastest round.
    pub fastest_bytes_per_s: f64,
    /// CPU seconds of ssh on the client for a gigabyte (10^9), median. `None` for too few data.
    pub client_cpu_s_per_gb: Option<f64>,
    /// CPU seconds of sshd; known for a private server only.
    pub server_cpu_s_per_gb: Option<f64>,
    /// Why there are no figures.
    pub failure: Option<String>,
}

impl Figures {
    /// Whether the median is faster by a tenth and every round is faster than all of the other's.
    /// A smaller gain is not worth an option.
    pub fn clearly_faster(&self, than: &Figures) -> bool {
        self.slowest_bytes_per_s > than.fastest_bytes_per_s
            && self.bytes_per_s >= 1.1 * than.bytes_per_s
    }

    /// CPU of both sides, as far as it is known.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        self.client_cpu_s_per_gb.map(|client| client + self.server_cpu_s_per_gb.unwrap_or(0.0))
    }
}

/// One setting to measure.
pub(super) struct Trial<'a> {
    pub(super) name: String,
    /// One command for each stream.
    pub(super) commands: Box<dyn Fn() -> Vec<Command> + 'a>,
    /// Multiple of the window: more for slow settings.
    pub(super) windows: u32,
}

/// Rounds of one trial.
#[derive(Default)]
struct Rounds {
    bytes_per_s: Vec<f64>,
    client_cpu: Vec<f64>,
    server_cpu: Vec<f64>,
    failure: Option<String>,
}

/// Runs trials in turn. A trial that fails has the reason in place of figures; only an interrupt
/// is an error.
pub(super) fn compare(
    server: &Server,
    executor: &Executor,
    timing: Timing,
    rounds: usize,
    trials: &[Trial<'_>],
) -> Result<Vec<Figures>, Failure> {
    let mut tried: Vec<Rounds> = trials.iter().map(|_| Rounds::default()).collect();
    for round in 0..rounds {
        for turn in 0..trials.len() {
            let at = (round + turn) % trials.len();
            let (trial, rounds) = (&trials[at], &mut tried[at]);
            if rounds.failure.is_some() {
                continue;
            }
            let timing = Timing { window: timing.window * trial.windows, ..timing };
            let before = server.usage();
            match flow((trial.commands)(), timing, executor) {
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => rounds.failure = Some(failure.to_string()),
                Ok(flow) => {
                    let of_server = before.zip(server.usage());
                    let of_server = of_server.map(|(before, now)| account::since(&before, &now));
                    rounds.add(&flow, of_server);
                }
            }
        }
    }
    Ok(trials.iter().zip(tried).map(|(trial, rounds)| rounds.figures(&trial.name)).collect())
}

impl Rounds {
    fn add(&mut self, flow: &Flow, server: Option<Usage>) {
        self.bytes_per_s.push(flow.bytes_per_s);
        if flow.bytes >= BYTES_FOR_CPU {
            let per_gb = |usage: Usage| (usage.user_s + usage.system_s) / (flow.bytes as f64 / 1e9);
            self.client_cpu.push(per_gb(flow.usage));
            self.server_cpu.extend(server.map(per_gb));
        }
    }

    fn figures(self, name: &str) -> Figures {
        let name = name.to_owned();
        let spread = stats::Spread::of(&self.bytes_per_s).filter(|_| self.failure.is_none());
        let Some(spread) = spread else {
            return Figures { name, failure: self.failure, ..Figures::default() };
        };
        Figures {
            name,
            bytes_per_s: spread.median,
            slowest_bytes_per_s: spread.min,
            fastest_bytes_per_s: spread.max,
            client_cpu_s_per_gb: stats::median(&self.client_cpu),
            server_cpu_s_per_gb: stats::median(&self.server_cpu),
            failure: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing =
        Timing { warm: Duration::from_millis(20), window: Duration::from_millis(200) };

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_known_rate_is_measured() {
        // 1000 bytes each 10 ms at most. A late machine makes the rate smaller, not greater, but
        // for data that are read late in one piece.
        let slow = "while head -c 1000 /dev/zero; do sleep 0.01; done";
        let flow = flow(vec![sh(slow), sh(slow)], TIMING, &Executor::new()).unwrap();
        assert!(flow.bytes_per_s > 0.0 && flow.bytes_per_s <= 300_000.0, "{flow:?}");
        // Bytes before and after the window are not in the rate.
        assert!((flow.bytes as f64) > flow.bytes_per_s * TIMING.window.as_secs_f64(), "{flow:?}");
    }

    #[test]
    fn a_stream_that_ends_ends_the_others_and_says_why() {
        let endless = sh("exec cat /dev/zero");
        let ending = sh("echo data; echo the reason >&2; exit 3");
        let start = Instant::now();
        let failure = flow(vec![endless, ending], TIMING, &Executor::new()).unwrap_err();
        assert!(failure.to_string().contains("the reason"), "{failure}");
        let silent = sh("echo refused >&2; exit 255");
        let failure = flow(vec![silent, sh("exec cat /dev/zero")], TIMING, &Executor::new());
        assert!(failure.unwrap_err().to_string().contains("refused"));
        assert!(start.elapsed() < LIMIT);
    }

    #[test]
    fn an_interrupt_ends_it() {
        let executor = Executor::new();
        executor.interrupt();
        assert_eq!(
            flow(vec![sh("exec cat /dev/zero")], TIMING, &executor).unwrap_err(),
            Failure::Interrupted
        );
    }

    #[test]
    fn clearly_means_beyond_the_spread_and_a_tenth() {
        let figures = |slowest, median, fastest| Figures {
            bytes_per_s: median,
            slowest_bytes_per_s: slowest,
            fastest_bytes_per_s: fastest,
            ..Figures::default()
        };
        let usual = figures(90.0, 100.0, 110.0);
        assert!(figures(115.0, 120.0, 125.0).clearly_faster(&usual));
        assert!(!figures(105.0, 120.0, 125.0).clearly_faster(&usual));
        assert!(!figures(105.0, 106.0, 107.0).clearly_faster(&figures(99.0, 100.0, 101.0)));
        assert!(!usual.clearly_faster(&usual));
    }

    #[test]
    fn a_failure_hides_the_rounds_before_it() {
        let rounds =
            Rounds { bytes_per_s: vec![1.0], failure: Some("cut".to_owned()), ..Rounds::default() };
        let figures = rounds.figures("x");
        assert_eq!((figures.bytes_per_s, figures.failure.as_deref()), (0.0, Some("cut")));
    }
}
