//! How fast data flow through one ssh or several, and what that costs.
//!
//! Bytes are counted within a window of time that begins when all streams flow and TCP has found
//! its pace, so that logins are no part of it. Then the reader goes away, and with it ssh.
//!
//! Trials that are compared run in turn, round by round, in an order that rotates.

use std::io::{self, PipeReader, Read};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::account;
use crate::executor::{Executor, Ran, last_words};
use crate::failure::Failure;
use crate::results::Usage;
use crate::server::Server;
use crate::stats;

/// Longest time for one ssh.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Less than this, and the last window of the channel, which is sent and not read, is too much of
/// what was used to say what a gigabyte costs.
const BYTES_FOR_CPU: u64 = 32_000_000;

/// CPU has to be so many times that of the logins, which vary.
const LOGINS_FOR_CPU: f64 = 2.0;

/// When to count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// From the moment in which all streams flow to the beginning of the window.
    pub(super) warm: Duration,
    /// Length of the window.
    pub(super) window: Duration,
}

impl Timing {
    /// For a link with this round trip, a window of `window` where that is nothing. TCP begins with
    /// 14 KB in flight and doubles them each round trip: after eight there are the 2 MiB that ssh
    /// allows.
    pub(super) fn of(rtt: Duration, window: Duration) -> Timing {
        Timing { warm: Duration::from_millis(150) + rtt * 8, window: window + rtt * 3 }
    }
}

/// What flowed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Of all streams together, in the window.
    pub(super) bytes_per_s: f64,
    /// From first to last.
    pub(super) bytes: u64,
    /// Of all ssh here, logins included.
    pub(super) usage: Usage,
}

/// What the streams of one flow share.
struct Shared {
    timing: Timing,
    waited_for: AtomicUsize,
    begin: OnceLock<Instant>,
    /// One of them has ended too early.
    broken: AtomicBool,
}

/// What came of one stream.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// From first to last.
    bytes: u64,
    /// Those that were counted, and in which time.
    bytes_per_s: f64,
    /// It ended before it was to.
    ended: bool,
}

impl Shared {
    fn new(streams: usize, timing: Timing) -> Shared {
        Shared {
            timing,
            waited_for: AtomicUsize::new(streams),
            begin: OnceLock::new(),
            broken: AtomicBool::new(false),
        }
    }

    /// Reads one stream until the window is over.
    ///
    /// The time that counts is that from read to read, at each end the first after the window's.
    /// So a reader that has to wait for a processor counts neither too little nor too much.
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
            if stream.bytes == 0 && self.waited_for.fetch_sub(1, Ordering::Relaxed) == 1 {
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

/// Lets programs that print without end run together, and counts what they print.
pub(super) fn flow(
    mut commands: Vec<Command>,
    timing: Timing,
    executor: &Executor,
) -> Result<Flow, Failure> {
    let shared = Shared::new(commands.len(), timing);
    let mut pipes = Vec::new();
    for command in &mut commands {
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer);
        pipes.push(reader);
    }
    let limit = LIMIT + timing.warm + timing.window;
    let ends: Vec<(Stream, Result<Ran, Failure>)> = thread::scope(|scope| {
        let start = |(command, pipe)| {
            let shared = &shared;
            let read = scope.spawn(move || shared.read(pipe));
            (read, scope.spawn(move || executor.run(command, limit)))
        };
        let started: Vec<_> = commands.into_iter().zip(pipes).map(start).collect();
        let lost = || Err(Failure::failed("a thread is lost"));
        let joined = started.into_iter().map(|(read, run)| {
            (read.join().unwrap_or_default(), run.join().unwrap_or_else(|_| lost()))
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
            let why = if words.is_empty() { "no data came".to_owned() } else { words };
            return Err(Failure::failed(format!("ssh ended ({}): {why}", ran.output.status)));
        }
        flow.bytes_per_s += stream.bytes_per_s;
        flow.bytes += stream.bytes;
        flow.usage = account::plus(flow.usage, ran.usage);
    }
    Ok(flow)
}

/// What one way to send data does, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// What was tried: a cipher's name, a number of connections.
    pub name: String,
    /// Median of the rounds; 0 if it failed.
    pub bytes_per_s: f64,
    /// The slowest round.
    pub slowest_bytes_per_s: f64,
    /// The fastest round.
    pub fastest_bytes_per_s: f64,
    /// CPU of ssh here for a gigabyte (10^9), median. Not known where few data came.
    pub client_cpu_s_per_gb: Option<f64>,
    /// CPU of sshd, which is known of a private server only.
    pub server_cpu_s_per_gb: Option<f64>,
    /// Why there are no figures.
    pub failure: Option<String>,
}

impl Figures {
    /// Faster by a tenth, and in each round faster than the other in all of its own: what is less
    /// is not worth an option.
    #[must_use]
    pub fn clearly_faster(&self, than: &Figures) -> bool {
        self.slowest_bytes_per_s > than.fastest_bytes_per_s
            && self.bytes_per_s >= 1.1 * than.bytes_per_s
    }

    /// CPU of both sides as far as it is known.
    #[must_use]
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        self.client_cpu_s_per_gb.map(|client| client + self.server_cpu_s_per_gb.unwrap_or(0.0))
    }
}

/// One way to send data.
pub(super) struct Trial<'a> {
    /// For the reader.
    pub(super) name: String,
    /// One for each stream.
    pub(super) commands: Box<dyn Fn() -> Vec<Command> + 'a>,
    /// Windows that it is given: more for what is slow.
    pub(super) windows: u32,
}

