//! CPU, memory and context switches of processes, from `/proc`.
//!
//! Invariants:
//! 1. The usage of an ended process is in that of the parent that waited for it (`cutime`,
//!    `cstime`), so short-lived children of a server are counted.
//! 2. A process that ends during a look at its tree is no error. The tree is then read again,
//!    or the process would be counted twice or not at all.
//!
//! CPU of a living process comes from its CPU clock, in nanoseconds. `/proc/PID/stat` has it in
//! ticks of 10 ms, too coarse for a step of 50 ms; it supplies the division into user and system
//! time, and the usage of ended children. Not counted: context switches of ended threads and
//! processes, and CPU of processes that no process of the tree has waited for.

mod trace;

use std::collections::HashSet;
use std::fs;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::ClockId;
use procfs::process::{Process, Stat};
use sandbox::sshd::with_descendants;

use crate::results::Usage;

pub(crate) use trace::Tracer;

/// Looks at a tree until it does not change.
const ATTEMPTS: usize = 5;

/// Bound of the processes that are followed, against a loop in `/proc` while it changes.
const MOST: usize = 10_000;

/// The usage of some processes and their descendants since they began. Processes that do not
/// exist have none; each process is counted once. The peak of memory is the sum of the peaks of
/// the living processes, since their beginning or the last [`forget_peak`].
pub fn tree_usage(pids: &[u32]) -> Usage {
    let mut usage = Usage::default();
    for _ in 0..ATTEMPTS {
        let members = with_descendants(|stat| pids.contains(&stat.pid.cast_unsigned()));
        usage = members.iter().map(usage_of).fold(Usage::default(), plus);
        if members.iter().all(is_unchanged) {
            break;
        }
    }
    usage
}

/// The usage from `before` to `after`, never negative; the peak of memory is that of `after`.
pub fn since(before: &Usage, after: &Usage) -> Usage {
    Usage {
        user_s: (after.user_s - before.user_s).max(0.0),
        system_s: (after.system_s - before.system_s).max(0.0),
        peak_memory_bytes: after.peak_memory_bytes,
        context_switches: after.context_switches.saturating_sub(before.context_switches),
    }
}

/// The sum of two periods of the same processes.
pub fn after(one: Usage, other: Usage) -> Usage {
    Usage {
        peak_memory_bytes: one.peak_memory_bytes.max(other.peak_memory_bytes),
        ..plus(one, other)
    }
}

/// The sum of processes that run at the same time.
pub fn plus(one: Usage, other: Usage) -> Usage {
    Usage {
        user_s: one.user_s + other.user_s,
        system_s: one.system_s + other.system_s,
        peak_memory_bytes: one.peak_memory_bytes + other.peak_memory_bytes,
        context_switches: one.context_switches + other.context_switches,
    }
}

/// Resets the peaks of memory of some processes and their descendants, where that is permitted.
pub fn forget_peak(pids: &[u32]) {
    for member in with_descendants(|stat| pids.contains(&stat.pid.cast_unsigned())) {
        // proc(5): 5 resets VmHWM.
        let _ = fs::write(format!("/proc/{}/clear_refs", member.pid), "5");
    }
}

/// A daemon that leads its process group, first, the members of the group, and the descendants of
/// all. sshfs starts ssh as a process of its group of which it is not the parent.
pub(crate) fn family(daemon: u32) -> Vec<u32> {
    let daemon = daemon.cast_signed();
    let members = with_descendants(|stat| stat.pid == daemon || stat.pgrp == daemon);
    let mut pids: Vec<u32> = members.iter().map(|stat| stat.pid.cast_unsigned()).collect();
    pids.sort_by_key(|&pid| (pid != daemon.cast_unsigned(), pid));
    pids
}

/// Sum of the peaks of a process and its descendants. It follows the kernel's lists of children,
/// which may miss a new one, and so is cheap enough for a look during a measurement.
pub(crate) fn peak_memory_bytes(pid: u32) -> u64 {
    listed(pid).into_iter().map(peak_of).sum()
}

/// Usage of all ended children of this process that were waited for; without memory.
pub(crate) fn cpu_seconds_of_children() -> Option<Usage> {
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

fn read(pid: u32) -> Option<Process> {
    Process::new(pid.cast_signed()).ok()
}

/// A process and its descendants, by the lists of children.
fn listed(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([pid]);
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        found.push(pid);
        let tasks = read(pid).and_then(|process| process.tasks().ok());
        let children =
            tasks.into_iter().flatten().flatten().filter_map(|task| task.children().ok());
        open.extend(children.flatten().filter(|&child| seen.len() < MOST && seen.insert(child)));
    }
    found
}

/// `VmHWM`; a process without memory (a zombie) has none.
fn peak_of(pid: u32) -> u64 {
    let status = read(pid).and_then(|process| process.status().ok());
    status.and_then(|status| status.vmhwm).map_or(0, |kib| kib.saturating_mul(1024))
}

/// Whether it is the same process, and has waited for no child since.
fn is_unchanged(stat: &Stat) -> bool {
    let now = read(stat.pid.cast_unsigned()).and_then(|process| process.stat().ok());
    now.is_some_and(|now| {
        let key = |stat: &Stat| (stat.starttime, stat.cutime, stat.cstime);
        key(&now) == key(stat)
    })
}

/// CPU of a process without its children.
fn own_cpu_s(stat: &Stat) -> f64 {
    let ticked_s = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    cpu_clock_s(stat.pid).unwrap_or(ticked_s)
}

fn usage_of(stat: &Stat) -> Usage {
    let seconds = |ticks: f64| ticks / procfs::ticks_per_second() as f64;
    let (user_s, system_s) = (seconds(stat.utime as f64), seconds(stat.stime as f64));
    let ticked = user_s + system_s;
    let (user_s, system_s) = match cpu_clock_s(stat.pid) {
        Some(total) if ticked > 0.0 => (total * user_s / ticked, total * system_s / ticked),
        // Less than a tick of each: the division is not known.
        Some(total) => (total, 0.0),
        None => (user_s, system_s),
    };
    let pid = stat.pid.cast_unsigned();
    let tasks = read(pid).and_then(|process| process.tasks().ok()).into_iter().flatten().flatten();
    let switches = tasks.filter_map(|task| task.status().ok()).map(|status| {
        let counts = [status.voluntary_ctxt_switches, status.nonvoluntary_ctxt_switches];
        counts.into_iter().flatten().sum::<u64>()
    });
    Usage {
        user_s: user_s + seconds(stat.cutime as f64),
        system_s: system_s + seconds(stat.cstime as f64),
        peak_memory_bytes: peak_of(pid),
        context_switches: switches.sum(),
    }
}

/// CPU of all threads of a process so far. `None` when it has ended.
fn cpu_clock_s(pid: i32) -> Option<f64> {
    let now = ClockId::pid_cpu_clock_id(nix::unistd::Pid::from_raw(pid)).ok()?.now().ok()?;
    Some(now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9)
}

#[cfg(test)]
mod tests;
