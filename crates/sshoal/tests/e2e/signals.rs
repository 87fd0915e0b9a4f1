//! Signals at programs that use a mount: those that end them, and those that must not be noticed.
//!
//! What is decided when is in `fuse`'s table tests; here are programs, a kernel and a server.

mod timers;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::faults::Caller;
use crate::process::{run_within, succeed};
use crate::world::{World, is_big_run};

/// Within this time a program that handles a signal has to be free of a server that is silent. A5 says
/// two seconds; a busy machine takes longer.
const HANDLED: Duration = Duration::from_secs(6);

/// A5: a child that ends while the shell looks for a file.
#[test]
fn a_shell_with_background_jobs_takes_the_right_branch() {
    let world = World::new();
    let rounds = if is_big_run() { 3_000 } else { 300 };
    for number in 1..=rounds {
        fs::write(world.served(format!("f{number}")), "x").unwrap();
    }
    let mount = world.mount(&["-o", "dir_cache=no"]);
    let script = "cd \"$1\"; miss=0; for i in $(seq $2); do sleep 0.001 & \
                  [ -f f$i ] || miss=$((miss+1)); done; wait; echo $miss";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).arg(mount.place()).arg(rounds.to_string());
    assert_eq!(succeed(&mut bash), "0\n");
}

/// A5: the kernel reports only the first signal, and it is not the one that ends the process.
#[test]
fn a_signal_that_ends_a_program_is_noticed_after_one_that_does_not() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    let mount = world.mount(&["-o", "dir_cache=no"]);
    for call in ["stat \"$ARGV[0]/f\"", "mkdir \"$ARGV[0]/d\""] {
        for signal in [Signal::KILL, Signal::TERM] {
            let script = format!("$SIG{{ALRM}} = sub {{}}; ready; {call}; print \"over\\n\"");
            let mut caller = Caller::start(&script, &mount.at("dir"));
            world.sshd().stop();
            caller.block();
            caller.process.signal(Signal::ALARM);
            let early = caller.process.try_wait(Duration::from_millis(1_500));
            assert_eq!(early, None, "{call}: it goes on");
            eprintln!("{call}, {signal:?}: {:?}", caller.end_by(signal));
            world.sshd().cont();
            let _ = fs::remove_dir(world.served("dir/d"));
        }
    }
}

/// A5: a program that handles the signal is freed from a silent server, unless it could not know
/// what its call has changed.
#[test]
fn a_program_that_handles_its_end_is_freed_from_a_silent_server() {
    let world = World::new();
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&["-o", "dir_cache=no"]);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let name = format!("{signal:?}");
        let name = name.trim_start_matches("Signal(").trim_end_matches(')').to_owned();
        let handlers = "$SIG{$_} = sub { exit 3 } for qw(INT TERM HUP QUIT);";
        let script = format!("{handlers} ready; stat $ARGV[0]; print \"over\\n\"");
        let mut caller = Caller::start(&script, &mount.at("file"));
        world.sshd().stop();
        caller.block();
        let begun = Instant::now();
        caller.process.signal(signal);
        assert_eq!(caller.process.wait(HANDLED).code(), Some(3), "{name}");
        eprintln!("{name}: {:?}", begun.elapsed());
        world.sshd().cont();
    }
    // A change goes on, and ends as it would have without. One by a name would begin with a
    // look-up, which changes nothing.
    let script = "$SIG{INT} = sub { print \"handled\\n\" }; open F, '+<', $ARGV[0] or die; ready; \
                  print chmod(0600, *F) ? \"changed\\n\" : \"$!\\n\"";
    let mut caller = Caller::start(script, &mount.at("file"));
    world.sshd().stop();
    caller.block();
    caller.process.signal(Signal::INT);
    assert_eq!(caller.process.try_wait(HANDLED), None);
    world.sshd().cont();
    let mut lines = [caller.line(), caller.line()];
    lines.sort();
    assert_eq!(lines, ["changed\n", "handled\n"]);
    assert!(caller.process.wait(HANDLED).success());
}

/// A5: while the server answers, a program that handles the signal waits for its call.
#[test]
fn a_program_that_handles_its_end_gets_the_answer_of_a_server_that_is_slow() {
    let world = World::new();
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&["-o", "dir_cache=no"]);
    let script = "$SIG{INT} = sub { print \"handled\\n\" }; ready; \
                  print stat($ARGV[0]) ? \"found\\n\" : \"$!\\n\"";
    let mut caller = Caller::start(script, &mount.at("file"));
    world.sshd().stop();
    caller.block();
    caller.process.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(500));
    world.sshd().cont();
    let mut lines = [caller.line(), caller.line()];
    lines.sort();
    assert_eq!(lines, ["found\n", "handled\n"]);
    assert!(caller.process.wait(HANDLED).success());
}

#[test]
fn timeout_ends_programs_on_a_silent_server() {
    let world = World::new();
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&["-o", "dir_cache=no"]);
    world.sshd().stop();
    for words in [&["1"][..], &["-s", "INT", "1"], &["-s", "KILL", "1"]] {
        let mut command = Command::new("timeout");
        let ended = run_within(HANDLED, command.args(words).arg("cat").arg(mount.at("file")));
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{words:?}: {ended:?}");
    }
    world.sshd().cont();
}
