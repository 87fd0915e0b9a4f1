//! The session without a kernel: a `SOCK_SEQPACKET` socket replaces `/dev/fuse`, and the tests play
//! the kernel.

mod memory;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use fuse::abi::{self, InHeader, OutHeader, Wire, flags, opcode};
use fuse::{Cause, Channel, Config, Device, Error, Session, Stopper};
use memory::{LIMIT, Memory, ROOT};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Largest packet of these tests.
const PACKET: usize = 200_000;

/// The session's side of the socket: rejects replies with an error while one is set.
struct Refusing {
    device: Device,
    refuse: Arc<AtomicI32>,
}

impl AsFd for Refusing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Channel for Refusing {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.device.receive(buffer) {
            // A socket reports this if the other side had not read everything.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            other => other,
        }
    }

    fn send(&self, packet: &[IoSlice<'_>]) -> io::Result<()> {
        match self.refuse.load(Ordering::SeqCst) {
            0 => self.device.send(packet),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// A process that a pending signal ends as soon as it may run: the caller that the session finds
/// after Ctrl-C or SIGKILL, without a mount.
struct Dying(Child);

impl Dying {
    fn new() -> Dying {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let dying = Dying(child);
        kill_process(pid, Signal::STOP).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).unwrap();
        // A signal that ends a process by default, and that stays pending until the process
        // continues.
        kill_process(pid, Signal::QUIT).unwrap();
        dying
    }
}

impl Drop for Dying {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The kernel's side of the socket.
struct Kernel {
    caller: Dying,
    runtime: Runtime,
    socket: OwnedFd,
    memory: Arc<Memory>,
    refuse: Arc<AtomicI32>,
    counters: Arc<fuse::Counters>,
    session: JoinHandle<fuse::End>,
    stopper: Stopper,
    next_unique: u64,
}

/// One reply.
#[derive(Debug)]
struct Answer {
    unique: u64,
    error: i32,
    body: Vec<u8>,
}

fn channel() -> (OwnedFd, Arc<Refusing>) {
    let (kernel, session) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for socket in [&kernel, &session] {
        sockopt::set_socket_send_buffer_size(socket, 4 * PACKET).unwrap();
    }
    sockopt::set_socket_timeout(&kernel, sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
    (kernel, Arc::new(Refusing { device: Device::new(session).unwrap(), refuse: Arc::default() }))
}

fn put(fixed: impl Wire, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    fixed.put(&mut bytes);
    bytes.extend_from_slice(rest);
    bytes
}

fn header(opcode: u32, unique: u64, nodeid: u64, body: &[u8]) -> InHeader {
    let len = (abi::IN_HEADER_SIZE + body.len()) as u32;
    InHeader { len, opcode, unique, nodeid, uid: 1, gid: 2, ..InHeader::default() }
}

/// Sends a request of an invisible caller.
fn send(socket: &OwnedFd, opcode: u32, unique: u64, nodeid: u64, body: &[u8]) {
    send_of(0, socket, opcode, unique, nodeid, body);
}

fn send_of(pid: u32, socket: &OwnedFd, opcode: u32, unique: u64, nodeid: u64, body: &[u8]) {
    let header = InHeader { pid, ..header(opcode, unique, nodeid, body) };
    let packet = put(header, body);
    assert_eq!(rustix::io::write(socket, &packet).unwrap(), packet.len());
}

fn receive(socket: &OwnedFd) -> Answer {
    let mut packet = vec![0; PACKET];
    let len = rustix::io::read(socket, &mut packet).expect("no reply came");
    let mut body = &packet[..len];
    let header = OutHeader::take(&mut body).expect("a reply without a header");
    assert_eq!(header.len as usize, len);
    Answer { unique: header.unique, error: -header.error, body: body.to_vec() }
}

fn init_body(minor: u32) -> Vec<u8> {
    let flags = u32::MAX;
    put(abi::InitIn { major: 7, minor, max_readahead: 1 << 17, flags }, &[0xff; 48])
}

impl Kernel {
    fn new(config: Config) -> Kernel {
        let (socket, channel) = channel();
        let refuse = channel.refuse.clone();
        let memory = Memory::new(Duration::from_secs(1));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        send(&socket, opcode::INIT, 2, 0, &init_body(45));
        let session = runtime.block_on(Session::over(channel, memory.clone(), config)).unwrap();
        let answer = receive(&socket);
        assert_eq!((answer.unique, answer.error), (2, 0));
        assert_eq!(answer.body.len(), abi::InitOut::SIZE);
        let (stopper, counters) = (session.stopper(), session.counters());
        let session = runtime.spawn(session.run());
        let caller = Dying::new();
        Kernel {
            caller,
            runtime,
            socket,
            memory,
            refuse,
            counters,
            session,
            stopper,
            next_unique: 4,
        }
    }

    fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        let unique = self.next_unique;
        self.next_unique += 2;
        send_of(self.caller.0.id(), &self.socket, opcode, unique, nodeid, body);
        unique
    }

    fn interrupt(&self, unique: u64) {
        let body = put(abi::InterruptIn { unique }, b"");
        send(&self.socket, opcode::INTERRUPT, unique | 1, 0, &body);
    }

    fn ask(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> Answer {
        let unique = self.send(opcode, nodeid, body);
        let answer = receive(&self.socket);
        assert_eq!(answer.unique, unique);
        answer
    }

    fn lookup(&mut self, name: &str) -> Answer {
        self.ask(opcode::LOOKUP, ROOT, format!("{name}\0").as_bytes())
    }

    /// Checks that nothing else was sent, and that requests are still served.
    fn nothing_else(&mut self) {
        assert_eq!(self.ask(opcode::STATFS, ROOT, b"").error, 0);
    }

    /// Ends the session by the end of the "mount".
    fn end(self) -> (fuse::End, Arc<Memory>) {
        drop(self.socket);
        let end = self.runtime.block_on(self.session).unwrap();
        (end, self.memory)
    }
}

fn listing(size: u32) -> Vec<u8> {
    put(abi::ReadIn { fh: 0, size, ..abi::ReadIn::default() }, b"")
}

fn one_reader() -> Config {
    Config { drain_limit: LIMIT, ..Config::default() }
}

fn two_readers() -> Config {
    Config { readers: 2, ..one_reader() }
}

#[test]
fn a_newer_major_version_is_renegotiated() {
    let (socket, channel) = channel();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let init = abi::InitIn { major: 8, minor: 0, ..abi::InitIn::default() };
    send(&socket, opcode::INIT, 2, 0, &put(init, b""));
    send(&socket, opcode::INIT, 4, 0, &init_body(38));
    let memory = Memory::new(Duration::ZERO);
    let session = runtime.block_on(Session::over(channel, memory, Config::default())).unwrap();
    let first = receive(&socket);
    assert_eq!(abi::InitOut::take(&mut &first.body[..]).unwrap().major, 7);
    let second = abi::InitOut::take(&mut &receive(&socket).body[..]).unwrap();
    assert_eq!((second.major, second.minor), (7, 38));
    assert_eq!(session.started().negotiated.minor, 38);
}

#[test]
fn a_session_that_cannot_begin_returns_the_reason() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let begin = |prepare: &dyn Fn(OwnedFd) -> Option<OwnedFd>| {
        let (socket, channel) = channel();
        let _socket = prepare(socket);
        let memory = Memory::new(Duration::ZERO);
        runtime.block_on(Session::over(channel, memory, Config::default())).unwrap_err()
    };
    let old = begin(&|socket| {
        send(&socket, opcode::INIT, 2, 0, &init_body(30));
        Some(socket)
    });
    assert!(matches!(old, Error::Protocol { major: 7, minor: 30 }), "{old}");
    let other = begin(&|socket| {
        send(&socket, opcode::STATFS, 2, 0, b"");
        Some(socket)
    });
    assert!(matches!(other, Error::NoInit), "{other}");
    let gone = begin(&|_socket| None);
    assert!(matches!(gone, Error::Ended), "{gone}");
}

#[test]
fn malformed_and_unknown_requests_are_answered_and_the_session_continues() {
    let mut kernel = Kernel::new(one_reader());
    assert_eq!(kernel.ask(opcode::LOOKUP, ROOT, b"no end").error, libc::EIO);
    assert_eq!(kernel.ask(opcode::WRITE, ROOT, b"short").error, libc::EIO);
    assert_eq!(kernel.ask(777, ROOT, b"").error, libc::ENOSYS);
    assert_eq!(kernel.ask(opcode::SYNCFS, ROOT, &[0; 8]).error, libc::ENOSYS);
    assert_eq!(kernel.ask(opcode::IOCTL, ROOT, &[0; 32]).error, libc::ENOTTY);
    assert_eq!(kernel.ask(opcode::INIT, 0, &init_body(45)).error, libc::EIO);
    // These cannot be answered.
    rustix::io::write(&kernel.socket, b"not even a header").unwrap();
    kernel.send(opcode::FORGET, ROOT, b"xx");
    kernel.send(opcode::BATCH_FORGET, ROOT, &[0xff; 8]);
    kernel.send(opcode::INTERRUPT, ROOT, b"");
    kernel.nothing_else();
}

#[test]
fn a_panic_is_eio_and_the_session_continues() {
    let mut kernel = Kernel::new(one_reader());
    assert_eq!(kernel.lookup("panic").error, libc::EIO);
    // A panic after the first poll, when it is a task.
    kernel.memory.hold("lookup");
    let unique = kernel.send(opcode::LOOKUP, ROOT, b"panic\0");
    kernel.memory.wait_begun("lookup", 2);
    kernel.memory.release_held("lookup");
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (unique, libc::EIO));
    // A panic in forget has no reply: the balance would be negative.
    kernel.send(opcode::FORGET, 77, &put(abi::ForgetIn { nlookup: 1 }, b""));
    kernel.nothing_else();
}

#[test]
fn an_interrupt_drops_the_operation_and_answers_eintr() {
    let mut kernel = Kernel::new(one_reader());
    kernel.memory.add("file", b"");
    kernel.memory.hold("lookup");
    let unique = kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 1);
    kernel.interrupt(unique);
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (unique, libc::EINTR));
    kernel.memory.wait_dropped("lookup", 1);
    // A late interrupt has no effect.
    kernel.interrupt(unique);
    kernel.memory.release_held("lookup");
    kernel.nothing_else();
    let (_, memory) = kernel.end();
    memory.wait_balanced();
}

