//! Unmounting while what killed writers have written is held up by a link that is away.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use super::ending::{BYTES, HeldUp, OUTAGES};
use super::{Outage, SECOND, SOON};
use crate::mount::Mount;
use crate::process::{Process, eventually};
use crate::world::{is_big_run, program};

/// `sshoal umount`, on its way.
struct Unmounting {
    process: Process,
    errors: PathBuf,
}

impl Unmounting {
    /// The writer is killed, and the mount taken out of the tree.
    fn start(held: &mut HeldUp) -> Unmounting {
        assert_eq!(held.writer.line(), "written\n");
        held.writer.process.signal(Signal::KILL);
        held.writer.process.wait(SOON);
        let errors = held.line.local("umount.stderr");
        let mut command = program();
        command.arg("umount").arg(held.mount.place());
        command.stdin(Stdio::null()).stderr(File::create(&errors).unwrap());
        let process = Process::spawn(&mut command);
        eventually(SOON, "nothing is mounted", || !held.mount.is_mounted());
        Unmounting { process, errors }
    }

    fn words(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }

    /// It says what it waits for, and waits.
    #[track_caller]
    fn waits(&mut self) {
        eventually(SOON, "it tells what it waits for", || {
            assert_eq!(self.process.try_wait(Duration::ZERO), None, "{}", self.words());
            self.words().contains("It gives up")
        });
        assert_eq!(self.process.try_wait(SECOND), None, "{}", self.words());
    }
}

fn held_up(outage: Outage) -> HeldUp {
    HeldUp::new(outage, "print \"written\\n\"; sleep")
}

/// The daemon said so too.
#[track_caller]
fn assert_given_up(mut unmounting: Unmounting, mount: &mut Mount) {
    assert_eq!(unmounting.process.wait(SOON).code(), Some(1), "{}", unmounting.words());
    let words = unmounting.words();
    assert!(words.contains("data was lost: 100,000 bytes"), "{words}");
    assert_eq!(mount.wait_ended(), Some(1));
    let words = mount.words();
    assert!(words.contains("gave up 100,000 bytes that were not written"), "{words}");
}

/// L11
#[test]
fn written_data_arrives_when_the_link_is_back_in_time() {
    for outage in OUTAGES {
        let mut held = held_up(outage);
        let mut unmounting = Unmounting::start(&mut held);
        unmounting.waits();
        held.line.mend(outage);
        assert!(unmounting.process.wait(SOON).success(), "{}", unmounting.words());
        assert_eq!(held.mount.wait_ended(), Some(0));
        assert!(fs::read(held.line.served("file")).unwrap() == vec![b'x'; BYTES]);
    }
}

/// L11: whoever does not want to wait says so by a signal to the process.
#[test]
fn a_signal_ends_the_wait_and_the_loss_is_reported() {
    for outage in OUTAGES {
        let mut held = held_up(outage);
        let mut unmounting = Unmounting::start(&mut held);
        unmounting.waits();
        held.mount.daemon().signal(Signal::TERM);
        assert_given_up(unmounting, &mut held.mount);
        held.line.mend(outage);
    }
}

/// L11
#[test]
fn a_mount_that_is_ended_by_signals_does_not_wait_for_ever() {
    let mut held = held_up(Outage::Cut);
    assert_eq!(held.writer.line(), "written\n");
    held.writer.process.signal(Signal::KILL);
    held.writer.process.wait(SOON);
    held.mount.daemon().signal(Signal::TERM);
    eventually(SOON, "it ends, when it is told once more", || {
        held.mount.daemon().signal(Signal::TERM);
        held.mount.words().contains("interrupted by a signal")
    });
    assert_eq!(held.mount.wait_ended(), Some(1));
    assert!(!held.mount.is_mounted());
    held.line.mend(Outage::Cut);
}

/// L11
#[test]
fn an_unmount_gives_up_by_itself() {
    // It takes most of a minute.
    if !is_big_run() {
        eprintln!("left out without SSHOAL_TEST_BIG=1");
        return;
    }
    let mut held = held_up(Outage::Cut);
    let mut unmounting = Unmounting::start(&mut held);
    unmounting.waits();
    eventually(2 * SOON, "it gives up", || unmounting.words().contains("data was lost"));
    assert_given_up(unmounting, &mut held.mount);
    held.line.mend(Outage::Cut);
}
