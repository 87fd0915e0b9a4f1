//! A session: reads requests, executes them or gives them to the pool, and sends replies.
//!
//! The thread that reads requests executes those that need no other machine, since waking another
//! thread costs more than most of them. The pool gets the others: reads of pages that are not in
//! memory, syncs, copies, changes that free a large file, reads whose replies are compressed,
//! requests that wait for another process's lease, and all requests to file systems that may be on
//! another machine. Its threads are started when they are needed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, mpsc};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use base::Mutex;
use bytes::{Bytes, BytesMut};
use direct::Listener;
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use sftp::codec::{
    self, DirectRequest, Extension, Extensions, HEADER_BYTES, LockRequest, MAX_PACKET_BYTES,
    Malformed, Reply, Request, Version, WatchRequest, pack, packet_length, unpack,
};
use sftp::{Product, StatusCode};

use crate::handles::Room;
use crate::locks::Locks;
use crate::options::Options;
use crate::paths::Device;
use crate::schedule::{Entry, Schedule, Ticket};
use crate::server::{self, Answer, MAX_IO_BYTES, Server};
use crate::service_thread::ServiceThread;
use crate::status::{Failure, HANGS, Result as Outcome};
use crate::watches::Watches;
use crate::{attributes, direct as direct_connections};

/// Requests that were not answered yet, at most. Each has a packet of at most 256 KiB.
pub(crate) const MAX_REQUESTS: usize = 128;

/// Requests beside these for file systems that hang, at most: as many as sshoal has in flight on a
/// connection, with the probe of its watchdog, so that none of its requests is refused. A file
/// system may only be slow. A read or write takes as much memory as any other.
const MAX_HUNG: usize = 513;

/// Requests beside these that close handles or end locks, at most. A client does not send one again
/// that was refused, so the handle or the lock would stay until the session ends.
const MAX_RELEASES: usize = 512;

/// Longest of these packets, in bytes. A handle has at most 256.
const MAX_RELEASE_BYTES: usize = 1024;

/// Time for which a file system that hangs has executed nothing.
const HUNG: Duration = Duration::from_secs(5);

/// Threads of the pool, at most: more than disks serve in parallel. One that executes a request for
/// longer than [`PATIENCE`] is replaced, so each request may have one.
const MAX_THREADS: usize = 32;

/// Descriptors that are kept for other purposes than handles of the client: five for each direct
/// connection, and some.
const OTHER_DESCRIPTORS: u64 = 384;

/// Time for which changes wait for a request that only reads: local disks answer within it, and an
/// unreachable file system may never do.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time after the end of the client's stream in which its last requests begin: fast ones are
/// executed. One that has waited longer for a request that hangs would be executed when the client,
/// over a new connection, has found it not done and has done it again: it looks after one second.
const LAST_START: Duration = Duration::from_millis(500);

/// Time after which the last requests of a session are checked again.
const END_INTERVAL: Duration = Duration::from_millis(100);

/// Content from this length on is sent without copying it behind other replies.
const LONG_CONTENT: usize = 16 << 10;

/// Time after which a client that takes no replies is checked again for locks: it may get one that
/// it has waited for.
const LIMIT_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes that a pipe takes at once if it is ready for any (pipe(7)).
const PIPE_BUF: usize = 4096;

/// Replies of this length are sent even if more requests were read.
const LONG_OUTPUT: usize = 64 << 10;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The root cannot be opened.
    #[error("the root directory: {0}")]
    Root(io::Error),
    /// The client has sent something that is not SFTP.
    #[error("the client has sent no valid SFTP: {0}")]
    Malformed(Malformed),
    /// The client cannot be read from or written to.
    #[error("the connection to the client: {0}")]
    Stream(io::Error),
    /// The client has locks, and has sent nothing for the time that it has promised.
    #[error("the client has locks and was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// No thread can be started that would execute requests.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl From<Malformed> for Error {
    fn from(error: Malformed) -> Error {
        Error::Malformed(error)
    }
}

/// Serves a client until `input` ends. All requests read by then are executed, except those that
/// still wait for another one half a second later. Threads that execute requests for file systems
/// that hang are left: the process should end.
///
/// # Errors
/// When the root cannot be opened, the client sends something that is not SFTP, a stream fails, or
/// no thread can be started.
pub fn serve(input: File, output: File, options: &Options) -> Result<(), Error> {
    // A write beyond the limit of the login's file size is an error, and does not end the process.
    // All other threads are started by this one.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    let room = Arc::new(Room::new(max_handles()));
    serve_connection(Box::new(input), Box::new(output), options, &room)
}