/// CPU of a login and the end of its session, on both sides.
#[derive(Clone, Copy, Debug, Default)]
struct Login {
    client_s: f64,
    server_s: f64,
}

/// Where trials are made.
pub(super) struct Ground<'a> {
    server: &'a Server,
    executor: &'a Executor,
    timing: Timing,
    rounds: usize,
    login: Login,
}

/// Of one trial, round by round.
#[derive(Default)]
struct Rounds {
    bytes_per_s: Vec<f64>,
    client_cpu: Vec<f64>,
    server_cpu: Vec<f64>,
    failure: Option<String>,
}

impl<'a> Ground<'a> {
    /// Finds out what a login costs, which is then left out of all figures.
    pub(super) fn new(
        server: &'a Server,
        executor: &'a Executor,
        timing: Timing,
        rounds: usize,
    ) -> Result<Ground<'a>, Failure> {
        let mut logins = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let before = server.usage();
            let mut ssh = server.ssh(None);
            ssh.arg("true");
            logins.0.push(cpu_s(executor.succeed(ssh, LIMIT)?.usage));
            logins.1.extend(since(before, server.usage()));
        }
        let median = |values: &[f64]| stats::median(values).unwrap_or(0.0);
        let login = Login { client_s: median(&logins.0), server_s: median(&logins.1) };
        Ok(Ground { server, executor, timing, rounds, login })
    }

    /// Tries all in turn. What fails has no figures, and why; an interrupt ends all.
    pub(super) fn compare(&self, trials: &[Trial<'_>]) -> Result<Vec<Figures>, Failure> {
        let mut tried: Vec<Rounds> = trials.iter().map(|_| Rounds::default()).collect();
        for round in 0..self.rounds {
            for turn in 0..trials.len() {
                let at = (round + turn) % trials.len();
                if tried[at].failure.is_some() {
                    continue;
                }
                match self.once(&trials[at], &mut tried[at]) {
                    Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                    Err(failure) => tried[at].failure = Some(failure.to_string()),
                    Ok(()) => (),
                }
            }
        }
        Ok(trials.iter().zip(tried).map(|(trial, rounds)| rounds.figures(&trial.name)).collect())
    }

    fn once(&self, trial: &Trial<'_>, rounds: &mut Rounds) -> Result<(), Failure> {
        let commands = (trial.commands)();
        let logins = commands.len() as f64;
        let window = self.timing.window * trial.windows;
        let before = self.server.usage();
        let flow = flow(commands, Timing { window, ..self.timing }, self.executor)?;
        let server_s = since(before, self.server.usage());
        rounds.bytes_per_s.push(flow.bytes_per_s);
        let per_gb = |all_s: f64, login_s: f64| {
            let (data_s, logins_s) = (all_s - login_s * logins, login_s * logins);
            let known = flow.bytes >= BYTES_FOR_CPU && data_s >= LOGINS_FOR_CPU * logins_s;
            known.then(|| data_s / (flow.bytes as f64 / 1e9))
        };
        rounds.client_cpu.extend(per_gb(cpu_s(flow.usage), self.login.client_s));
        rounds.server_cpu.extend(server_s.and_then(|all_s| per_gb(all_s, self.login.server_s)));
        Ok(())
    }
}

impl Rounds {
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

fn cpu_s(usage: Usage) -> f64 {
    usage.user_s + usage.system_s
}

fn since(before: Option<Usage>, after: Option<Usage>) -> Option<f64> {
    Some(cpu_s(account::since(&before?, &after?)))
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
        // 1000 bytes each 10 ms at most; what the machine is late by makes it less, not more,
        // but for what is read late in one piece.
        let slow = "while head -c 1000 /dev/zero; do sleep 0.01; done";
        let flow = flow(vec![sh(slow), sh(slow)], TIMING, &Executor::new()).unwrap();
        assert!(flow.bytes_per_s > 0.0 && flow.bytes_per_s <= 300_000.0, "{flow:?}");
        // What came before and after the window does not count.
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
