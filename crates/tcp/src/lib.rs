//! The state of TCP connections as Linux reports it, also of those that another process holds.
//!
//! If the data of a connection is not acknowledged, the link is down, this machine has another
//! address by now, or a firewall has forgotten the connection. The kernel sends the data again for
//! many minutes, also after the process that holds the connection has ended. So the connection must
//! be [discarded](Processes::discard) before its requests are repeated over another one, or they
//! may arrive a second time.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};

/// Attempts to send without an answer after which a connection is cut. The time between them
/// doubles: these take 1.4 s with the shortest one, of 0.2 s.
const ATTEMPTS: u32 = 3;

/// The TCP connections of a process and of its descendants.
#[derive(Debug)]
pub struct Processes {
    pid: Pid,
    handle: OwnedFd,
}

/// A TCP socket of a process.
struct Socket {
    fd: RawFd,
    /// See [`entry`].
    attempts: u32,
}

impl Processes {
    /// A child of this process and its descendants, such as an ssh to a jump host.
    ///
    /// # Errors
    /// The system's; `ESRCH` if the child has been reaped.
    pub fn of_child(pid: u32) -> io::Result<Processes> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Processes { pid, handle: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Whether the child has ended. Until then its number is its own.
    fn has_ended(&self) -> bool {
        let mut handle = [PollFd::new(&self.handle, PollFlags::IN)];
        !matches!(poll(&mut handle, Some(&Timespec::default())), Ok(0))
    }

    /// Whether data does not get through on one of the connections: it was sent again several times
    /// and was not acknowledged. False if that is not known.
    pub fn is_cut(&self) -> bool {
        let all = descendants(self.pid).into_iter().chain([self.pid]);
        let is_cut = all.flat_map(|pid| sockets(&proc_of(pid))).any(|socket| socket.is_cut());
        is_cut && !self.has_ended()
    }

    /// Ends the processes and their connections as far as the system permits. What the connections
    /// have not sent is discarded.
    pub fn discard(&self) {
        let open = |pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        let mut others: Vec<_> = descendants(self.pid).into_iter().filter_map(open).collect();
        // A number that another process has got since is not among them any more.
        let present = descendants(self.pid);
        others.retain(|(pid, _)| present.contains(pid));
        if self.has_ended() {
            return;
        }
        let others = others.iter().map(|(pid, handle)| (*pid, handle));
        for (pid, handle) in others.chain([(self.pid, &self.handle)]) {
            for socket in sockets(&proc_of(pid)) {
                if let Ok(socket) = pidfd_getfd(handle, socket.fd, PidfdGetfdFlags::empty()) {
                    discard_at_close(socket);
                }
            }
            // An error means that it has ended.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

impl Socket {
    fn is_cut(&self) -> bool {
        self.attempts >= ATTEMPTS
    }
}

/// As [`Processes::is_cut`], of a connection of this process.
pub fn is_cut(socket: BorrowedFd<'_>) -> bool {
    let all = sockets("/proc/self");
    all.iter().any(|it| it.fd == socket.as_raw_fd() && it.is_cut())
}

/// What the connection has not sent is discarded when its last descriptor is closed.
pub fn discard_at_close(socket: impl AsFd) {
    // An error means that there is no connection any more.
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn proc_of(pid: Pid) -> String {
    format!("/proc/{}", pid.as_raw_nonzero())
}

/// Those whose parents have one thread, as ssh does.
fn descendants(pid: Pid) -> Vec<Pid> {
    let (mut all, mut next) = (Vec::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        let number = pid.as_raw_nonzero();
        let listed = fs::read_to_string(format!("/proc/{number}/task/{number}/children"));
        let children = listed.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|it| Pid::from_raw(it.parse().ok()?));
        // A number that was given again could make a circle.
        let new: Vec<_> = children.filter(|pid| !all.contains(pid)).collect();
        all.extend(&new);
        next.extend(new);
    }
    all
}

/// The TCP sockets of a process with this directory below `/proc`.
fn sockets(proc: &str) -> Vec<Socket> {
    let held = held(&Path::new(proc).join("fd")).unwrap_or_default();
    let table = |name| fs::read_to_string(format!("{proc}/net/{name}")).unwrap_or_default();
    let mut found = Vec::new();
    if !held.is_empty() {
        for table in [table("tcp"), table("tcp6")] {
            for (inode, attempts) in table.lines().skip(1).filter_map(entry) {
                let of_inode = held.iter().filter(|(_, it)| *it == inode);
                found.extend(of_inode.map(|(fd, _)| Socket { fd: *fd, attempts }));
            }
        }
    }
    found
}

/// The sockets of a process: descriptors and inodes.
fn held(dir: &Path) -> io::Result<Vec<(RawFd, u64)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let inode = target.to_str().and_then(|it| it.strip_prefix("socket:[")?.strip_suffix(']'));
        let inode = inode.and_then(|inode| inode.parse().ok());
        let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
        all.extend(fd.zip(inode));
    }
    Ok(all)
}

/// Of a line of `/proc/net/tcp`: the inode, and how often data was sent again, or the other side
/// was asked whether it takes data, since it last acknowledged anything.
fn entry(line: &str) -> Option<(u64, u32)> {
    // sl, local, remote, state, queues, timer, retransmissions, uid, probes, inode
    let fields: Vec<_> = line.split_whitespace().collect();
    let (timer, _) = fields.get(5)?.split_once(':')?;
    let attempts = match timer {
        "01" => u32::from_str_radix(fields.get(6)?, 16).ok()?,
        // Also when nothing could be sent, since the own address of the connection is gone.
        "04" => fields.get(8)?.parse().ok()?,
        _ => 0,
    };
    Some((fields.get(9)?.parse().ok()?, attempts))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn an_entry_of_the_kernels_table() {
        let line = "   1: 0A00000A:A2C6 0A000001:0016 01 00000030:00000000 01:0000012C 00000004     \
                    0        0 41873 2 ffff8881 20 4 30 10 -1";
        assert_eq!(entry(line), Some((41873, 4)));
        let line = line.replace("00000004     0        0", "00000000     0        5");
        assert_eq!(entry(&line), Some((41873, 0)));
        assert_eq!(entry(&line.replace(" 01:0000012C", " 04:0000012C")), Some((41873, 5)));
        // The timer of keep-alive messages.
        assert_eq!(entry(&line.replace(" 01:0000012C", " 02:0000012C")), Some((41873, 0)));
        assert_eq!(entry("no entry"), None);
    }

    #[test]
    fn the_connections_of_a_process_and_its_child() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        // A descriptor for the child's child alone.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "exec 3<&0; sleep 60 <&3 & wait"])
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut child = shell.spawn().unwrap();
        let processes = Processes::of_child(child.id()).unwrap();
        let pid = Pid::from_child(&child);
        let all = || descendants(pid).into_iter().chain([pid]);
        let holders = || all().filter(|pid| !sockets(&proc_of(*pid)).is_empty()).count();
        while holders() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!processes.is_cut() && !is_cut(ours.as_fd()));
        drop(shell);
        processes.discard();
        child.wait().unwrap();
        // Ended without a farewell, since nothing that was sent may arrive.
        let end = io::Read::read(&mut &ours, &mut [0]).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    }
}