#[test]
fn an_interrupt_before_its_request_is_remembered() {
    let mut kernel = Kernel::new(two_readers());
    kernel.memory.hold("lookup");
    let unique = kernel.next_unique + 4;
    kernel.interrupt(unique);
    kernel.nothing_else();
    kernel.nothing_else();
    assert_eq!(kernel.send(opcode::LOOKUP, ROOT, b"file\0"), unique);
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (unique, libc::EINTR));
    // The next request of that type is not affected.
    let held = kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.release_held("lookup");
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (held, 0));
}

/// A caller of another pid namespace has the pid 0.
#[test]
fn an_invisible_caller_is_freed_after_a_second() {
    let mut kernel = Kernel::new(one_reader());
    kernel.memory.add("file", b"");
    kernel.memory.hold("lookup");
    let unique = kernel.next_unique;
    kernel.next_unique += 2;
    send(&kernel.socket, opcode::LOOKUP, unique, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 1);
    let begun = Instant::now();
    kernel.interrupt(unique);
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (unique, libc::EINTR));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    kernel.memory.wait_dropped("lookup", 1);
}

#[test]
fn releases_are_not_interrupted() {
    let mut kernel = Kernel::new(one_reader());
    let ino = kernel.memory.add("file", b"");
    for (open, close, operation) in [
        (opcode::OPEN, opcode::RELEASE, "release"),
        (opcode::OPENDIR, opcode::RELEASEDIR, "releasedir"),
    ] {
        let opened = kernel.ask(open, ino, &[0; 8]);
        let fh = abi::OpenOut::take(&mut &opened.body[..]).unwrap().fh;
        kernel.memory.hold(operation);
        let release = abi::ReleaseIn { fh, ..abi::ReleaseIn::default() };
        let unique = kernel.send(close, ino, &put(release, b""));
        kernel.memory.wait_begun(operation, 1);
        kernel.interrupt(unique);
        kernel.nothing_else();
        assert_eq!(kernel.memory.dropped(operation), 0);
        kernel.memory.release_held(operation);
        let answer = receive(&kernel.socket);
        assert_eq!((answer.unique, answer.error), (unique, 0));
    }
    kernel.memory.wait_balanced();
}

