//! The pending signals of a caller, from `/proc/TID/status`.
//!
//! The kernel sends one INTERRUPT for the first signal of any kind, and none for a SIGKILL that
//! follows. So an INTERRUPT is a reason to check the caller's signals, and to repeat the check
//! while the caller waits.
//!
//! A signal that ends a process is not delivered while its thread waits for a reply: it stays
//! pending. For most of these signals the kernel also makes SIGKILL pending for each thread of the
//! process, except for signals that dump core, and except if a debugger is attached.

use std::io::{self, ErrorKind};

/// What the signals of a caller require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    /// One of them ends the process: it never sees the result of the call.
    Fatal,
    /// One of them requests the end of the process, and has a handler.
    Terminating,
    /// Only signals that programs handle and continue: a child has ended, a timer has expired, the
    /// window was resized.
    Handled,
    /// None of them, or only signals that reach no handler: the process is to be stopped.
    Other,
    /// The signals are not readable: the caller is in another pid namespace, or `/proc` hides it.
    Unreadable,
}

/// A set of signals in the form of `/proc`: signal N is bit N - 1.
const fn set(signals: &[i32]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < signals.len() {
        bits |= 1 << (signals[at] - 1);
        at += 1;
    }
    bits
}

const KILL: u64 = set(&[libc::SIGKILL]);

/// Signals by which users and service managers request the end of a process.
const TERMINATION: u64 = set(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]);

/// Signals that do not end a process by default: they are ignored, or they stop it (signal(7)).
const HARMLESS: u64 = set(&[
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
]);

impl Signals {
    /// The signals of the thread `tid`. Reads `/proc`, so it must not be called on a thread that
    /// must not block.
    pub(crate) fn of(tid: u32) -> Signals {
        if tid == 0 {
            return Signals::Unreadable;
        }
        Signals::of_file(std::fs::read(format!("/proc/{tid}/status")))
    }

    /// The signals shown by a `status` file.
    fn of_file(status: io::Result<Vec<u8>>) -> Signals {
        match status {
            Ok(status) => Signals::parse(&status).unwrap_or(Signals::Unreadable),
            Err(error) if is_hidden(&error) => Signals::Unreadable,
            // Such as too many open files of this process. It says nothing about the caller, which
            // is checked again.
            Err(_) => Signals::Other,
        }
    }

    /// Parses the content of a `status` file.
    fn parse(status: &[u8]) -> Option<Signals> {
        let (mut pending, mut blocked, mut ignored, mut caught) = (None, None, None, None);
        let (mut shared, mut tracer) = (None, None);
        for line in status.split(|byte| *byte == b'\n') {
            // The name of the program comes first, with its newlines escaped.
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (field, radix) = match &line[..colon] {
                b"TracerPid" => (&mut tracer, 10),
                b"SigPnd" => (&mut pending, 16),
                b"ShdPnd" => (&mut shared, 16),
                b"SigBlk" => (&mut blocked, 16),
                b"SigIgn" => (&mut ignored, 16),
                b"SigCgt" => (&mut caught, 16),
                _ => continue,
            };
            let number = std::str::from_utf8(&line[colon + 1..]).ok()?.trim();
            *field = Some(u64::from_str_radix(number, radix).ok()?);
        }
        let pending = pending? | shared?;
        if pending & KILL != 0 {
            return Some(Signals::Fatal);
        }
        let (caught, is_traced) = (caught?, tracer? != 0);
        let taken = pending & !blocked? & !ignored?;
        let ends = taken & !caught & !HARMLESS != 0;
        let handled = taken & caught;
        let asks = handled & TERMINATION != 0;
        Some(match (ends, is_traced, asks) {
            (true, false, _) => Signals::Fatal,
            // The debugger decides whether the process gets the signal.
            (true, true, _) | (_, _, true) => Signals::Terminating,
            _ if handled != 0 => Signals::Handled,
            _ => Signals::Other,
        })
    }
}

