//! The rate of data through one or more ssh commands, and their CPU.
//!
//! Bytes are counted in a window that begins when all streams carry data and TCP has grown its
//! congestion window, so the logins are not in the rate. Trials that are compared run in turn, in
//! an order that rotates from round to round.

use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::account;
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::results::Usage;
use crate::server::Server;
use crate::stats;
use crate::step::ServerMeter;
use crate::storage::script;
use crate::worker::Connection;

/// Longest time to the first byte of a stream, and to the next.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval of the looks at what was counted.
const LOOK: Duration = Duration::from_millis(20);

/// With fewer bytes than this, the CPU for a gigabyte is mostly that of the sampling.
const BYTES_FOR_CPU: u64 = 20_000_000;

/// Print zeros, or a file again and again, until the reader closes the pipe.
const ZEROS: &str = "exec cat /dev/zero";
const REPEAT: &str = r#"while cat -- "$1"; do :; done"#;

/// When bytes are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// From the moment in which all streams carry data to the start of the window.
    warm: Duration,
    window: Duration,
}

impl Timing {
    /// For a link with this round trip; `window` is the length without one. TCP begins with 14 KB
    /// in flight and doubles that each round trip: after eight it has the 2 MiB that ssh allows.
    pub(super) fn of(rtt: Duration, window: Duration) -> Timing {
        Timing { warm: Duration::from_millis(150) + rtt * 8, window: window + rtt * 3 }
    }
}

/// One setting to measure.
pub(super) struct Trial {
    pub(super) name: String,
    pub(super) cipher: String,
    /// Sessions at the same time, each with a connection of its own.
    pub(super) connections: u32,
    /// A file at the server, which is sent compressed; `None` for zeros, not compressed: no cipher
    /// is faster for certain data.
    pub(super) text: Option<PathBuf>,
}

impl Trial {
    /// The settings have precedence over the user's.
    fn command(&self, server: &Server) -> Command {
        let compression = if self.text.is_some() { "yes" } else { "no" };
        let mut words = vec![OsString::from("ssh")];
        words.extend(server.ssh_options(Some(&self.cipher)));
        words.extend(["-o".into(), format!("Compression={compression}").into()]);
        words.push(server.destination().into());
        match &self.text {
            Some(path) => script::command(Some(&words), REPEAT, &[path.as_os_str()]),
            None => script::command(Some(&words), ZEROS, &[]),
        }
    }
}

/// Data through all streams of one trial in one round.
#[derive(Clone, Copy, Debug)]
struct Flow {
    bytes: u64,
    seconds: f64,
    client: Usage,
    server: Option<Usage>,
}

/// Runs commands that print without end at the same time, and counts what they print.
fn flow(commands: Vec<Command>, timing: Timing, server: &dyn ServerMeter) -> Result<Flow> {
    let mut streams = Vec::new();
    for mut command in commands {
        command.process_group(0);
        let connection = Connection::start(command)?;
        connection.stream.set_read_timeout(Some(PATIENCE))?;
        streams.push(connection);
    }
    for connection in &mut streams {
        if let Err(error) = connection.stream.read_exact(&mut [0]) {
            return Err(connection.failure(&error));
        }
    }
    let pids: Vec<u32> = streams.iter().map(Connection::pid).collect();
    let counts: Vec<AtomicU64> = streams.iter().map(|_| AtomicU64::new(0)).collect();
    let look = || {
        let bytes: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        (Instant::now(), bytes, account::tree_usage(&pids), server.usage())
    };
    let ended = &AtomicBool::new(false);
    let (before, after) = thread::scope(|scope| {
        for (connection, count) in streams.iter().zip(&counts) {
            scope.spawn(move || {
                let (mut stream, mut buffer) = (&connection.stream, vec![0; 256 << 10]);
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    count.fetch_add(read as u64, Ordering::SeqCst);
                }
                ended.store(true, Ordering::SeqCst);
            });
        }
        thread::sleep(timing.warm);
        let before = look();
        thread::sleep(timing.window);
        // A reader that waits for a processor makes the window longer.
        let mut after = look();
        while !after.1.iter().zip(&before.1).all(|(now, before)| now > before)
            && !ended.load(Ordering::SeqCst)
            && after.0 - before.0 < PATIENCE
        {
            thread::sleep(LOOK);
            after = look();
        }
        // The readers end, and then the commands.
        streams.iter().for_each(|it| drop(it.stream.shutdown(Shutdown::Both)));
        (before, after)
    });
    let moved: Vec<u64> = after.1.iter().zip(&before.1).map(|(now, before)| now - before).collect();
    if let Some(silent) = moved.iter().position(|&bytes| bytes == 0) {
        return Err(streams[silent].failure(&ErrorKind::TimedOut.into()));
    }
    streams.iter_mut().for_each(Connection::kill);
    Ok(Flow {
        bytes: moved.iter().sum(),
        seconds: (after.0 - before.0).as_secs_f64(),
        client: account::since(&before.2, &after.2),
        server: before.3.zip(after.3).map(|(before, after)| account::since(&before, &after)),
    })
}