/// Operations that end, are interrupted, or both at once, from several threads, with one and two
/// readers: each request has exactly one reply, and lookups and handles are balanced.
#[test]
fn each_request_has_one_reply_in_any_order_of_events() {
    const REQUESTS: u64 = 3000;
    for config in [one_reader(), two_readers()] {
        let mut kernel = Kernel::new(config);
        kernel.memory.add("file", b"");
        let done = Arc::new(AtomicBool::new(false));
        // Releases held operations at random times.
        let opener = std::thread::spawn({
            let (memory, done) = (kernel.memory.clone(), done.clone());
            move || {
                while !done.load(Ordering::SeqCst) {
                    memory.hold("lookup");
                    std::thread::yield_now();
                    memory.release_held("lookup");
                }
                memory.release_held("lookup");
            }
        });
        let mut answers: HashMap<u64, i32> = HashMap::new();
        let mut found = 0;
        for round in 0..REQUESTS {
            let unique = kernel.next_unique;
            let early = round % 7 == 0;
            if early {
                kernel.interrupt(unique);
            }
            kernel.send(opcode::LOOKUP, ROOT, b"file\0");
            if !early && round % 2 == 0 {
                kernel.interrupt(unique);
            }
            let answer = receive(&kernel.socket);
            assert!(matches!(answer.error, 0 | libc::EINTR), "{answer:?}");
            found += u64::from(answer.error == 0);
            assert!(answers.insert(answer.unique, answer.error).is_none(), "{answer:?} again");
        }
        done.store(true, Ordering::SeqCst);
        opener.join().unwrap();
        assert_eq!(answers.len() as u64, REQUESTS);
        kernel.nothing_else();
        let ino = ROOT + 1;
        assert_eq!(kernel.memory.lookups(ino), found);
        if found > 0 {
            kernel.send(opcode::FORGET, ino, &put(abi::ForgetIn { nlookup: found }, b""));
        }
        kernel.nothing_else();
        kernel.memory.wait_balanced();
    }
}