/// Whether an error of `/proc` means that it does not show the thread.
fn is_hidden(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
        || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of a file as the kernel writes it.
    fn status(pending: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tSigPnd: ffff\\nx\nState:\tD (disk sleep)\nTgid:\t10\nPid:\t11\nTracerPid:\t0\n\
             Threads:\t2\nSigQ:\t1/95906\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n\
             CapInh:\t0000000000000000\n"
        )
    }

    fn of(pending: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> Signals {
        Signals::parse(status(pending, shared, blocked, ignored, caught).as_bytes()).unwrap()
    }

    #[test]
    fn signals_are_classified_by_what_they_do_to_the_caller() {
        use libc::*;
        let all = u64::MAX;
        // SIGKILL dominates all others; the kernel makes it pending for a fatal SIGINT.
        assert_eq!(of(KILL, set(&[SIGINT]), 0, 0, 0), Signals::Fatal);
        assert_eq!(of(0, KILL, all, 0, all), Signals::Fatal);
        assert_eq!(of(KILL, set(&[SIGALRM]), 0, 0, set(&[SIGALRM])), Signals::Fatal);
        for signal in 1..=64 {
            let one = set(&[signal]);
            if signal == SIGKILL {
                continue;
            }
            // With the default action, pending for the thread or for the process.
            let by_default = if HARMLESS & one != 0 { Signals::Other } else { Signals::Fatal };
            assert_eq!(of(one, 0, 0, 0, 0), by_default, "{signal}");
            assert_eq!(of(0, one, 0, 0, 0), by_default, "{signal}");
            // With a handler.
            let termination = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal);
            let caught = if termination { Signals::Terminating } else { Signals::Handled };
            assert_eq!(of(0, one, 0, 0, one), caught, "{signal}");
            assert_eq!(of(one, set(&[SIGCHLD]), 0, 0, all), caught, "{signal}");
            // Blocked, or ignored.
            assert_eq!(of(one, one, one, 0, 0), Signals::Other, "{signal}");
            assert_eq!(of(one, one, 0, one, 0), Signals::Other, "{signal}");
        }
        assert_eq!(of(0, 0, 0, 0, 0), Signals::Other);
        assert_eq!(of(0, set(&[SIGINT, SIGUSR1]), 0, 0, set(&[SIGINT])), Signals::Fatal);
    }

    #[test]
    fn a_debugger_decides_about_signals_but_sigkill() {
        let traced = |pending| {
            let status = status(0, pending, 0, 0, 0).replace("TracerPid:\t0", "TracerPid:\t7");
            Signals::parse(status.as_bytes()).unwrap()
        };
        assert_eq!(traced(set(&[libc::SIGINT])), Signals::Terminating);
        assert_eq!(traced(set(&[libc::SIGTRAP])), Signals::Terminating);
        assert_eq!(traced(KILL), Signals::Fatal);
        assert_eq!(traced(set(&[libc::SIGCHLD])), Signals::Other);
    }

    /// Out of descriptors, a call that changes something must not fail because of any signal.
    #[test]
    fn only_an_error_about_the_thread_hides_its_signals() {
        for (error, signals) in [
            (libc::ENOENT, Signals::Unreadable),
            (libc::EPERM, Signals::Unreadable),
            (libc::EACCES, Signals::Unreadable),
            (libc::ESRCH, Signals::Unreadable),
            (libc::EMFILE, Signals::Other),
            (libc::ENFILE, Signals::Other),
            (libc::ENOMEM, Signals::Other),
        ] {
            let error = io::Error::from_raw_os_error(error);
            assert_eq!(Signals::of_file(Err(error)), signals);
        }
    }

    #[test]
    fn other_content_is_unreadable() {
        let whole = status(0, KILL, 0, 0, 0);
        for line in whole.lines().filter(|line| line.starts_with("Sig")) {
            let (_, value) = line.split_once(':').unwrap();
            let broken = whole.replace(line, &line.replace(value, "\tzz"));
            if !line.starts_with("SigQ") {
                assert_eq!(Signals::parse(broken.as_bytes()), None, "{line}");
            }
        }
        assert_eq!(Signals::parse(b""), None);
        assert_eq!(Signals::parse(&[0xff; 100]), None);
        assert_eq!(Signals::of(0), Signals::Unreadable);
        assert_eq!(Signals::of(u32::MAX), Signals::Unreadable);
        assert_eq!(Signals::of(std::process::id()), Signals::Other);
    }
}
