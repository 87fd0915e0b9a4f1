//! The processes of a daemon: itself, its group, and all below them.
//!
//! The group counts, since sshfs starts ssh as a process of which it is not the parent.

use std::collections::BTreeSet;
use std::fs;

/// A daemon that leads its process group, and all that belong to it now.
pub(super) fn of(daemon: u32) -> Vec<u32> {
    let all: Vec<Lineage> = everybody();
    let mut family = BTreeSet::from([daemon]);
    family.extend(all.iter().filter(|it| it.group == daemon).map(|it| it.pid));
    loop {
        let below = all.iter().filter(|it| family.contains(&it.parent)).map(|it| it.pid);
        let more: Vec<u32> = below.filter(|pid| !family.contains(pid)).collect();
        if more.is_empty() {
            return family.into_iter().collect();
        }
        family.extend(more);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Lineage {
    pid: u32,
    parent: u32,
    group: u32,
}

fn everybody() -> Vec<Lineage> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// `4711 (a name) S PARENT GROUP …`, where the name may have spaces and parentheses.
fn parse(pid: u32, stat: &[u8]) -> Option<Lineage> {
    let behind_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = str::from_utf8(&stat[behind_name..]).ok()?.split_whitespace().skip(1);
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Lineage { pid, parent, group })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn names_do_not_confuse() {
        let wanted = Lineage { pid: 7, parent: 3, group: 5 };
        assert_eq!(parse(7, b"7 (a) S 1 2 (x) S 3 5 5 0 -1").unwrap(), wanted);
        assert_eq!(parse(7, b"7 (a"), None);
        assert_eq!(parse(7, b"7 (a) S"), None);
    }

    #[test]
    fn a_process_without_its_parent_belongs_to_its_group() {
        // The inner shell ends at once and leaves its child to init.
        let script = "sh -c 'sleep 600 & echo $!'; exec sleep 600";
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdout(Stdio::piped());
        let mut leader = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let orphan: u32 = line.trim().parse().unwrap();
        let family = of(leader.id());
        leader.kill().unwrap();
        leader.wait().unwrap();
        let orphan_pid = rustix::process::Pid::from_raw(orphan.cast_signed()).unwrap();
        rustix::process::kill_process(orphan_pid, rustix::process::Signal::KILL).unwrap();
        assert!(family.contains(&leader.id()) && family.contains(&orphan), "{family:?}");
    }
}
