//! The state of the process that waits for a reply, as shown by `/proc`.
//!
//! The kernel sends an INTERRUPT if a waiting caller gets a signal. It sends none for a process
//! that exits, since an exiting process handles no signals. A process in execve(2) closes its
//! close-on-exec files at a moment at which tools that read the state of all processes wait for it.
//! Neither learns the result of such a close. A file system that has to delay a reply can query
//! here whether any process will see the result.
//!
//! Most files of `/proc` with more details block their reader while the process is in execve(2), in
//! newer kernels also `stat`; a file system that reads one of them would wait for itself. So
//! `statm` is read first, which takes no lock of the process, and `stat` only if the process has no
//! memory: it is then past that point. Both are read on a thread of their own nevertheless.

pub(crate) mod signals;

use std::io;

use crate::operation::Context;

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Running, as far as visible; gets an INTERRUPT for a signal.
    Running,
    /// In execve(2): past the point where that can fail, before the new program runs.
    Executing,
    /// Exiting by itself.
    Ending,
    /// Ended by a signal.
    Killed,
    /// A kernel thread, which closes the files of an exiting process in some versions of Linux. No
    /// process waits for it.
    Kernel,
    /// Unknown: not visible from the mount's pid namespace, or not shown by `/proc`.
    Unknown,
}

/// Bits of the flags in `/proc/PID/stat` (`PF_*` of the kernel's `sched.h`).
mod flag {
    /// The process is exiting.
    pub(super) const EXITING: u64 = 0x4;
    /// The process was ended by a signal.
    pub(super) const SIGNALED: u64 = 0x400;
    /// A kernel thread.
    pub(super) const KTHREAD: u64 = 0x20_0000;
}

/// Index of the flags in `/proc/PID/stat`, counted from the state, which follows the name.
const FLAGS: usize = 6;

/// The memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// No memory: the process is exiting, or it is a kernel thread.
    None,
    /// Memory without a program to run.
    NoProgram,
    Program,
}

impl Context {
    /// The current state of the caller. To be queried while a request waits, not on the path of a
    /// request that does not.
    ///
    /// If the mount was made in another pid namespace than this process is in, the state may be
    /// that of another process.
    pub async fn caller(&self) -> Caller {
        let pid = self.pid;
        if pid == 0 {
            return Caller::Unknown;
        }
        // The number of a thread, which `/proc` accepts as it does that of a process.
        let read = tokio::task::spawn_blocking(move || {
            state_by_files(|file| std::fs::read(format!("/proc/{pid}/{file}")))
        });
        read.await.ok().flatten().unwrap_or(Caller::Unknown)
    }
}

/// The state of a process by its files.
fn state_by_files(read: impl Fn(&str) -> io::Result<Vec<u8>>) -> Option<Caller> {
    match memory(&read("statm").ok()?)? {
        Memory::Program => Some(Caller::Running),
        Memory::NoProgram => Some(Caller::Executing),
        Memory::None => without_memory(&read("stat").ok()?),
    }
}

/// Parses the content of `/proc/PID/statm`.
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

/// Parses the content of `/proc/PID/stat` of a process without memory.
fn without_memory(stat: &[u8]) -> Option<Caller> {
    // The name may contain any bytes, also parentheses.
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

    /// The state of a process with these files.
    fn of(statm: &str, name: &str, flags: u64) -> Option<Caller> {
        state_by_files(|file| match file {
            "statm" => Ok(statm.as_bytes().to_vec()),
            "stat" => Ok(stat(name, flags)),
            other => panic!("{other} is read"),
        })
    }

    /// The line that the kernel writes for a process without memory.
    fn stat(name: &str, flags: u64) -> Vec<u8> {
        format!(
            "4711 ({name}) S 1 4711 4711 0 -1 {flags} 120 0 3 0 1 2 0 0 20 0 1 0 99881 0 0 \
             18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 17 1 0 0 0\n"
        )
        .into_bytes()
    }

    const NO_MEMORY: &str = "0 0 0 0 0 0 0\n";

    /// `PF_RANDOMIZE`, which every process has.
    const PLAIN: u64 = 0x40_0000;

    #[test]
    fn an_exiting_process_has_no_memory() {
        assert_eq!(of(NO_MEMORY, "cat", PLAIN | flag::EXITING), Some(Caller::Ending));
        let killed = PLAIN | flag::EXITING | flag::SIGNALED;
        assert_eq!(of(NO_MEMORY, "cat", killed), Some(Caller::Killed));
        // A process with a pending SIGKILL is not killed before it exits.
        assert_eq!(of(NO_MEMORY, "cat", PLAIN | flag::SIGNALED), Some(Caller::Unknown));
    }

    #[test]
    fn a_kernel_thread_is_recognised_first() {
        let flags = flag::KTHREAD | 0x40 | 0x20;
        assert_eq!(of(NO_MEMORY, "kworker/0:2+events", flags), Some(Caller::Kernel));
        assert_eq!(of(NO_MEMORY, "kworker/0:2", flags | flag::EXITING), Some(Caller::Kernel));
    }

    #[test]
    fn stat_is_not_read_of_a_process_with_memory() {
        // Reading it would block while the process is in execve(2).
        let of = |statm: &str| {
            state_by_files(|file| match file {
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
    fn invalid_content_is_unknown() {
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
        assert_eq!(state_by_files(|_| Err(io::ErrorKind::NotFound.into())), None);
    }

    #[tokio::test]
    async fn this_process_runs_and_no_process_is_unknown() {
        let context = |pid| Context { uid: 0, gid: 0, pid, unique: 2 };
        assert_eq!(context(std::process::id()).caller().await, Caller::Running);
        assert_eq!(context(0).caller().await, Caller::Unknown);
        // Larger than any pid of the kernel.
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
