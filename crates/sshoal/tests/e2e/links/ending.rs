//! Processes that end, or become another program, while what they have written is held up by a
//! link that is away; and those that go on, and want to know.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Line, Outage, SECOND, SOON};
use crate::faults::Caller;
use crate::mount::Mount;
use crate::process::{eventually, succeed};

/// Within this time a process has to be gone that waits for nothing: much more than it takes, and
/// nothing to one that waits for the link.
const PROMPT: Duration = Duration::from_secs(10);

/// What each writer writes: fits into what is taken without an answer.
pub(super) const BYTES: usize = 100_000;

pub(super) const OUTAGES: [Outage; 2] = [Outage::Cut, Outage::Stall];

/// Opens the file; writes when it is told to.
const WRITE: &str = "open F, '>', $ARGV[0] or die; ready; syswrite F, 'x' x 100_000 or die;";

/// A writer whose data is held up by an outage. Dropped in this order: whoever looks at all
/// processes waits for one that waits for the mount to become another program.
pub(super) struct HeldUp {
    pub(super) writer: Caller,
    pub(super) mount: Mount,
    pub(super) line: Line,
    outage: Outage,
    /// Where the kernel tells how many of its requests have no answer.
    unanswered: PathBuf,
}

impl HeldUp {
    /// `then` is what it does after it has written, in perl.
    pub(super) fn new(outage: Outage, then: &str) -> HeldUp {
        let line = Line::new(None);
        fs::write(line.served("file"), "before").unwrap();
        let mount = line.mount(&[]);
        let connection = rustix::fs::minor(fs::metadata(mount.place()).unwrap().dev());
        let unanswered = format!("/sys/fs/fuse/connections/{connection}/waiting").into();
        let mut writer = Caller::start(&format!("{WRITE} {then}"), &mount.at("file"));
        line.break_it(outage);
        writer.go();
        HeldUp { writer, mount, line, outage, unanswered }
    }

    /// How many requests of the kernel have no answer. The kernel shows that in the file system
    /// fusectl, which no one need have mounted: a namespace of its own has it for the moment.
    fn unanswered(&self) -> String {
        const SHOW: &str = "grep -q ' fusectl ' /proc/mounts || \
            mount -t fusectl fusectl /sys/fs/fuse/connections; cat \"$0\"";
        let namespace = ["-m", "--propagation", "private", "sh", "-ec", SHOW];
        succeed(Command::new("unshare").args(namespace).arg(&self.unanswered))
    }

    /// The caller waits, and goes on with it until a signal ends him.
    #[track_caller]
    fn ends_by(mut self, signal: Signal) {
        self.writer.block();
        let outage = self.outage;
        assert_eq!(self.writer.process.try_wait(3 * SECOND), None, "{outage:?}: it waits");
        let writer = std::mem::replace(&mut self.writer, Caller::start("ready", Path::new("/")));
        let took = writer.end_by(signal);
        eprintln!("{outage:?}, {signal:?}: {took:?}");
        self.arrives();
    }

    /// Mends the link; what was written has to arrive.
    #[track_caller]
    fn arrives(self) {
        assert_eq!(fs::metadata(self.line.served("file")).unwrap().len(), 0, "held up until now");
        self.line.mend(self.outage);
        let file = self.line.served("file");
        eventually(SOON, "what was written arrives", || {
            fs::read(&file).unwrap() == vec![b'x'; BYTES]
        });
        drop(self.writer);
        self.line.assert_nothing_leaked(&self.mount, 8);
        self.mount.unmount();
    }
}

/// A5: and no thread of the kernel is kept waiting in its stead.
#[test]
fn a_writer_that_is_killed_is_gone_at_once() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a namespace with fusectl takes root");
        return;
    }
    for (outage, signal) in [
        (Outage::Cut, Signal::KILL),
        (Outage::Cut, Signal::TERM),
        (Outage::Stall, Signal::KILL),
        (Outage::Stall, Signal::TERM),
    ] {
        let mut held = HeldUp::new(outage, "print \"written\\n\"; sleep");
        assert_eq!(held.writer.line(), "written\n");
        held.writer.process.signal(signal);
        held.writer.process.wait(2 * SECOND);
        let deadline = Instant::now() + PROMPT;
        while held.unanswered() != "0\n" {
            assert!(Instant::now() < deadline, "{outage:?}, {signal:?}: the kernel waits");
            std::thread::sleep(Duration::from_millis(100));
        }
        held.arrives();
    }
}

/// A5
#[test]
fn a_writer_that_ends_without_closing_is_gone_soon() {
    for outage in OUTAGES {
        let mut held = HeldUp::new(outage, "use POSIX; POSIX::_exit(7)");
        assert_eq!(held.writer.process.wait(PROMPT).code(), Some(7), "{outage:?}");
        held.arrives();
    }
}

/// A program that is started does not wait for what it has inherited and may not keep; nor does
/// anybody who looks at its process meanwhile.
#[test]
fn exec_does_not_wait_for_unwritten_data() {
    for outage in OUTAGES {
        let mut held = HeldUp::new(outage, "exec 'echo', 'started'");
        assert!(held.writer.process.wait(PROMPT).success());
        assert_eq!(held.writer.line(), "started\n");
        held.arrives();
    }
}

/// So it is with one that is started by the writer, who keeps the file open.
#[test]
fn a_writer_can_start_programs() {
    for outage in OUTAGES {
        let then = "print `ps -e -o comm= | grep -c perl` > 0 ? \"started\\n\" : \"\"; sleep";
        let mut held = HeldUp::new(outage, then);
        assert_eq!(held.writer.line(), "started\n");
        held.writer.process.signal(Signal::KILL);
        held.writer.process.wait(PROMPT);
        held.arrives();
    }
}

/// A3 and A5: who goes on waits until he can be told, unless he has had enough of it.
#[test]
fn a_close_waits_for_its_result_and_is_freed_by_a_signal() {
    for outage in OUTAGES {
        for signal in [Signal::INT, Signal::KILL] {
            HeldUp::new(outage, "close F; die 'closed'").ends_by(signal);
        }
    }
}

/// A5: so it is with a caller who wants it on the disk.
#[test]
fn an_fsync_is_freed_by_a_signal() {
    for outage in OUTAGES {
        for signal in [Signal::INT, Signal::KILL] {
            let sync = "use IO::Handle; F->sync; die 'synced'";
            HeldUp::new(outage, sync).ends_by(signal);
        }
    }
}

/// A3: what was written by who goes on after a signal arrives.
#[test]
fn a_close_with_a_handler_is_interrupted() {
    for outage in OUTAGES {
        // Perl's own `close` does it once more.
        let then = "use POSIX; $SIG{INT} = sub {}; POSIX::close(fileno F); \
                    print $! + 0, \"\\n\"; sleep";
        let mut held = HeldUp::new(outage, then);
        held.writer.block();
        held.writer.process.signal(Signal::INT);
        assert_eq!(held.writer.line(), format!("{}\n", libc::EINTR));
        held.arrives();
    }
}

/// A3: who waits long enough is told.
#[test]
fn a_close_that_waits_ends_well_when_the_link_is_back() {
    for outage in OUTAGES {
        let mut held = HeldUp::new(outage, "close F or die; print \"closed\\n\"; sleep");
        held.writer.block();
        held.line.mend(outage);
        assert_eq!(held.writer.line(), "closed\n");
        assert_eq!(fs::read(held.line.served("file")).unwrap(), vec![b'x'; BYTES]);
    }
}
