//! The processors, for each of which the kernel has a queue.

use std::{fs, io};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Ranges of the processors that the machine may ever have, such as `0-3`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Number of processors that the machine may ever have.
pub(super) fn possible() -> io::Result<u16> {
    let list = fs::read_to_string(POSSIBLE)?;
    count(&list).ok_or_else(|| io::Error::other(format!("{POSSIBLE} has no list of processors")))
}

fn count(list: &str) -> Option<u16> {
    let counts = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    counts.sum()
}

/// Moves this thread to a processor, where it is woken fastest. Without effect if the processor is
/// offline, or if this process may not use it.
pub(super) fn pin(cpu: usize) {
    let may_use = sched_getaffinity(None).is_ok_and(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
    if may_use {
        let mut only = CpuSet::new();
        only.set(cpu);
        let _ = sched_setaffinity(None, &only);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3\n"), Some(4));
        assert_eq!(count("0,2-3,8-15\n"), Some(11));
        for wrong in ["", "\n", "x", "3-1", "0-", "0-65535"] {
            assert_eq!(count(wrong), None, "{wrong:?}");
        }
        assert!(possible().map_or(true, |count| count > 0));
    }

    #[test]
    fn a_thread_stays_on_its_processor() {
        let ran = std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let cpu = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).unwrap();
            pin(cpu);
            let now = sched_getaffinity(None).unwrap();
            pin(CpuSet::MAX_CPU);
            (now.count(), now.is_set(cpu), sched_getaffinity(None).unwrap() == now)
        });
        assert_eq!(ran.join().unwrap(), (1, true, true));
    }
}
