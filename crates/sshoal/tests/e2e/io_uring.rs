//! Mounts whose requests come through io_uring, where the kernel offers that.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::applications::tree;
use crate::behaviours::pattern;
use crate::enabled;
use crate::faults::Caller;
use crate::mount::umount;
use crate::process::succeed;
use crate::world::World;

#[test]
fn a_tree_is_copied_out_and_in() {
    let Some(_enabled) = enabled::io_uring("a_tree_is_copied_out_and_in") else { return };
    let world = World::new();
    tree::make(&world.served("tree"));
    fs::write(world.served("tree/large"), pattern(20 << 20)).unwrap();
    let mount = world.mount(&["-o", "io_uring=yes"]);
    let (there, out, back) = (mount.at("tree"), world.local("out"), mount.at("back"));
    succeed(Command::new("cp").args(["-a", "--no-preserve=ownership"]).args([&there, &out]));
    succeed(Command::new("diff").args(["-r", "--no-dereference"]).args([&there, &out]));
    succeed(Command::new("cp").args(["-a", "--no-preserve=ownership"]).args([&out, &back]));
    let served = world.served("back");
    succeed(Command::new("diff").args(["-r", "--no-dereference"]).args([&out, &served]));
    mount.unmount();
}

/// A direct read of a place that the mount has not read.
const READ: &str = "use Fcntl; sysopen F, $ARGV[0], O_RDONLY | 040000; ready; \
                    sysseek F, 4 << 20, 0; sysread F, $x, 65536";

#[test]
fn a_killed_caller_is_freed() {
    let Some(_enabled) = enabled::io_uring("a_killed_caller_is_freed") else { return };
    let world = World::new();
    fs::write(world.served("file"), pattern(8 << 20)).unwrap();
    let mount = world.mount(&["-o", "io_uring"]);
    for signal in [Signal::INT, Signal::KILL] {
        let mut reader = Caller::start(READ, &mount.at("file"));
        world.sshd().stop();
        reader.block();
        reader.end_by(signal);
        world.sshd().cont();
        assert!(fs::read(mount.at("file")).unwrap() == pattern(8 << 20));
    }
    mount.unmount();
}

#[test]
fn a_mount_is_detached_and_ended_with_requests_in_flight() {
    let test = "a_mount_is_detached_and_ended_with_requests_in_flight";
    let Some(_enabled) = enabled::io_uring(test) else { return };
    let world = World::new();
    fs::write(world.served("file"), pattern(8 << 20)).unwrap();
    for terminates in [false, true] {
        let mut mount = world.mount(&["-o", "io_uring"]).with_errors();
        let mut reader = Caller::start(READ, &mount.at("file"));
        world.sshd().stop();
        reader.block();
        let detached = umount(&["-z"], mount.place());
        assert!(detached.status.success(), "{detached:?}");
        if terminates {
            mount.daemon().signal(Signal::TERM);
            reader.end_by(Signal::KILL);
            world.sshd().cont();
        } else {
            world.sshd().cont();
            drop(reader);
        }
        assert_eq!(mount.wait_ended(), Some(0));
    }
}

/// No program hangs after the end of a daemon.
#[test]
fn a_killed_daemon_frees_its_callers() {
    let Some(_enabled) = enabled::io_uring("a_killed_daemon_frees_its_callers") else { return };
    let world = World::new();
    fs::write(world.served("file"), pattern(8 << 20)).unwrap();
    let mut mount = world.mount(&["-o", "io_uring"]).with_errors();
    let script = format!("{READ} or print \"$!\\n\"");
    let mut reader = Caller::start(&script, &mount.at("file"));
    world.sshd().stop();
    reader.block();
    mount.daemon().signal(Signal::KILL);
    assert_eq!(mount.wait_ended(), None);
    let answer = reader.line();
    assert!(
        ["Software caused connection abort\n", "Transport endpoint is not connected\n"]
            .contains(&&*answer),
        "{answer}"
    );
    world.sshd().cont();
    succeed(Command::new("fusermount3").args(["-u", "-z"]).arg(mount.place()));
    // It is mounted again at once.
    let mount = world.mount(&["-o", "io_uring"]);
    assert!(fs::read(mount.at("file")).unwrap() == pattern(8 << 20));
    mount.unmount();
}
