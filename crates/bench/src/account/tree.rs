//! Which processes are below which.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use super::proc::Stat;

/// Most processes that are followed, against a loop in what `/proc` says while it changes.
const MOST: usize = 10_000;

/// The living processes named, and all below them, each once.
///
/// It reads all of `/proc`, since the lists of children leave some out while others end
/// (proc_tid_children(5)).
pub(super) fn with_descendants(pids: &[u32]) -> Vec<Stat> {
    let mut all: HashMap<u32, Stat> = HashMap::new();
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for stat in numbers(Path::new("/proc")).into_iter().filter_map(Stat::read) {
        children.entry(stat.parent).or_default().push(stat.pid);
        all.insert(stat.pid, stat);
    }
    let mut found = Vec::new();
    let mut open = pids.to_vec();
    while let Some(pid) = open.pop() {
        // Taken out, so that none counts twice.
        if let Some(stat) = all.remove(&pid) {
            found.push(stat);
            open.extend(children.remove(&pid).unwrap_or_default());
        }
    }
    found
}

/// A process and those below it, by the lists of children.
pub(super) fn listed(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([pid]);
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        found.push(pid);
        for thread in threads(pid) {
            let path = format!("/proc/{pid}/task/{thread}/children");
            let text = fs::read_to_string(path).unwrap_or_default();
            let children = text.split_ascii_whitespace().filter_map(|text| text.parse().ok());
            open.extend(children.filter(|&child| seen.len() < MOST && seen.insert(child)));
        }
    }
    found
}

/// The threads of a process; none when it is gone.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    numbers(Path::new(&format!("/proc/{pid}/task")))
}

/// The entries of a directory that are numbers.
fn numbers(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