/// Serves one connection of a client, in a thread of its own, which remains as long as requests
/// hang.
pub(crate) fn serve_connection(
    mut input: Box<dyn Input + Send>,
    output: Box<dyn Replies>,
    options: &Options,
    room: &Arc<Room>,
) -> Result<(), Error> {
    let place = room.place().ok_or_else(|| Error::Stream(Errno::MFILE.into()))?;
    let session = Session::new(output, options, room)?;
    let (over, is_over) = mpsc::channel();
    let thread = thread::Builder::new().name("session".to_owned()).spawn(move || {
        thread::scope(|scope| {
            let read = session.read_requests(scope, &mut *input);
            session.end();
            let flushed = session.output.lock().flush();
            let _ = over.send(read.and(flushed.map_err(Error::Stream)));
            session.server.release_locks();
        });
        drop((session, input, place));
        drop(over);
    });
    let thread = thread.map_err(Error::Thread)?;
    let Ok(served) = is_over.recv() else {
        return thread.join().map_err(|panic| resume_unwind(panic));
    };
    // Usually, all threads end now.
    let _ = is_over.recv_timeout(LAST_START);
    served
}

/// The number of handles that a client may have open.
fn max_handles() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // The greatest that is allowed. If that fails, the present one.
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = if setrlimit(Resource::Nofile, raised).is_ok() { raised } else { limit };
    let descriptors = limit.current.unwrap_or(1 << 20).min(1 << 20);
    descriptors.saturating_sub(OTHER_DESCRIPTORS).max(1) as usize
}

/// A stream of requests.
pub(crate) trait Input: Read {
    /// Waits until there is something to read, or the end; `false` if there was neither for this
    /// time.
    fn is_readable_within(&mut self, limit: Duration) -> io::Result<bool>;
}

/// A stream of replies.
pub(crate) trait Replies: Send {
    /// Writes some bytes. If none can be written within [`Locks::silence_limit`], that is an error.
    /// With a [`Locks::write_limit`] there may be such a limit only while this waits.
    fn write_within(&mut self, slices: &[IoSlice<'_>], locks: &Locks) -> io::Result<usize>;
}

struct Session {
    server: Server,
    options: Options,
    /// Accepts further connections.
    listener: Mutex<Option<Listener>>,
    state: Mutex<State>,
    /// A request was added to the pool's queue, or the session ends. For each request one thread
    /// is woken: waking all of them takes longer than most requests.
    queued: Condvar,
    /// There is room for a request, or the session ends and a request was finished.
    changed: Condvar,
    output: Mutex<Output>,
}

#[derive(Default)]
struct State {
    schedule: Schedule<Bytes>,
    /// Requests for the pool.
    queue: VecDeque<(Ticket, Bytes)>,
    threads: usize,
    idle: usize,
    /// The end of the client's stream.
    ended_at: Option<Instant>,
}

impl State {
    /// Whether no other request may be added. Those for file systems that hang keep no room from
    /// others.
    fn is_full(&self) -> bool {
        let (len, most) = (self.schedule.len(), MAX_HUNG + MAX_RELEASES);
        len >= MAX_REQUESTS && len - self.schedule.hung(HUNG).len().min(most) >= MAX_REQUESTS
    }

    /// Whether this file system hangs, and too many requests are for such ones.
    fn has_no_room_for(&self, device: Device, is_release: bool) -> bool {
        let most = MAX_HUNG + if is_release { MAX_RELEASES } else { 0 };
        self.schedule.len() >= most && {
            let hung = self.schedule.hung(HUNG);
            hung.len() >= most && hung.contains(&device)
        }
    }

    /// Whether no request begins any more.
    fn is_late(&self) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() > LAST_START)
    }

    fn max_threads(&self) -> usize {
        match self.threads < MAX_THREADS {
            true => MAX_THREADS,
            false => MAX_THREADS + self.schedule.long_executed(PATIENCE),
        }
    }
}

impl Session {
    fn new(
        output: Box<dyn Replies>,
        options: &Options,
        room: &Arc<Room>,
    ) -> Result<Session, Error> {
        let server = Server::new(options, room.clone());
        let server = server.map_err(|errno| Error::Root(errno.into()))?;
        let locks = server.locks.clone();
        let output = Output { stream: output, replies: BytesMut::new(), locks, error: None };
        Ok(Session {
            server,
            options: options.clone(),
            listener: Mutex::default(),
            state: Mutex::default(),
            queued: Condvar::new(),
            changed: Condvar::new(),
            output: Mutex::new(output),
        })
    }

