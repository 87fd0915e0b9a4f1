//! What the process that waits for a reply is doing, as far as `/proc` tells.
//!
//! The kernel sends an INTERRUPT for whoever gets a signal while he waits. A process that ends has
//! no use for signals any more, so it gets none; and one that becomes another program closes what
//! the new one may not keep, in a moment at which tools that look at all processes wait for it.
//! Neither is ever told what comes of such a close. Who has to keep a caller waiting can ask here
//! whether there still is somebody to be told.
//!
//! Most files of `/proc` that tell more make their reader wait while a process becomes another
//! program, `stat` among them in newer kernels; who reads one of these would wait for himself. So
//! `statm` is read first, which takes no lock of the process, and `stat` only of one that has no
//! memory: it is past all that. Both are read on a thread of their own all the same.

pub(crate) mod signals;

use std::io;

use crate::operation::Context;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// It runs, as far as can be seen, and gets an INTERRUPT for a signal.
    Running,
    /// It becomes another program: past the point where that can fail, before the new one runs.
    Executing,
    /// It ends by itself.
    Ending,
    /// A signal ends it.
    Killed,
    /// It is a thread of the kernel, which some versions of Linux have close the files of who ends.
    /// No process waits for it.
    Kernel,
    /// Nothing can be said: it is not visible from the mount's pid namespace, or `/proc` does not
    /// show it.
    Unknown,
}

/// Bits of the flags in `/proc/PID/stat` (`PF_*` of the kernel's `sched.h`).
mod flag {
    /// It ends.
    pub(super) const EXITING: u64 = 0x4;
    /// A signal has ended it.
    pub(super) const SIGNALED: u64 = 0x400;
    /// It is a thread of the kernel.
    pub(super) const KTHREAD: u64 = 0x20_0000;
}

/// Where the flags are in `/proc/PID/stat`, counted from the state, which comes behind the name.
const FLAGS: usize = 6;

/// What a process has in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// It has no memory: it ends, or it is a thread of the kernel.
    None,
    /// Nothing that could run.
    NoProgram,
    Program,
}

impl Context {
    /// What the caller is doing now. To be asked of a request that has to wait, while it waits; it
    /// is not for the way of one that does not.
    ///
    /// Where the mount was made in another pid namespace than this process is in, it may be somebody
    /// else that is looked at.
    pub async fn caller(&self) -> Caller {
        let pid = self.pid;
        if pid == 0 {
            return Caller::Unknown;
        }
        // The number of a thread, which `/proc` knows as it knows those of processes.
        let look = tokio::task::spawn_blocking(move || {
            told(|file| std::fs::read(format!("/proc/{pid}/{file}")))
        });
        look.await.ok().flatten().unwrap_or(Caller::Unknown)
    }
}

/// What the files of a process tell.
fn told(read: impl Fn(&str) -> io::Result<Vec<u8>>) -> Option<Caller> {
    match memory(&read("statm").ok()?)? {
        Memory::Program => Some(Caller::Running),
        Memory::NoProgram => Some(Caller::Executing),
        Memory::None => without_memory(&read("stat").ok()?),
    }
}

/// What the content of `/proc/PID/statm` tells.
fn memory(statm: &[u8]) -> Option<Memory> {
    let mut fields = std::str::from_utf8(statm).ok()?.split_ascii_whitespace();
    let pages: u64 = fields.next()?.parse().ok()?;
    let code_pages: u64 = fields.nth(2)?.parse().ok()?;
    Some(match (pages, code_pages) {
        (0, _) => Memory::None,
        (_, 0) => Memory::NoProgram,
        _ => Memory::Program,
    })
}