/// Makes the kernel reject the reply to one request.
fn refused(kernel: &mut Kernel, operation: &'static str, opcode: u32, nodeid: u64, body: &[u8]) {
    let begun = kernel.memory.begun(operation);
    kernel.memory.hold(operation);
    kernel.send(opcode, nodeid, body);
    kernel.memory.wait_begun(operation, begun + 1);
    kernel.refuse.store(libc::ENOENT, Ordering::SeqCst);
    kernel.memory.release_held(operation);
    kernel.memory.wait_ended(operation);
    kernel.memory.wait_balanced();
    kernel.refuse.store(0, Ordering::SeqCst);
    kernel.nothing_else();
}

#[test]
fn a_rejected_reply_is_undone() {
    let mut kernel = Kernel::new(one_reader());
    let ino = kernel.memory.add("file", b"");
    for number in 0..20 {
        kernel.memory.add(&format!("file {number}"), b"");
    }
    refused(&mut kernel, "lookup", opcode::LOOKUP, ROOT, b"file\0");
    refused(&mut kernel, "open", opcode::OPEN, ino, &[0; 8]);
    refused(&mut kernel, "opendir", opcode::OPENDIR, ROOT, &[0; 8]);
    let create = put(abi::CreateIn { mode: 0o100_644, ..abi::CreateIn::default() }, b"new\0");
    refused(&mut kernel, "create", opcode::CREATE, ROOT, &create);
    refused(&mut kernel, "readdirplus", opcode::READDIRPLUS, ROOT, &listing(4096));
    assert_eq!(kernel.memory.begun("readdirplus entry"), 22);
    assert_eq!(kernel.memory.begun("release"), 2);
    assert_eq!(kernel.memory.begun("releasedir"), 1);
}