    fn read_requests<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        input: &mut dyn Input,
    ) -> Result<(), Error> {
        let mut packets = Packets { input, buffer: BytesMut::new() };
        let Some(first) = packets.next(|_| Ok(None))? else { return Ok(()) };
        codec::decode_init(&first)?;
        let mut extensions: Extensions = Extension::ALL.iter().copied().collect();
        if !attributes::has_statx() {
            extensions.remove(Extension::Attrs);
        }
        if self.options.direct.is_none() {
            extensions.remove(Extension::Direct);
        }
        if self.server.watches.is_none() {
            extensions.remove(Extension::Watch);
        }
        let product = Product {
            vendor: "sshoal".to_owned(),
            name: "sshoal helper".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let version = Version { version: codec::VERSION, extensions, product: Some(product) };
        version.encode(&mut self.output.lock().replies);
        let mut buffer = vec![0; MAX_IO_BYTES as usize];
        let before_wait = |silent: Duration| {
            self.output.lock().flush().map_err(Error::Stream)?;
            let limit = self.server.locks.silence_limit();
            if let Some(limit) = limit.filter(|limit| silent >= *limit) {
                return Err(Error::Silent(limit));
            }
            // Also without locks: a request that waits may set one while the client is silent.
            let lease = self.server.locks.lease();
            let left = lease.map(|lease| lease.checked_sub(silent).unwrap_or(lease));
            Ok(left.into_iter().chain(self.overtake(scope)?).min())
        };
        while let Some(packet) = packets.next(before_wait)? {
            self.accept(scope, packet, &mut buffer)?;
        }
        Ok(())
    }

    /// Executes a request, or leaves it to the pool.
    fn accept<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        packet: Bytes,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let packet = self.unpacked(packet)?;
        let (id, request) = Request::decode(&packet)?;
        if let Request::Direct(request) = request {
            let reply = self.listen(request).unwrap_or_else(|failure| failure.reply());
            self.output.lock().reply(id, &reply);
            return Ok(());
        }
        let claims = self.server.claims(id, &request);
        if matches!(&request, Request::Lock { lock: LockRequest::Set { wait_ms: 1.., .. }, .. }) {
            let server = &self.server;
            let is_local = server.file_system(&request).is_none();
            self.provide_service(scope, "locks", server.locks.thread(is_local), move |answer| {
                server.wait_for_locks(is_local, answer);
            });
        }
        if matches!(&request, Request::Watch(WatchRequest::Next))
            && let Some(watches) = &self.server.watches
        {
            self.provide_service(scope, "watches", &watches.thread, |answer| watches.serve(answer));
        }
        let is_release = is_release(&packet, &request);
        let (ticket, ready) = {
            let mut state = self.state.lock();
            while state.is_full() {
                // Replies may be what the client waits for.
                drop(state);
                self.output.lock().flush().map_err(Error::Stream)?;
                state = self.state.lock();
                if state.is_full() {
                    let waited = self.changed.wait_timeout(state, PATIENCE);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                    self.overtake(scope)?;
                    state = self.state.lock();
                }
            }
            // It may overtake one of another file system, or be refused.
            let mut file_system = None;
            if state.schedule.may_hang() {
                drop(state);
                file_system = self.server.file_system(&request);
                state = self.state.lock();
            }
            if file_system.is_some_and(|it| state.has_no_room_for(it.device, is_release)) {
                drop(state);
                if matches!(request, Request::Opendir { .. }) {
                    self.server.handles.forget(id);
                }
                self.output.lock().reply(id, &HANGS.reply());
                return Ok(());
            }
            let yields = server::may_be_overtaken(&request);
            let queued = to_queue(&packet, is_release);
            state.schedule.add(claims, yields, file_system, queued)
        };
        if ready.is_some()
            && self.server.is_quick(&request)
            && let Some(answer) = self.answer(id, &request, None, buffer)
        {
            self.send(id, answer, buffer);
            self.finish(ticket);
            return Ok(());
        }
        let file_system = self.server.file_system(&request);
        let mut state = self.state.lock();
        state.schedule.set_file_system(ticket, file_system);
        let others = usize::from(ready.is_none());
        self.queue(state, ready.map(|packet| (ticket, packet)));
        self.provide_thread(scope, others)
    }

    /// Gives requests to the pool.
    fn queue(
        &self,
        mut state: MutexGuard<'_, State>,
        ready: impl IntoIterator<Item = (Ticket, Bytes)>,
    ) {
        let before = state.queue.len();
        state.queue.extend(ready);
        let count = state.queue.len() - before;
        drop(state);
        (0..count).for_each(|_| self.queued.notify_one());
    }

    /// Executes requests that have waited for one that may never end. Returns when this has to be
    /// repeated, if it has.
    fn overtake<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<Option<Duration>, Error> {
        let mut state = self.state.lock();
        if !state.schedule.is_held_up() && state.queue.is_empty() {
            return Ok(None);
        }
        let ready = state.schedule.overtake(PATIENCE);
        self.queue(state, ready);
        // Also in place of those that hang.
        self.provide_threads(scope, 0)?;
        Ok(Some(PATIENCE))
    }

    /// The packet, or what it contains if it is compressed.
    fn unpacked(&self, packet: Bytes) -> Result<Bytes, Malformed> {
        if !self.server.unpacks.load(Ordering::Relaxed) {
            return Ok(packet);
        }
        Ok(unpack(&packet, MAX_PACKET_BYTES)?.unwrap_or(packet))
    }

    /// Accepts further connections from now on.
    fn listen(&self, request: DirectRequest) -> Outcome<Reply> {
        let address = self.options.direct.ok_or(Failure::System(Errno::OPNOTSUPP))?;
        let mut listener = self.listener.lock();
        if listener.is_some() {
            return Err(Failure::System(Errno::BUSY));
        }
        let room = &self.server.handles.room;
        let (listening, reply) = direct_connections::listen(&self.options, room, address, request)?;
        *listener = Some(listening);
        Ok(reply)
    }

    /// Starts a thread that answers requests later, when the first of them arrives. `serve` gets
    /// what sends an answer, and returns at the end of the session.
    fn provide_service<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        name: &str,
        thread: &ServiceThread,
        serve: impl FnOnce(&dyn Fn(u32, &Reply)) + Send + 'scope,
    ) {
        if !thread.is_needed() {
            return;
        }
        let started = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, || {
            serve(&|id, reply| {
                let mut output = self.output.lock();
                output.reply(id, reply);
                let _ = output.flush();
            });
        });
        if let Err(error) = started {
            tracing::warn!("cannot start a thread: {error}");
            thread.has_failed();
        }
    }

    /// Starts a thread of the pool if there are fewer idle ones than requests in the queue, and
    /// this number of others. Threads that were woken for those in the queue are still idle.
    ///
    /// # Errors
    /// If there is no thread at all.
    fn provide_thread<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        others: usize,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.idle >= state.queue.len() + others || state.threads >= state.max_threads() {
            return Ok(());
        }
        state.threads += 1;
        let started = thread::Builder::new().name("sftp".to_owned()).spawn_scoped(scope, || {
            self.work(scope);
        });
        if let Err(error) = started {
            state.threads -= 1;
            tracing::warn!("cannot start a thread: {error}");
            if state.threads == 0 {
                return Err(Error::Thread(error));
            }
        }
        Ok(())
    }

    /// Starts the threads of the pool that the requests in the queue lack. `free` others take one
    /// each.
    ///
    /// # Errors
    /// As [`Session::provide_thread`].
    fn provide_threads<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        free: usize,
    ) -> Result<(), Error> {
        let state = self.state.lock();
        let count = state.queue.len().saturating_sub(state.idle + free);
        drop(state);
        (0..count).try_for_each(|_| self.provide_thread(scope, 0))
    }

    /// A thread of the pool: executes requests until the session ends.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        // The thread that reads requests may wait for the client.
        let provide = || drop(self.provide_threads(scope, 0));
        let mut buffer = Vec::new();
        while let Some((ticket, packet)) = self.next_request() {
            let request = Request::decode(&packet);
            // Many threads may execute requests that hang.
            if matches!(request, Ok((_, Request::Read { .. } | Request::ReadFile { .. }))) {
                buffer.resize(MAX_IO_BYTES as usize, 0);
            }
            match request {
                // It follows earlier changes, and later requests need not wait for the disk; one of
                // them may close the handle.
                Ok((id, Request::Fsync { handle })) => {
                    let file = self.server.handles.file(handle);
                    self.proceed(|schedule| schedule.release(ticket));
                    provide();
                    let reply = Server::sync(file);
                    self.state.lock().schedule.executed(ticket);
                    self.output.lock().reply(id, &reply);
                }
                Ok((id, request)) => {
                    let release = || {
                        self.proceed(|schedule| schedule.release_shared(ticket));
                        provide();
                    };
                    let answer = self.answer(id, &request, Some(&release), &mut buffer);
                    self.state.lock().schedule.executed(ticket);
                    answer.into_iter().for_each(|answer| self.send(id, answer, &buffer));
                }
                Err(_) => {}
            }
            self.finish(ticket);
            // This one is free for a request.
            let _ = self.provide_threads(scope, 1);
            let _ = self.output.lock().flush();
        }
    }

    fn next_request(&self) -> Option<(Ticket, Bytes)> {
        let mut state = self.state.lock();
        loop {
            // Those that may hang, too, take the last threads.
            let answers = |(ticket, _): &(Ticket, Bytes)| !state.schedule.hangs(*ticket);
            let first = state.queue.iter().position(answers).unwrap_or(0);
            if let Some((ticket, packet)) = state.queue.remove(first) {
                if !state.is_late() {
                    state.schedule.begin(ticket);
                    return Some((ticket, packet));
                }
                drop(state);
                self.finish(ticket);
                state = self.state.lock();
                continue;
            }
            if state.ended_at.is_some() && state.schedule.len() == 0 {
                return None;
            }
            if state.threads > state.max_threads() {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Executes a request. Without `release`, returns `None` if it would wait for the disk or for
    /// another process; then nothing has happened. With it, see [`Server::execute`].
    fn answer(
        &self,
        id: u32,
        request: &Request<'_>,
        release: Option<&dyn Fn()>,
        buffer: &mut [u8],
    ) -> Option<Answer> {
        // No lock is set while a write waits without a limit.
        let is_lock =
            matches!(request, Request::Lock { lock: LockRequest::Set { kind: Some(_), .. }, .. });
        let _executing = is_lock.then(|| {
            let executing = self.server.locks.execute();
            drop(self.output.lock());
            executing
        });
        let executed =
            catch_unwind(AssertUnwindSafe(|| self.server.execute(id, request, release, buffer)));
        let answer = executed.unwrap_or_else(|_| {
            // The hook has printed the panic.
            let message = "internal error of the server".to_owned();
            Answer::Reply(Reply::Status { code: StatusCode::FAILURE, message, errno: None })
        });
        (!matches!(answer, Answer::WouldBlock)).then_some(answer)
    }

    /// Adds an answer, with its data in the buffer, to the output.
    fn send(&self, id: u32, answer: Answer, buffer: &[u8]) {
        match answer {
            Answer::WouldBlock | Answer::Waiting => {}
            Answer::Reply(reply) => match self.packed_reply(id, &reply) {
                Some(packed) => self.output.lock().packet(&packed),
                None => self.output.lock().reply(id, &reply),
            },
            Answer::Data(len) => match self.packed_data(id, &buffer[..len]) {
                Some(packed) => self.output.lock().packet(&packed),
                None => self.output.lock().data(id, &buffer[..len]),
            },
        }
    }

    /// The reply, compressed; `None` if it is not to be, or does not shrink.
    fn packed_reply(&self, id: u32, reply: &Reply) -> Option<BytesMut> {
        let may_be_long = matches!(reply, Reply::Names(_) | Reply::Extended(_));
        if !may_be_long || !self.server.packs.load(Ordering::Relaxed) {
            return None;
        }
        let mut packet = BytesMut::new();
        reply.encode(id, &mut packet);
        pack(&packet, &[])
    }

    /// A DATA reply, as [`Session::packed_reply`].
    fn packed_data(&self, id: u32, data: &[u8]) -> Option<BytesMut> {
        if !self.server.packs.load(Ordering::Relaxed) {
            return None;
        }
        let mut head = BytesMut::new();
        Reply::encode_data_head(id, data.len(), &mut head);
        pack(&head, data)
    }

    /// A request was answered.
    fn finish(&self, ticket: Ticket) {
        self.proceed(|schedule| schedule.finish(ticket));
    }

    /// Gives the requests to the pool that can be executed now.
    fn proceed(&self, ready: impl FnOnce(&mut Schedule<Bytes>) -> Vec<(Ticket, Bytes)>) {
        let mut state = self.state.lock();
        // The thread that reads requests may wait for room.
        let was_full = state.schedule.len() >= MAX_REQUESTS;
        let ready = ready(&mut state.schedule);
        let has_ended = state.ended_at.is_some();
        self.queue(state, ready);
        if was_full || has_ended {
            self.changed.notify_all();
        }
        if has_ended {
            self.queued.notify_all();
        }
    }

    /// No more requests come: the threads of the pool end when all were executed or are too late,
    /// and the further connections end. Returns when no requests are executed but those that hang,
    /// and none that may change a file with locks. The locks in local files have ended then.
    fn end(&self) {
        self.state.lock().ended_at = Some(Instant::now());
        self.queued.notify_all();
        self.server.locks.end();
        self.server.watches.iter().for_each(Watches::end);
        let listener = self.listener.lock().take();
        listener.iter().for_each(Listener::end);
        self.wait_for_requests(|schedule| schedule.executes_only(Entry::changes_nothing_local));
        self.server.lose_local_locks();
        // This waits for the requests of the further connections.
        drop(listener);
        self.wait_for_requests(|schedule| {
            let hung = schedule.hung(HUNG);
            let has_locks = !self.server.locks.files().is_empty();
            schedule.executes_only(|entry| {
                entry.is_of(&hung) && !(has_locks && entry.may_change_contents())
            })
        });
        self.server.lose_locks();
    }

    /// Waits until all requests are finished, or no other ones begin and those that have begun may
    /// be left.
    fn wait_for_requests(&self, may_be_left: impl Fn(&Schedule<Bytes>) -> bool) {
        let mut state = self.state.lock();
        while state.schedule.len() > 0 {
            if state.is_late() {
                while let Some((ticket, _)) = state.queue.pop_front() {
                    let ready = state.schedule.finish(ticket);
                    state.queue.extend(ready);
                }
                if may_be_left(&state.schedule) {
                    return;
                }
            }
            let waited = self.changed.wait_timeout(state, END_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Replies that were not sent yet, and the stream to the client.
struct Output {
    stream: Box<dyn Replies>,
    replies: BytesMut,
    /// With locks, the client may take no reply for a limited time.
    locks: Arc<Locks>,
    /// The client cannot be reached any more.
    error: Option<io::ErrorKind>,
}

impl Output {
    fn reply(&mut self, id: u32, reply: &Reply) {
        reply.encode(id, &mut self.replies);
        self.flush_if_long();
    }

    /// A packet.
    fn packet(&mut self, packet: &[u8]) {
        self.replies.extend_from_slice(packet);
        self.flush_if_long();
    }

    /// A DATA reply. Long content is sent at once, behind the replies before it.
    fn data(&mut self, id: u32, data: &[u8]) {
        Reply::encode_data_head(id, data.len(), &mut self.replies);
        if data.len() < LONG_CONTENT {
            self.replies.extend_from_slice(data);
            self.flush_if_long();
            return;
        }
        let head = self.replies.split();
        self.write(&mut [IoSlice::new(&head), IoSlice::new(data)]);
    }

    fn flush_if_long(&mut self) {
        if self.replies.len() >= LONG_OUTPUT {
            // The next reader of a request returns the error.
            let _ = self.flush();
        }
    }

    /// Sends all replies.
    fn flush(&mut self) -> io::Result<()> {
        if !self.replies.is_empty() {
            let replies = self.replies.split();
            self.write(&mut [IoSlice::new(&replies)]);
        }
        self.error.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn write(&mut self, mut slices: &mut [IoSlice<'_>]) {
        while !slices.is_empty() && self.error.is_none() {
            match self.stream.write_within(slices, &self.locks) {
                Ok(0) => self.error = Some(io::ErrorKind::WriteZero),
                Ok(written) => IoSlice::advance_slices(&mut slices, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.error = Some(error.kind()),
            }
        }
    }
}

/// The packets of the client.
struct Packets<'a> {
    input: &'a mut dyn Input,
    buffer: BytesMut,
}

impl Input for File {
    fn is_readable_within(&mut self, limit: Duration) -> io::Result<bool> {
        is_ready_within(self, PollFlags::IN, limit)
    }
}

impl Replies for File {
    fn write_within(&mut self, slices: &[IoSlice<'_>], locks: &Locks) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let began = Instant::now();
        loop {
            let sent = sendmsg(&*self, slices, &mut SendAncillaryBuffer::default(), flags);
            match sent {
                Err(Errno::INTR) => continue,
                // A pipe. It takes all at once only if it may wait as long as that takes.
                Err(Errno::NOTSOCK) if locks.write_limit().is_none() => {
                    return self.write_vectored(slices);
                }
                Err(Errno::AGAIN | Errno::NOTSOCK) => {}
                sent => return Ok(sent?),
            }
            while !is_ready_within(self, PollFlags::OUT, LIMIT_INTERVAL)? {
                if locks.silence_limit().is_some_and(|limit| began.elapsed() >= limit) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            if sent == Err(Errno::NOTSOCK) {
                let slice = slices.iter().find(|slice| !slice.is_empty());
                let bytes = slice.map_or(&[][..], |slice| &slice[..slice.len().min(PIPE_BUF)]);
                return self.write(bytes);
            }
        }
    }
}

/// Waits for one of these events; `false` if there was none for this time.
fn is_ready_within(file: &File, events: PollFlags, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, events)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Whether the request is one of [`MAX_RELEASES`].
fn is_release(packet: &[u8], request: &Request<'_>) -> bool {
    packet.len() <= MAX_RELEASE_BYTES && server::releases(request)
}

/// The packet as it is queued. A slice keeps the whole buffer in which it was received, which has
/// room for the longest packet.
fn to_queue(packet: &Bytes, is_release: bool) -> Bytes {
    if is_release { Bytes::copy_from_slice(packet) } else { packet.clone() }
}

/// Bytes that are read at once, if there are as many.
const READ_BYTES: usize = 64 << 10;

impl Packets<'_> {
    /// The next packet, without its length field; `None` at the end of the stream. `before_wait` is
    /// called before the stream is read with the time for which it was silent, and returns when it
    /// is to be called again if the stream stays silent.
    fn next(
        &mut self,
        mut before_wait: impl FnMut(Duration) -> Result<Option<Duration>, Error>,
    ) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(len) = packet_length(&self.buffer, MAX_PACKET_BYTES)?
                && self.buffer.len() >= HEADER_BYTES + len
            {
                let mut packet = self.buffer.split_to(HEADER_BYTES + len);
                return Ok(Some(packet.split_off(HEADER_BYTES).freeze()));
            }
            let since = Instant::now();
            while let Some(limit) = before_wait(since.elapsed())?
                && !self.input.is_readable_within(limit).map_err(Error::Stream)?
            {}
            let filled = self.buffer.len();
            self.buffer.resize(filled + READ_BYTES, 0);
            let read = loop {
                match self.input.read(&mut self.buffer[filled..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read.map_err(Error::Stream)?,
                }
            };
            self.buffer.truncate(filled + read);
            if read == 0 {
                return match filled {
                    0 => Ok(None),
                    _ => Err(Error::Malformed(Malformed::Truncated)),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use base::{LockFamily, LockKind, LockOwner, LockRange};
    use sftp::codec::{FileAttrs, OpenFlags, encode_init};
    use testkit::Lease;

    use super::*;
    use crate::schedule::{Mode, Resource};

    #[test]
    fn a_queued_release_is_small() {
        let release = |trailing: usize| {
            let mut packet = BytesMut::new();
            Request::Close { handle: b"7" }.encode(1, &mut packet);
            packet.resize(packet.len() + trailing, 0);
            let packet = packet.freeze().slice(HEADER_BYTES..);
            let (_, request) = Request::decode(&packet).unwrap();
            let is_release = is_release(&packet, &request);
            let queued = to_queue(&packet, is_release);
            assert_eq!(queued, packet);
            (is_release, queued.as_ptr() == packet.as_ptr())
        };
        assert_eq!(release(0), (true, false), "does not keep the receive buffer");
        assert_eq!(release(MAX_RELEASE_BYTES), (false, true));
    }

    /// A session without a thread that reads requests, and the client's end of its replies.
    fn session(dir: &Path) -> (Session, UnixStream) {
        let (client, theirs) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let options = Options { root: Some(dir.to_owned()), ..Options::default() };
        let output = Box::new(File::from(OwnedFd::from(theirs)));
        (Session::new(output, &options, &Arc::new(Room::new(10))).unwrap(), client)
    }

    /// A burst of changes of names, each of which takes long, while there is one idle thread, and
    /// the thread that reads requests waits for the client.
    #[test]
    fn a_request_that_an_executed_one_releases_gets_a_thread() {
        let dir = tempfile::tempdir().unwrap();
        let mut leases = Vec::new();
        for name in ["a", "b"] {
            std::fs::write(dir.path().join(name), "").unwrap();
            leases.push(Lease::take(&dir.path().join(name)));
        }
        if leases.iter().any(Option::is_none) {
            eprintln!("skipped: the file system has no leases");
            return;
        }
        let (session, mut client) = session(dir.path());
        let (flags, attrs) = (OpenFlags::WRITE | OpenFlags::CREATE, FileAttrs::default());
        let mut head = [0; 9];
        let received = thread::scope(|scope| {
            let names = vec![(Resource::Names, Mode::Change)];
            let (first, _) = session.state.lock().schedule.add(names, false, None, Bytes::new());
            for (id, path) in [(1, b"a"), (2, b"b"), (3, b"c")] {
                let mut packet = BytesMut::new();
                Request::Open { path, flags, attrs }.encode(id, &mut packet);
                let packet = packet.freeze().slice(HEADER_BYTES..);
                session.accept(scope, packet, &mut []).unwrap();
                while session.state.lock().idle == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            session.finish(first);
            let received = client.read_exact(&mut head);
            drop(leases);
            session.end();
            received
        });
        received.unwrap();
        assert_eq!(head[5..], [0, 0, 0, 3]);
    }

    /// The limit makes each write to a pipe short, and ends a connection that is only slow.
    #[test]
    fn a_write_is_limited_while_a_lock_is_held_or_requested() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        let (session, _client) = session(dir.path());
        let (flags, attrs) = (OpenFlags::READ | OpenFlags::WRITE, FileAttrs::default());
        let execute = |request| match session.answer(1, &request, None, &mut []) {
            Some(Answer::Reply(reply)) => reply,
            _ => panic!("{request:?}"),
        };
        let Reply::Handle(handle) = execute(Request::Open { path: b"f", flags, attrs }) else {
            panic!("not opened")
        };
        let handle = handle.as_bytes();
        let lock = |lock| assert_eq!(errno(&execute(Request::Lock { handle, lock })), 0);
        let owner = LockOwner { family: LockFamily::Posix, number: 1 };
        let set = |kind| LockRequest::Set { owner, range: LockRange::WHOLE, kind, wait_ms: 0 };
        let limit = || session.server.locks.write_limit();
        lock(LockRequest::Lease { seconds: 1 });
        assert_eq!(limit(), None);
        lock(set(Some(LockKind::Write)));
        assert_eq!(limit(), Some(Duration::from_secs(1)));
        lock(set(None));
        assert_eq!(limit(), None);
        // One that waits is executed only when no write without a limit is in progress.
        thread::scope(|scope| {
            let writing = session.output.lock();
            let thread = scope.spawn(|| lock(set(Some(LockKind::Write))));
            while limit().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(session.server.locks.files().is_empty());
            drop(writing);
            thread.join().unwrap();
        });
        assert!(!session.server.locks.files().is_empty());
    }

    /// A connection of a client, and its handle of the file `f`.
    struct Peer {
        stream: UnixStream,
        server: thread::JoinHandle<Result<(), Error>>,
        handle: Vec<u8>,
    }

    impl Peer {
        fn new(dir: &Path, room: &Arc<Room>) -> Peer {
            let (stream, theirs) = UnixStream::pair().unwrap();
            let room = room.clone();
            let options = Options { root: Some(dir.to_owned()), ..Options::default() };
            let server = thread::spawn(move || {
                let output = File::from(OwnedFd::from(theirs.try_clone().unwrap()));
                let input = File::from(OwnedFd::from(theirs));
                serve_connection(Box::new(input), Box::new(output), &options, &room)
            });
            let mut peer = Peer { stream, server, handle: Vec::new() };
            let mut init = BytesMut::new();
            encode_init(3, &mut init);
            peer.stream.write_all(&init).unwrap();
            peer.packet();
            peer.open();
            peer
        }

        fn open(&mut self) {
            self.open_with(OpenFlags::WRITE | OpenFlags::CREATE);
        }

        fn open_with(&mut self, flags: OpenFlags) {
            let attrs = FileAttrs::default();
            let Reply::Handle(handle) = self.call(Request::Open { path: b"f", flags, attrs })
            else {
                panic!("not opened")
            };
            self.handle = handle.as_bytes().to_vec();
        }

        fn packet(&mut self) -> Bytes {
            let mut len = [0; 4];
            self.stream.read_exact(&mut len).unwrap();
            let mut packet = vec![0; u32::from_be_bytes(len) as usize];
            self.stream.read_exact(&mut packet).unwrap();
            packet.into()
        }

        fn call(&mut self, request: Request<'_>) -> Reply {
            let mut out = BytesMut::new();
            request.encode(7, &mut out);
            self.stream.write_all(&out).unwrap();
            Reply::decode(&self.packet()).unwrap().1
        }

        /// The errno of a WRITE; 0 for success.
        fn write(&mut self, data: &[u8]) -> i32 {
            let handle = &self.handle.clone();
            errno(&self.call(Request::Write { handle, offset: 0, data }))
        }

        /// The errno of a request about locks; 0 for success.
        fn lock(&mut self, lock: LockRequest) -> i32 {
            let handle = &self.handle.clone();
            errno(&self.call(Request::Lock { handle, lock }))
        }
    }

    fn errno(reply: &Reply) -> i32 {
        match reply {
            Reply::Status { errno, .. } => errno.unwrap_or(0),
            other => panic!("{other:?}"),
        }
    }

    /// It has sent them before it has noticed that its locks have ended.
    #[test]
    fn writes_of_a_client_that_has_lost_its_locks_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::new(10));
        let [mut locker, mut other] = [(); 2].map(|()| Peer::new(dir.path(), &room));
        let owner = LockOwner { family: LockFamily::Posix, number: 1 };
        let (range, kind) = (LockRange::WHOLE, Some(LockKind::Write));
        assert_eq!(locker.lock(LockRequest::Lease { seconds: 1 }), 0);
        assert_eq!(locker.lock(LockRequest::Set { owner, range, kind, wait_ms: 0 }), 0);
        assert_eq!(other.write(b"with the lock"), 0);
        assert!(matches!(locker.server.join().unwrap(), Err(Error::Silent(_))));
        let handle = &other.handle.clone();
        let refused = other.call(Request::Write { handle, offset: 0, data: b"WITHOUT IT" });
        // By this the client recognises it.
        let Reply::Status { code, errno, .. } = refused else { panic!("{refused:?}") };
        assert_eq!((code, errno), (StatusCode::NO_MATCHING_LOCK, Some(Errno::IO.raw_os_error())));
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"with the lock");
        // The client has opened it again, and may have set the locks again.
        other.open();
        assert_eq!(other.write(b"again"), 0);
        drop(other.stream);
        other.server.join().unwrap().unwrap();
    }

    /// It has noticed the end of its connection before the server has.
    #[test]
    fn writes_of_a_client_that_has_set_its_locks_again_are_executed() {
        let owner = LockOwner { family: LockFamily::Flock, number: 1 };
        let set =
            |kind, wait_ms| LockRequest::Set { owner, range: LockRange::WHOLE, kind, wait_ms };
        for kind in [Some(LockKind::Write), Some(LockKind::Read)] {
            let dir = tempfile::tempdir().unwrap();
            let room = Arc::new(Room::new(10));
            let [mut locker, mut successor, mut other] =
                [(); 3].map(|()| Peer::new(dir.path(), &room));
            let first = successor.handle.clone();
            successor.open();
            assert_eq!(locker.lock(LockRequest::Lease { seconds: 1 }), 0);
            assert_eq!(locker.lock(set(kind, 0)), 0);
            // A write lock waits for the end of the former connection.
            assert_eq!(successor.lock(set(kind, 10_000)), 0);
            assert!(matches!(locker.server.join().unwrap(), Err(Error::Silent(_))));
            for handle in [successor.handle.clone(), first] {
                successor.handle = handle;
                assert_eq!(successor.write(b"with the lock"), 0, "{kind:?}");
            }
            assert_eq!(other.write(b"WITHOUT IT"), Errno::IO.raw_os_error(), "{kind:?}");
            assert_eq!(successor.lock(set(None, 0)), 0);
            assert_eq!(successor.write(b"without a lock"), 0, "{kind:?}");
            for peer in [successor, other] {
                drop(peer.stream);
                peer.server.join().unwrap().unwrap();
            }
        }
    }

    /// It has noticed the end of its connection before the server has, and read locks do not wait
    /// for that.
    #[test]
    fn writes_of_a_client_that_has_set_and_released_its_locks_again_are_executed() {
        let dir = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::new(10));
        let [mut locker, mut successor, mut earlier] =
            [(); 3].map(|()| Peer::new(dir.path(), &room));
        let owner = LockOwner { family: LockFamily::Posix, number: 1 };
        let set = |kind| LockRequest::Set { owner, range: LockRange::WHOLE, kind, wait_ms: 0 };
        assert_eq!(locker.lock(LockRequest::Lease { seconds: 1 }), 0);
        for peer in [&mut locker, &mut successor, &mut earlier] {
            peer.open_with(OpenFlags::READ | OpenFlags::WRITE);
        }
        assert_eq!(earlier.lock(set(Some(LockKind::Read))), 0);
        assert_eq!(earlier.lock(set(None)), 0);
        for peer in [&mut locker, &mut successor] {
            assert_eq!(peer.lock(set(Some(LockKind::Read))), 0);
        }
        assert_eq!(successor.lock(set(None)), 0);
        assert!(matches!(locker.server.join().unwrap(), Err(Error::Silent(_))));
        assert_eq!(successor.write(b"with the lock before"), 0);
        assert_eq!(earlier.write(b"WITHOUT IT"), Errno::IO.raw_os_error());
        for peer in [successor, earlier] {
            drop(peer.stream);
            peer.server.join().unwrap().unwrap();
        }
    }
}