/// What the content of `/proc/PID/stat` tells of a process that has no memory.
fn without_memory(stat: &[u8]) -> Option<Caller> {
    // The name may have anything in it, also parentheses.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let flags: u64 = rest.split_ascii_whitespace().nth(FLAGS)?.parse().ok()?;
    Some(if flags & flag::KTHREAD != 0 {
        Caller::Kernel
    } else if flags & flag::EXITING == 0 {
        Caller::Unknown
    } else if flags & flag::SIGNALED != 0 {
        Caller::Killed
    } else {
        Caller::Ending
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a process with files like these.
    fn of(statm: &str, name: &str, flags: u64) -> Option<Caller> {
        told(|file| match file {
            "statm" => Ok(statm.as_bytes().to_vec()),
            "stat" => Ok(stat(name, flags)),
            other => panic!("{other} is read"),
        })
    }

    /// A line as the kernel writes it, of a process without memory.
    fn stat(name: &str, flags: u64) -> Vec<u8> {
        format!(
            "4711 ({name}) S 1 4711 4711 0 -1 {flags} 120 0 3 0 1 2 0 0 20 0 1 0 99881 0 0 \
             18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 17 1 0 0 0\n"
        )
        .into_bytes()
    }

    const NO_MEMORY: &str = "0 0 0 0 0 0 0\n";

    /// `PF_RANDOMIZE`, as every process has it.
    const PLAIN: u64 = 0x40_0000;

    #[test]
    fn a_process_that_ends_has_no_memory_and_says_so() {
        assert_eq!(of(NO_MEMORY, "cat", PLAIN | flag::EXITING), Some(Caller::Ending));
        let killed = PLAIN | flag::EXITING | flag::SIGNALED;
        assert_eq!(of(NO_MEMORY, "cat", killed), Some(Caller::Killed));
        // What has been killed is not killed until it ends.
        assert_eq!(of(NO_MEMORY, "cat", PLAIN | flag::SIGNALED), Some(Caller::Unknown));
    }

    #[test]
    fn a_thread_of_the_kernel_is_one_whatever_else_it_is() {
        let flags = flag::KTHREAD | 0x40 | 0x20;
        assert_eq!(of(NO_MEMORY, "kworker/0:2+events", flags), Some(Caller::Kernel));
        assert_eq!(of(NO_MEMORY, "kworker/0:2", flags | flag::EXITING), Some(Caller::Kernel));
    }

    #[test]
    fn whoever_has_memory_is_not_looked_at_any_closer() {
        // It would have to wait for one that becomes another program.
        let of = |statm: &str| {
            told(|file| match file {
                "statm" => Ok(statm.as_bytes().to_vec()),
                other => panic!("{other} is read"),
            })
        };
        assert_eq!(of("708 412 380 5 0 104 0\n"), Some(Caller::Running));
        assert_eq!(of("34 4 3 0 0 33 0\n"), Some(Caller::Executing));
    }

    #[test]
    fn names_are_not_taken_for_numbers() {
        let flags = PLAIN | flag::EXITING;
        for name in ["a) R 1 1 1 1 1 0 1", "(", ")", "", "a b\nc", ") S 0 0 0 0 0 2097152"] {
            assert_eq!(of(NO_MEMORY, name, flags), Some(Caller::Ending), "{name:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_tells_nothing() {
        let whole = stat("cat", PLAIN | flag::EXITING);
        for len in 0..30 {
            assert_eq!(without_memory(&whole[..len]), None, "{len}");
        }
        assert_eq!(without_memory(b"1 (cat) S x x x x x x"), None);
        assert_eq!(without_memory(&[0xff; 100]), None);
        // Short, but enough.
        assert_eq!(without_memory(b"1 (cat) S 1 1 1 1 1 4"), Some(Caller::Ending));
        for statm in ["", "\n", "1", "1 2 3", "a 2 3 4", "1 2 3 x", "-1 2 3 4"] {
            assert_eq!(memory(statm.as_bytes()), None, "{statm:?}");
        }
        assert_eq!(told(|_| Err(io::ErrorKind::NotFound.into())), None);
    }

    #[tokio::test]
    async fn this_process_runs_and_no_process_is_unknown() {
        let context = |pid| Context { uid: 0, gid: 0, pid, unique: 2 };
        assert_eq!(context(std::process::id()).caller().await, Caller::Running);
        assert_eq!(context(0).caller().await, Caller::Unknown);
        // Larger than any the kernel gives.
        assert_eq!(context(u32::MAX).caller().await, Caller::Unknown);
    }

    #[tokio::test]
    async fn a_zombie_was_killed() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let context = Context { uid: 0, gid: 0, pid: child.id(), unique: 2 };
        child.kill().unwrap();
        while matches!(context.caller().await, Caller::Running | Caller::Executing) {
            tokio::task::yield_now().await;
        }
        assert_eq!(context.caller().await, Caller::Killed);
        child.wait().unwrap();
    }
}