#[test]
fn an_interrupted_listing_forgets_what_it_pushed() {
    let mut kernel = Kernel::new(one_reader());
    for number in 0..20 {
        kernel.memory.add(&format!("file {number}"), b"");
    }
    kernel.memory.hold("readdirplus entry");
    let unique = kernel.send(opcode::READDIRPLUS, ROOT, &listing(4096));
    kernel.memory.wait_begun("readdirplus entry", 1);
    assert_eq!(kernel.memory.lookups(ROOT + 1), 1);
    kernel.interrupt(unique);
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (unique, libc::EINTR));
    kernel.memory.wait_balanced();
    // Delivered entries are not forgotten.
    kernel.memory.release_held("readdirplus entry");
    assert_eq!(kernel.ask(opcode::READDIRPLUS, ROOT, &listing(4096)).error, 0);
    assert_eq!(kernel.memory.lookups(ROOT + 1), 1);
}

#[test]
fn large_and_small_writes_arrive_whole() {
    let mut kernel = Kernel::new(one_reader());
    let ino = kernel.memory.add("file", b"");
    let mut expected = Vec::new();
    for (round, size) in [1, 4096, 65_535, 65_536, 131_072, 100_000].into_iter().enumerate() {
        let data: Vec<u8> = (0..size).map(|at| (at * 7 + round) as u8).collect();
        let write = abi::WriteIn {
            offset: expected.len() as u64,
            size: size as u32,
            ..abi::WriteIn::default()
        };
        let answer = kernel.ask(opcode::WRITE, ino, &put(write, &data));
        let out = abi::WriteOut::take(&mut &answer.body[..]).unwrap();
        assert_eq!(out.size as usize, size);
        expected.extend_from_slice(&data);
    }
    assert!(kernel.memory.content(ino) == expected);
    let read = abi::ReadIn { offset: 1, size: 150_000, ..abi::ReadIn::default() };
    let answer = kernel.ask(opcode::READ, ino, &put(read, b""));
    assert!(answer.body == expected[1..150_001]);
}

#[test]
fn extended_attributes_are_checked_against_the_buffer_size() {
    let mut kernel = Kernel::new(one_reader());
    let mut get = |size: u32| {
        let body = put(abi::GetxattrIn { size, padding: 0 }, b"user.color\0");
        kernel.ask(opcode::GETXATTR, ROOT, &body)
    };
    assert_eq!(abi::GetxattrOut::take(&mut &get(0).body[..]).unwrap().size, 4);
    assert_eq!(get(3).error, libc::ERANGE);
    assert_eq!(get(4).body, b"blue");
}

