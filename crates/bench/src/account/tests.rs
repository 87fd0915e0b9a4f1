use super::*;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A shell that does what it reads on its standard input, and says `done` after each line.
fn shell() -> Child {
    let script = "while read -r line; do eval \"$line\"; echo done; done";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn tell(shell: &mut Child, line: &str) {
    writeln!(shell.stdin.as_mut().unwrap(), "{line}").unwrap();
    let mut answer = [0; 5];
    shell.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"done\n");
}

fn end(mut shell: Child) {
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

const BUSY: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";

fn cpu(usage: &Usage) -> f64 {
    usage.user_s + usage.system_s
}

#[test]
fn a_busy_child_counts_after_it_has_ended() {
    let mut shell = shell();
    let before = tree_usage(&[shell.id()]);
    tell(&mut shell, &format!("({BUSY})"));
    let once = since(&before, &tree_usage(&[shell.id()]));
    // The subshell is gone, and was no less busy than this shell will be with the same.
    assert!(cpu(&once) > 0.0, "{once:?}");
    tell(&mut shell, BUSY);
    let both = since(&before, &tree_usage(&[shell.id()]));
    let own = cpu(&both) - cpu(&once);
    assert!(cpu(&once) > own / 5.0 && cpu(&once) < own * 5.0 + 0.05, "{once:?} {both:?}");
    end(shell);
}

#[test]
fn living_grandchildren_count_once_with_their_memory() {
    // Two shells and a cat; when the cat has answered, all three are there.
    let mut command = Command::new("sh");
    command.args(["-c", "sh -c 'cat; :'; :"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let listed = listed(child.id());
    let [outer, inner, cat] = listed[..] else { panic!("{listed:?}") };
    let peak = |pids: &[u32]| tree_usage(pids).peak_memory_bytes;
    let own = peak_of;
    let all = own(outer) + own(inner) + own(cat);
    assert!(all > 300_000, "{all}");
    // The kernel counts pages in batches, so that a figure may still move a little.
    let near = |peak: u64, expected: u64| peak.abs_diff(expected) < all / 10;
    for peak in [peak(&[outer]), peak(&[inner, outer, cat]), peak_memory_bytes(outer)] {
        assert!(near(peak, all), "{peak} {all}");
    }
    assert!(near(peak(&[inner]), own(inner) + own(cat)), "{} {all}", peak(&[inner]));
    end(child);
}

#[test]
fn a_peak_can_be_forgotten() {
    // perl takes 32 MiB and gives them back, then waits.
    let script = "$|=1; my $n = <STDIN>; my $x = 'x' x $n; undef $x; print 'done'; <STDIN>";
    let mut command = Command::new("perl");
    command.args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "{}", 32 << 20).unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let before = tree_usage(&[child.id()]).peak_memory_bytes;
    assert!(before > 32 << 20, "{before}");
    forget_peak(&[child.id()]);
    let after = tree_usage(&[child.id()]).peak_memory_bytes;
    assert!(after < 32 << 20 && after > 0, "{after}");
    end(child);
}

#[test]
fn a_process_that_is_gone_has_used_nothing() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    assert_eq!(tree_usage(&[pid]), Usage::default());
    assert_eq!(tree_usage(&[]), Usage::default());
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
    let family = family(leader.id());
    leader.kill().unwrap();
    leader.wait().unwrap();
    let orphan_pid = rustix::process::Pid::from_raw(orphan.cast_signed()).unwrap();
    rustix::process::kill_process(orphan_pid, rustix::process::Signal::KILL).unwrap();
    assert!(family.contains(&leader.id()) && family.contains(&orphan), "{family:?}");
}
