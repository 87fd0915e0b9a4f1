//! The rate of data through one or more ssh commands, and their CPU.
//!
//! Bytes are counted in a window that begins when all streams carry data and TCP has grown its
//! congestion window, so the logins are not in the rate. Closing the pipe then ends the ssh
//! commands. Trials that are compared run in turn, in an order that rotates from round to round.

use std::io::{self, PipeReader, Read};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::account;
use crate::executor::{Executor, Program, last_words};
use crate::failure::{Failure, Result};
use crate::results::Usage;
use crate::server::Server;
use crate::stats;
use crate::step::ServerMeter;

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

/// Interval of the looks at what was counted.
const LOOK: Duration = Duration::from_millis(2);

/// Runs commands that print without end at the same time, and counts what they print.
pub(super) fn flow(commands: Vec<Command>, timing: Timing, executor: &Executor) -> Result<Flow> {
    let counts: Vec<AtomicU64> = commands.iter().map(|_| AtomicU64::new(0)).collect();
    // All is counted, or one stream has ended too early.
    let over = AtomicBool::new(false);
    let limit = LIMIT + timing.warm + timing.window;
    let mut programs = Vec::new();
    for command in commands {
        let (reader, writer) = io::pipe()?;
        programs.push((Program::from(command).stdout(writer), reader));
    }
    let (bytes_per_s, ends) = thread::scope(|scope| {
        let (over, counts) = (&over, &counts);
        let streams = programs.into_iter().zip(counts).map(|((program, pipe), count)| {
            let read = scope.spawn(move || ends_early(pipe, count, over));
            (read, scope.spawn(move || executor.run(program, limit)))
        });
        let streams: Vec<_> = streams.collect();
        let bytes_per_s = rate(counts, timing, over);
        over.store(true, Ordering::SeqCst);
        let panicked = || Err(Failure::failed("a thread of the measurement panicked"));
        let joined = streams.into_iter().map(|(read, run)| {
            (read.join().unwrap_or(true), run.join().unwrap_or_else(|_| panicked()))
        });
        (bytes_per_s, joined.collect::<Vec<_>>())
    });
    if executor.is_interrupted() {
        return Err(Failure::Interrupted);
    }
    let bytes = counts.iter().map(|count| count.load(Ordering::SeqCst)).sum();
    let mut flow = Flow { bytes_per_s, bytes, usage: Usage::default() };
    for (ended, ran) in ends {
        let ran = ran?;
        if ended {
            let words = last_words(&ran.output.stderr);
            let why = if words.is_empty() { "it sent no data".to_owned() } else { words };
            return Err(Failure::failed(format!("ssh ended ({}): {why}", ran.output.status)));
        }
        flow.usage = account::plus(flow.usage, ran.usage);
    }
    Ok(flow)
}

/// Counts the bytes of one stream until `over`; whether it ended before that.
fn ends_early(mut pipe: PipeReader, count: &AtomicU64, over: &AtomicBool) -> bool {
    let mut buffer = vec![0; 256 << 10];
    while !over.load(Ordering::SeqCst) {
        match pipe.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return !over.swap(true, Ordering::SeqCst),
            Ok(got) => drop(count.fetch_add(got as u64, Ordering::SeqCst)),
        }
    }
    false
}

/// Bytes a second in the window, which begins when all streams carry data and are warm, and has
/// data of each: a reader that waits for a processor makes it longer. 0 if a stream ends before.
fn rate(counts: &[AtomicU64], timing: Timing, over: &AtomicBool) -> f64 {
    let counted = || counts.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let carry_more_than = |before: &[u64]| counted().iter().zip(before).all(|(now, it)| now > it);
    let wait = |done: &dyn Fn() -> bool| {
        while !over.load(Ordering::SeqCst) && !done() {
            thread::sleep(LOOK);
        }
    };
    wait(&|| carry_more_than(&vec![0; counts.len()]));
    let warm = Instant::now() + timing.warm;
    wait(&|| Instant::now() >= warm);
    let (since, before) = (Instant::now(), counted());
    wait(&|| since.elapsed() >= timing.window && carry_more_than(&before));
    let (took, after) = (since.elapsed().as_secs_f64(), counted());
    let bytes = after.iter().sum::<u64>() - before.iter().sum::<u64>();
    if over.load(Ordering::SeqCst) { 0.0 } else { bytes as f64 / took }
}

/// The rates of one trial over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// What was tried: a cipher, a number of connections.
    pub name: String,
    /// Sessions at the same time, each with a connection of its own.
    pub connections: u32,
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
pub(super) struct Trial {
    pub(super) name: String,
    pub(super) command: Box<dyn Fn() -> Command>,
    /// Commands at the same time.
    pub(super) streams: u32,
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
    trials: &[Trial],
) -> Result<Vec<Figures>> {
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
            let commands = (0..trial.streams).map(|_| (trial.command)()).collect();
            match flow(commands, timing, executor) {
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
    let figures = trials.iter().zip(tried).map(|(trial, rounds)| Figures {
        name: trial.name.clone(),
        connections: trial.streams,
        ..rounds.figures()
    });
    Ok(figures.collect())
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

    fn figures(self) -> Figures {
        let spread = stats::Spread::of(&self.bytes_per_s).filter(|_| self.failure.is_none());
        let Some(spread) = spread else {
            return Figures { failure: self.failure, ..Figures::default() };
        };
        Figures {
            bytes_per_s: spread.median,
            slowest_bytes_per_s: spread.min,
            fastest_bytes_per_s: spread.max,
            client_cpu_s_per_gb: stats::median(&self.client_cpu),
            server_cpu_s_per_gb: stats::median(&self.server_cpu),
            ..Figures::default()
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
    fn what_flows_in_the_window_is_counted() {
        let slow = "while head -c 1000 /dev/zero; do sleep 0.01; done";
        let flow = flow(vec![sh(slow), sh(slow)], TIMING, &Executor::new()).unwrap();
        assert!(flow.bytes_per_s > 0.0, "{flow:?}");
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
        let figures = rounds.figures();
        assert_eq!((figures.bytes_per_s, figures.failure.as_deref()), (0.0, Some("cut")));
    }
}