#[test]
fn every_reply_is_counted_once_and_a_cancelled_request_is_an_error() {
    let mut kernel = Kernel::new(one_reader());
    let counted = |kernel: &Kernel, name: &str| {
        let all = kernel.counters.operations();
        let found = all.into_iter().find(|operation| operation.name == name);
        found.map(|it| (it.latency.iter().sum::<u64>(), it.errors))
    };
    assert_eq!(counted(&kernel, "lookup"), None);
    // A negative entry, which the kernel may cache.
    assert_eq!(kernel.lookup("missing").error, 0);
    kernel.memory.hold("lookup");
    let unique = kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 2);
    assert_eq!(kernel.counters.in_flight(), 1);
    kernel.interrupt(unique);
    assert_eq!(receive(&kernel.socket).error, libc::EINTR);
    kernel.memory.release_held("lookup");
    kernel.nothing_else();
    // A reply is received before it is counted.
    let (counters, _) = (kernel.counters.clone(), kernel.end());
    assert_eq!(counters.in_flight(), 0);
    let counts: Vec<_> = counters
        .operations()
        .into_iter()
        .map(|it| (it.name, it.latency.iter().sum::<u64>(), it.errors))
        .collect();
    assert_eq!(counts, [("lookup".to_owned(), 2, 1), ("statfs".to_owned(), 1, 0)]);
}

#[test]
fn the_end_waits_for_running_operations() {
    let mut kernel = Kernel::new(one_reader());
    let ino = kernel.memory.add("file", b"");
    kernel.memory.hold("write");
    let write = abi::WriteIn { size: 3, ..abi::WriteIn::default() };
    kernel.send(opcode::WRITE, ino, &put(write, b"abc"));
    kernel.memory.wait_begun("write", 1);
    let Kernel { socket, memory, runtime, session, .. } = kernel;
    drop(socket);
    assert!(!memory.destroyed());
    memory.release_held("write");
    let end = runtime.block_on(session).unwrap();
    assert!(matches!(end.cause, Cause::Unmounted), "{end:?}");
    assert_eq!(end.abandoned, 0);
    assert_eq!(memory.content(ino), b"abc");
    assert!(memory.destroyed());
}

#[test]
fn the_end_does_not_wait_forever() {
    let config = Config { drain_limit: Duration::from_millis(50), ..Config::default() };
    let mut kernel = Kernel::new(config);
    kernel.memory.hold("lookup");
    kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 1);
    let (end, memory) = kernel.end();
    assert_eq!(end.abandoned, 1);
    assert_eq!(memory.dropped("lookup"), 1);
    assert!(memory.destroyed());
}

#[test]
fn dropping_a_session_drops_running_operations() {
    let mut kernel = Kernel::new(one_reader());
    kernel.memory.hold("lookup");
    let unique = kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 1);
    kernel.session.abort();
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (unique, libc::EINTR));
    kernel.memory.wait_dropped("lookup", 1);
    // The session's side of the channel is closed.
    assert_eq!(rustix::io::read(&kernel.socket, &mut [0; 16]).unwrap(), 0);
    assert!(!kernel.memory.destroyed());
}

/// Programs that use the mount are freed by signals, can close their files, and get an error for
/// other calls.
#[test]
fn an_ending_session_is_served_until_its_end() {
    let mut kernel = Kernel::new(one_reader());
    let ino = kernel.memory.add("file", b"");
    let opened = kernel.ask(opcode::OPEN, ino, &[0; 8]);
    let fh = abi::OpenOut::take(&mut &opened.body[..]).unwrap().fh;
    kernel.memory.hold("lookup");
    let held = kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 1);
    kernel.stopper.stop();
    // Served until the session has noticed the stop.
    let begun = Instant::now();
    while kernel.ask(opcode::STATFS, ROOT, b"").error == 0 {
        assert!(begun.elapsed() < LIMIT, "it does not end");
    }
    assert_eq!(kernel.ask(opcode::GETATTR, ino, &[0; 16]).error, libc::ENOTCONN);
    let write = abi::WriteIn { fh, size: 3, ..abi::WriteIn::default() };
    assert_eq!(kernel.ask(opcode::WRITE, ino, &put(write, b"new")).error, libc::ENOTCONN);
    let page = abi::WriteIn { write_flags: flags::WRITE_CACHE, ..write };
    assert_eq!(kernel.ask(opcode::WRITE, ino, &put(page, b"map")).error, 0);
    let flush = abi::FlushIn { fh, ..abi::FlushIn::default() };
    assert_eq!(kernel.ask(opcode::FLUSH, ino, &put(flush, b"")).error, 0);
    let release = abi::ReleaseIn { fh, ..abi::ReleaseIn::default() };
    assert_eq!(kernel.ask(opcode::RELEASE, ino, &put(release, b"")).error, 0);
    assert!(!kernel.memory.destroyed());
    kernel.interrupt(held);
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (held, libc::EINTR));
    let Kernel { runtime, session, memory, .. } = kernel;
    let end = runtime.block_on(session).unwrap();
    assert!(matches!(end.cause, Cause::Stopped), "{end:?}");
    assert_eq!((end.abandoned, memory.content(ino)), (0, b"map".to_vec()));
    memory.wait_balanced();
}

