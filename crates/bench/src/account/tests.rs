use super::*;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

#[test]
fn a_name_may_look_like_the_rest_of_the_line() {
    let line = "12 (a) S 1 (b)) S 34 1 1 0 -1 4 1 0 0 0 150 25 300 75 20 0 1 0 5678 1 2\n";
    let stat = Stat::parse(line, 100).unwrap();
    assert_eq!((stat.pid, stat.parent, stat.started), (12, 34, 5678));
    assert_eq!((stat.user_s, stat.system_s), (1.5, 0.25));
    assert_eq!((stat.children_user_s, stat.children_system_s), (3.0, 0.75));
    for torn in ["", "12 (x", "12 (x) S 34", "12 (x) S y 1 1 0 -1 4 1 0 0 0 1 2 3 4 20 0 1 0 5 1"] {
        assert_eq!(Stat::parse(torn, 100), None, "{torn:?}");
    }
}

#[test]
fn peak_and_switches_are_read_from_status() {
    let text = b"Name:\tssh VmHWM: 1\nUmask:\t0022\nVmPeak:\t   99999 kB\nVmHWM:\t    7812 kB\n\
        voluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
    assert_eq!(Status::parse(text), Status { peak_bytes: 7812 * 1024, context_switches: 42 });
    assert_eq!(Status::parse(b"Name:\tgone\nState:\tZ (zombie)\n"), Status::default());
}

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
    let listed = tree::listed(child.id());
    let [outer, inner, cat] = listed[..] else { panic!("{listed:?}") };
    let peak = |pids: &[u32]| tree_usage(pids).peak_memory_bytes;
    let own = |pid| Status::read(pid).unwrap().peak_bytes;
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
