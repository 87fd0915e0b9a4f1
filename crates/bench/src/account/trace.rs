//! CPU of single processes over time, sampled by a thread while a step runs.
//!
//! A look reads `/proc` of the processes of the run alone, and costs 20 us for each of them. What a
//! process has used between the last look at it and its end is not seen.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::results::{CpuTrace, ProcessTrace};

use super::{listed, own_cpu_s, read};

/// Between two looks. Shorter ones would cost more than a percent of a CPU.
const INTERVAL: Duration = Duration::from_millis(250);

/// Intervals that are kept. With twice as many, each two become one.
const KEPT: usize = 240;

/// Series that are kept: many more than a subject has programs.
const SERIES: usize = 24;

/// Samples until it is ended or dropped.
pub(crate) struct Tracer {
    stop: Sender<()>,
    thread: JoinHandle<CpuTrace>,
}

/// The processes of one side.
type Side = (&'static str, Vec<u32>);

impl Tracer {
    /// Begins to sample the processes of both sides with all below them. Other children of this
    /// process are of the side `program`.
    pub(crate) fn start(
        client: Vec<u32>,
        server: Vec<u32>,
        program: &'static str,
    ) -> io::Result<Tracer> {
        let (stop, stopped) = mpsc::channel();
        let sides = [("server", server), ("client", client), (program, vec![std::process::id()])];
        let mut trace = Trace::new(sides);
        let sample = move || loop {
            let is_last = !matches!(stopped.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout));
            if is_last && !trace.is_due() {
                break trace.finished();
            }
            trace.look();
            if is_last {
                break trace.finished();
            }
        };
        let thread = thread::Builder::new().name("cpu trace".to_owned()).spawn(sample)?;
        Ok(Tracer { stop, thread })
    }

    /// Ends it.
    pub(crate) fn end(self) -> CpuTrace {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

/// What was seen so far.
struct Trace {
    begun: Instant,
    sides: [Side; 3],
    /// CPU seconds of each process at the last look, by process and its start.
    seen: HashMap<(u32, u64), f64>,
    at_s: Vec<f64>,
    /// CPU seconds in each interval.
    series: Vec<(&'static str, String, Vec<f64>)>,
}

impl Trace {
    /// Of processes that have used what they have used before it.
    fn new(sides: [Side; 3]) -> Trace {
        let mut trace = Trace {
            begun: Instant::now(),
            sides,
            seen: HashMap::new(),
            at_s: Vec::new(),
            series: Vec::new(),
        };
        trace.deltas();
        trace
    }

    /// Whether a last look would be of more than a moment.
    fn is_due(&self) -> bool {
        let last_s = self.at_s.last().copied().unwrap_or(0.0);
        let since_s = self.begun.elapsed().as_secs_f64() - last_s;
        self.at_s.is_empty() || since_s > INTERVAL.as_secs_f64() / 2.0
    }

    /// CPU seconds of each name since the last look.
    fn deltas(&mut self) -> Vec<(&'static str, String, f64)> {
        let mut found = Vec::new();
        let own = std::process::id();
        let mut met = HashSet::from([own]);
        for (side, roots) in &self.sides {
            for pid in roots.iter().flat_map(|&root| listed(root)) {
                if !met.insert(pid) {
                    continue;
                }
                let Some(stat) = read(pid).and_then(|process| process.stat().ok()) else {
                    continue;
                };
                let own_s = own_cpu_s(&stat);
                let before = self.seen.insert((pid, stat.starttime), own_s);
                found.push((*side, stat.comm, (own_s - before.unwrap_or(0.0)).max(0.0)));
            }
        }
        found
    }

    fn look(&mut self) {
        let deltas = self.deltas();
        let now_s = self.begun.elapsed().as_secs_f64();
        let intervals = self.at_s.len();
        self.at_s.push(now_s);
        self.series.iter_mut().for_each(|(_, _, cpu_s)| cpu_s.push(0.0));
        for (side, name, cpu_s) in deltas {
            let number = self.series.iter().position(|(of, it, _)| *of == side && *it == name);
            let number = match number {
                Some(number) => number,
                None if cpu_s > 0.0 && self.series.len() < SERIES => {
                    self.series.push((side, name, vec![0.0; intervals + 1]));
                    self.series.len() - 1
                }
                None => continue,
            };
            self.series[number].2[intervals] += cpu_s;
        }
        if self.at_s.len() >= 2 * KEPT {
            self.halve();
        }
    }

    /// Makes one interval of each two.
    fn halve(&mut self) {
        self.at_s = self.at_s.chunks(2).map(|two| two[two.len() - 1]).collect();
        for (_, _, cpu_s) in &mut self.series {
            *cpu_s = cpu_s.chunks(2).map(|two| two.iter().sum()).collect();
        }
    }

    fn finished(mut self) -> CpuTrace {
        while self.at_s.len() > KEPT {
            self.halve();
        }
        let thousandths = |value: f64| (value * 1e3).round() / 1e3;
        let begins = std::iter::once(0.0).chain(self.at_s.iter().copied());
        let lengths: Vec<f64> = begins.zip(&self.at_s).map(|(begin, end)| end - begin).collect();
        let processes = self.series.into_iter().map(|(side, process, cpu_s)| {
            let cpus = cpu_s.iter().zip(&lengths);
            let cpus = cpus.map(|(cpu_s, length)| thousandths(cpu_s / length.max(1e-3)));
            ProcessTrace { side: side.to_owned(), process, cpus: cpus.collect() }
        });
        CpuTrace {
            processes: processes.collect(),
            at_s: self.at_s.into_iter().map(thousandths).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::process::{Command, Stdio};

    #[test]
    fn a_busy_child_is_seen_by_its_name_and_ended_processes_are_not() {
        let mut busy = Command::new("sh");
        busy.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        let mut busy = busy.spawn().unwrap();
        let tracer = Tracer::start(vec![busy.id()], Vec::new(), "application").unwrap();
        // Until it has used more than one interval of CPU.
        while super::super::tree_usage(&[busy.id()]).user_s < 0.6 {
            std::thread::yield_now();
        }
        let trace = tracer.end();
        busy.kill().unwrap();
        busy.wait().unwrap();
        let shell = trace.processes.iter().find(|it| it.side == "client").expect("the shell");
        assert!(["sh", "dash", "bash"].contains(&shell.process.as_str()), "{shell:?}");
        assert_eq!(shell.cpus.len(), trace.at_s.len());
        assert!(shell.cpus.iter().any(|&cpus| cpus > 0.1), "{shell:?}");
        assert!(shell.cpus.iter().all(|&cpus| cpus < 1.5), "{shell:?}");
    }

    #[test]
    fn a_long_step_has_a_bounded_trace_with_the_same_cpu() {
        let mut trace =
            Trace::new([("client", vec![]), ("server", vec![]), ("application", vec![])]);
        trace.series.push(("client", "ssh".to_owned(), vec![0.125; KEPT + 1]));
        trace.at_s = (1..=KEPT + 1).map(|nth| nth as f64 * 0.25).collect();
        let trace = trace.finished();
        assert_eq!(trace.at_s.len(), (KEPT + 1).div_ceil(2));
        assert!(trace.processes[0].cpus.iter().all(|&cpus| cpus == 0.5), "{trace:?}");
    }
}