#[test]
fn a_second_stop_does_not_wait_for_running_operations() {
    let mut kernel = Kernel::new(one_reader());
    kernel.memory.hold("lookup");
    let held = kernel.send(opcode::LOOKUP, ROOT, b"file\0");
    kernel.memory.wait_begun("lookup", 1);
    kernel.stopper.stop();
    while kernel.ask(opcode::STATFS, ROOT, b"").error == 0 {}
    kernel.stopper.stop();
    let answer = receive(&kernel.socket);
    assert_eq!((answer.unique, answer.error), (held, libc::EINTR));
    assert_eq!(kernel.runtime.block_on(kernel.session).unwrap().abandoned, 1);
}

#[test]
fn a_session_can_be_stopped() {
    let mut kernel = Kernel::new(two_readers());
    kernel.nothing_else();
    kernel.stopper.stop();
    let end = kernel.runtime.block_on(kernel.session).unwrap();
    assert!(matches!(end.cause, Cause::Stopped), "{end:?}");
    assert!(kernel.memory.destroyed());
}

#[test]
fn notifications_have_the_wire_format_and_are_sent_in_order() {
    let kernel = Kernel::new(one_reader());
    let notifier = kernel.memory.started.get().unwrap().notifier.clone();
    assert!(notifier.inval_inode(5, -1, 0));
    assert!(notifier.inval_entry(1, b"name"));
    assert!(notifier.expire_entry(1, b"name"));
    assert!(notifier.prunes() && notifier.prune(&[5, 1 << 40]));
    kernel.runtime.block_on(notifier.settled());
    // These wait for no other.
    assert!(notifier.expire_all_names());
    kernel.runtime.block_on(notifier.inval_data(6));
    let next = |code: i32| {
        let answer = receive(&kernel.socket);
        assert_eq!((answer.unique, -answer.error), (0, code));
        answer.body
    };
    assert_eq!(next(2), put(abi::NotifyInvalInode { ino: 5, off: -1, len: 0 }, b""));
    for flags in [0, 1] {
        let entry = abi::NotifyInvalEntry { parent: 1, namelen: 4, flags };
        assert_eq!(next(3), put(entry, b"name\0"));
    }
    let prune = abi::NotifyPrune { count: 2, padding: 0, spare: 0 };
    let inos: Vec<u8> = [5u64, 1 << 40].iter().flat_map(|ino| ino.to_ne_bytes()).collect();
    assert_eq!(next(9), put(prune, &inos));
    assert!(next(8).is_empty());
    assert_eq!(next(2), put(abi::NotifyInvalInode { ino: 6, off: 0, len: 0 }, b""));
    // After the session notifications have no receiver and no wait.
    let (runtime, session) = (kernel.runtime, kernel.session);
    drop(kernel.socket);
    runtime.block_on(session).unwrap();
    assert!(notifier.inval_inode(5, -1, 0));
    runtime.block_on(notifier.settled());
}
