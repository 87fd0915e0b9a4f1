//! Files of `/proc`, parsed (proc_pid_stat(5), proc_pid_status(5)).

use std::fs;

use crate::results::Usage;

/// What is of interest in `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stat {
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// In ticks since the system's start; with the number it names a process for good.
    pub(super) started: u64,
    pub(super) user_s: f64,
    pub(super) system_s: f64,
    /// Of children that have ended and were waited for, and theirs.
    pub(super) children_user_s: f64,
    pub(super) children_system_s: f64,
}

impl Stat {
    pub(super) fn read(pid: u32) -> Option<Stat> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&text), rustix::param::clock_ticks_per_second())
    }

    /// `pid (name) state parent …`; the name may have spaces and parentheses in it. utime is the
    /// 14th field, then stime, cutime, cstime; the start is the 22nd.
    pub(super) fn parse(text: &str, ticks_per_s: u64) -> Option<Stat> {
        let (pid, rest) = text.split_once(" (")?;
        let (_, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The first of these is the third of the line.
        let field = |number: usize| fields.get(number - 3).copied();
        let seconds =
            |number| Some(field(number)?.parse::<u64>().ok()? as f64 / ticks_per_s as f64);
        Some(Stat {
            pid: pid.parse().ok()?,
            parent: field(4)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
            user_s: seconds(14)?,
            system_s: seconds(15)?,
            children_user_s: seconds(16)?,
            children_system_s: seconds(17)?,
        })
    }

    /// Whether it is still that process, and has waited for no child since.
    pub(super) fn stands(&self) -> bool {
        Stat::read(self.pid).is_some_and(|now| {
            now.started == self.started
                && now.children_user_s == self.children_user_s
                && now.children_system_s == self.children_system_s
        })
    }
}

/// What is of interest in `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// `VmHWM`; a process without memory (a zombie) has none.
    pub(super) peak_bytes: u64,
    /// Of one thread.
    pub(super) context_switches: u64,
}

impl Status {
    pub(super) fn read(pid: u32) -> Option<Status> {
        fs::read(format!("/proc/{pid}/status")).ok().map(|text| Status::parse(&text))
    }

    pub(super) fn read_thread(pid: u32, thread: u32) -> Option<Status> {
        let path = format!("/proc/{pid}/task/{thread}/status");
        fs::read(path).ok().map(|text| Status::parse(&text))
    }

    /// Lines `Key:\tvalue`; a field that is not there is 0.
    pub(super) fn parse(text: &[u8]) -> Status {
        let text = String::from_utf8_lossy(text);
        let mut status = Status::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let number = value.split_ascii_whitespace().next().and_then(|text| text.parse().ok());
            match (key, number) {
                ("VmHWM", Some(kib)) => status.peak_bytes = 1024_u64.saturating_mul(kib),
                ("voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches", Some(number)) => {
                    status.context_switches = status.context_switches.saturating_add(number);
                }
                _ => (),
            }
        }
        status
    }
}

/// What all children of this process have used that have ended and were waited for, and theirs.
/// Memory is not in it.
pub(crate) fn cpu_seconds_of_children() -> Option<Usage> {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
    Some(Usage {
        user_s: seconds(usage.user_time()),
        system_s: seconds(usage.system_time()),
        peak_memory_bytes: 0,
        context_switches: u64::try_from(switches).unwrap_or(0),
    })
}
