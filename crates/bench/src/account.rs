//! What processes have used: CPU, memory, context switches, by `/proc`.
//!
//! Invariants:
//! 1. A process that has ended counts with whoever has waited for it (`cutime`, `cstime`), so
//!    that a server's short-lived children are not lost.
//! 2. That a process ends while it is looked at is no error; the tree is then looked at again,
//!    or it would be counted twice or not at all.
//!
//! CPU of a living process comes from its CPU clock, in nanoseconds. `/proc/PID/stat` has it in
//! ticks of 10 ms, too coarse for a step that takes 50; it says how much of it was the kernel's,
//! and what ended children have used. What is lost: context switches of threads and processes
//! that have ended, and CPU of processes that nobody of the tree has waited for.

mod proc;
mod tree;

use std::fs;

use nix::time::ClockId;

use crate::results::Usage;
use proc::{Stat, Status};

pub(crate) use proc::cpu_seconds_of_children;

/// How often a tree is looked at until it stands still.
const ATTEMPTS: usize = 5;

/// What the processes, and all below them, have used since they began.
///
/// Processes that do not exist count as nothing. A process that is named, and is below another
/// one that is, counts once. The peak of memory is the sum of those of the living ones, since
/// their beginning or the last [`forget_peak`].
#[must_use]
pub fn tree_usage(pids: &[u32]) -> Usage {
    let mut usage = Usage::default();
    for _ in 0..ATTEMPTS {
        let members = tree::with_descendants(pids);
        usage = members.iter().map(usage_of).fold(Usage::default(), plus);
        if members.iter().all(Stat::stands) {
            break;
        }
    }
    usage
}

/// What was used from `before` to `after`; the peak of memory is that of `after`.
///
/// Processes that ended without having been waited for make `after` the smaller one; then it is
/// nothing, not less.
#[must_use]
pub fn since(before: &Usage, after: &Usage) -> Usage {
    Usage {
        user_s: (after.user_s - before.user_s).max(0.0),
        system_s: (after.system_s - before.system_s).max(0.0),
        peak_memory_bytes: after.peak_memory_bytes,
        context_switches: after.context_switches.saturating_sub(before.context_switches),
    }
}

/// One after the other, by the same processes.
#[must_use]
pub fn after(one: Usage, other: Usage) -> Usage {
    Usage {
        peak_memory_bytes: one.peak_memory_bytes.max(other.peak_memory_bytes),
        ..plus(one, other)
    }
}

/// Both together, running at the same time.
#[must_use]
pub fn plus(one: Usage, other: Usage) -> Usage {
    Usage {
        user_s: one.user_s + other.user_s,
        system_s: one.system_s + other.system_s,
        peak_memory_bytes: one.peak_memory_bytes + other.peak_memory_bytes,
        context_switches: one.context_switches + other.context_switches,
    }
}

/// Lets the peaks of memory of the processes, and all below them, begin anew at what they use
/// now. Where that is not permitted, they stay as they are.
pub fn forget_peak(pids: &[u32]) {
    for member in tree::with_descendants(pids) {
        // proc(5): 5 resets VmHWM.
        let _ = fs::write(format!("/proc/{}/clear_refs", member.pid), "5");
    }
}

/// Sum of the peaks of a process and those below it, cheap enough to be asked for while something
/// is measured: it follows the lists of children, which may miss one that is just being born.
#[must_use]
pub(crate) fn peak_memory_bytes(pid: u32) -> u64 {
    tree::listed(pid).into_iter().filter_map(Status::read).map(|status| status.peak_bytes).sum()
}

fn usage_of(stat: &Stat) -> Usage {
    let (user_s, system_s) = own_cpu(stat);
    Usage {
        user_s: user_s + stat.children_user_s,
        system_s: system_s + stat.children_system_s,
        peak_memory_bytes: Status::read(stat.pid).map_or(0, |status| status.peak_bytes),
        context_switches: tree::threads(stat.pid)
            .into_iter()
            .filter_map(|thread| Status::read_thread(stat.pid, thread))
            .map(|status| status.context_switches)
            .sum(),
    }
}

/// The process's own CPU in user mode and in the kernel, seconds: its CPU clock, divided as
/// `stat` divides it.
fn own_cpu(stat: &Stat) -> (f64, f64) {
    let ticked = stat.user_s + stat.system_s;
    match cpu_clock_s(stat.pid) {
        Some(total) if ticked > 0.0 => {
            (total * stat.user_s / ticked, total * stat.system_s / ticked)
        }
        // Less than a tick of each: nobody knows how much of it was the kernel's.
        Some(total) => (total, 0.0),
        None => (stat.user_s, stat.system_s),
    }
}

/// All CPU of all its threads so far. `None` when it is gone.
fn cpu_clock_s(pid: u32) -> Option<f64> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).ok()?);
    let now = ClockId::pid_cpu_clock_id(pid).ok()?.now().ok()?;
    Some(now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9)
}

#[cfg(test)]
mod tests;