/// The rates of one trial over all rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// What was tried: a cipher, a number of connections.
    pub(super) name: String,
    pub(super) connections: u32,
    /// Median of the rounds; 0 if it failed.
    pub(super) bytes_per_s: f64,
    pub(super) slowest_bytes_per_s: f64,
    pub(super) fastest_bytes_per_s: f64,
    /// CPU seconds of ssh on the client for a gigabyte (10^9), median. `None` for too few data.
    pub(super) client_cpu_s_per_gb: Option<f64>,
    /// CPU seconds of sshd; known for a private server only.
    pub(super) server_cpu_s_per_gb: Option<f64>,
    /// Why there are no figures.
    pub(super) failure: Option<String>,
}

impl Figures {
    /// Whether the median is faster by a tenth and every round is faster than all of the other's.
    /// A smaller gain is not worth an option.
    pub(super) fn clearly_faster(&self, than: &Figures) -> bool {
        self.slowest_bytes_per_s > than.fastest_bytes_per_s
            && self.bytes_per_s >= 1.1 * than.bytes_per_s
    }

    /// CPU of both sides, as far as it is known.
    pub(super) fn cpu_s_per_gb(&self) -> Option<f64> {
        self.client_cpu_s_per_gb.map(|client| client + self.server_cpu_s_per_gb.unwrap_or(0.0))
    }

    fn of(trial: &Trial, rounds: &[Result<Flow>]) -> Figures {
        let figures = Figures {
            name: trial.name.clone(),
            connections: trial.connections,
            ..Figures::default()
        };
        if let Some(failure) = rounds.iter().find_map(|round| round.as_ref().err()) {
            return Figures { failure: Some(failure.to_string()), ..figures };
        }
        let flows = || rounds.iter().flatten();
        let rates: Vec<f64> = flows().map(|flow| flow.bytes as f64 / flow.seconds).collect();
        let spread = stats::Spread::of(&rates).unwrap_or_default();
        let cpu = |side: fn(&Flow) -> Option<Usage>| {
            let measured = flows().filter(|flow| flow.bytes >= BYTES_FOR_CPU);
            let costs = measured.filter_map(|flow| {
                let usage = side(flow)?;
                Some((usage.user_s + usage.system_s) / (flow.bytes as f64 / 1e9))
            });
            stats::median(&costs.collect::<Vec<_>>())
        };
        Figures {
            bytes_per_s: spread.median,
            slowest_bytes_per_s: spread.min,
            fastest_bytes_per_s: spread.max,
            client_cpu_s_per_gb: cpu(|flow| Some(flow.client)),
            server_cpu_s_per_gb: cpu(|flow| flow.server),
            ..figures
        }
    }
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
    let mut flows: Vec<Vec<Result<Flow>>> = trials.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..trials.len() {
            let at = (round + turn) % trials.len();
            let (trial, flows) = (&trials[at], &mut flows[at]);
            if executor.is_interrupted() {
                return Err(Failure::Interrupted);
            }
            if flows.last().is_some_and(Result::is_err) {
                continue;
            }
            // Compression is slow.
            let windows = if trial.text.is_some() { 3 } else { 1 };
            let timing = Timing { window: timing.window * windows, ..timing };
            let commands = (0..trial.connections).map(|_| trial.command(server)).collect();
            flows.push(flow(commands, timing, server));
        }
    }
    Ok(trials.iter().zip(&flows).map(|(trial, flows)| Figures::of(trial, flows)).collect())
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
        let flow = flow(vec![sh(slow), sh(slow)], TIMING, &()).unwrap();
        assert!(flow.bytes > 0 && flow.seconds >= 0.2, "{flow:?}");
        assert_eq!(flow.server, None);
    }

    #[test]
    fn a_stream_that_ends_says_why() {
        let endless = || sh("exec cat /dev/zero");
        let ending = sh("echo data; echo the reason >&2; exit 3");
        let failure = flow(vec![endless(), ending], TIMING, &()).unwrap_err();
        assert!(failure.to_string().contains("the reason"), "{failure}");
        let silent = sh("echo refused >&2; exit 255");
        let failure = flow(vec![silent, endless()], TIMING, &()).unwrap_err();
        assert!(failure.to_string().contains("refused"), "{failure}");
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
        let trial =
            Trial { name: String::new(), cipher: String::new(), connections: 1, text: None };
        let flow = Flow { bytes: 1, seconds: 1.0, client: Usage::default(), server: None };
        let figures = Figures::of(&trial, &[Ok(flow), Err(Failure::failed("cut"))]);
        assert_eq!((figures.bytes_per_s, figures.failure.as_deref()), (0.0, Some("cut")));
    }
}
