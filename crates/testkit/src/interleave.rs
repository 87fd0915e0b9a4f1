//! Two or more clients of one server, of which one makes one step at a time.
//!
//! Each client reaches the server through [`FaultyRemote`]s of its own. Every call stops twice:
//! before it reaches the server, and with its answer in hand. When all clients have come to a stop,
//! the test checks its invariants, and one call is chosen at random and goes on. So the clients are
//! interleaved call by call, in an order that the seed repeats. One of them may be
//! [killed](Interleave::kill) or [interrupted](Interleave::interrupt) at a random step.
//!
//! To be run on a current-thread runtime with tokio's time paused (`#[tokio::test(start_paused =
//! true)]`): then a stop is where nothing can run any more, and the order depends on the seed alone,
//! as long as the clients use no threads of their own. With time that passes, calls that arrive
//! within a millisecond are chosen from.
//!
//! ```
//! # use std::sync::Arc;
//! # use base::Remote;
//! # use testkit::{FaultyRemote, MemRemote, interleave::Interleave, path};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! for seed in 0..10 {
//!     let server = Arc::new(MemRemote::new());
//!     let mut play = Interleave::new(seed);
//!     for name in ["first", "second"] {
//!         let link = Arc::new(FaultyRemote::new(server.clone()));
//!         let through = link.clone();
//!         let work = async move { through.mkdir(&path("lock"), 0o755).await.is_ok() };
//!         play.client(name, [link], work);
//!     }
//!     let made = play.run(|_| assert!(server.names("").len() <= 1)).await;
//!     assert_eq!(made.into_iter().flatten().filter(|made| *made).count(), 1);
//! }
//! # }
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::Remote;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::FaultyRemote;
use crate::call::Call;
use crate::faulty::Turnstile;

/// Released calls that are remembered for a failure's message.
const REMEMBERED: usize = 60;

/// How long the clients have to come to a stop. With paused time: until nothing can run.
const SETTLING: Duration = Duration::from_millis(1);

/// The orders that a test tries: `few`, `many` with `SSHOAL_TEST_BIG=1`, or the one whose seed is in
/// `SSHOAL_TEST_SEED`, as a failure has printed it.
///
/// # Panics
///
/// When `SSHOAL_TEST_SEED` is not a number.
#[must_use]
pub fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("SSHOAL_TEST_SEED") {
        let seed: u64 = seed.parse().expect("SSHOAL_TEST_SEED is a number");
        return seed..seed + 1;
    }
    let is_big = std::env::var_os("SSHOAL_TEST_BIG").is_some_and(|value| value == "1");
    0..if is_big { many } else { few }
}

/// A link of a client, whatever is behind it.
trait Link: Send + Sync {
    fn hold_each(&self, bell: Arc<Notify>) -> Turnstile;
    fn end_session(&self);
}

impl<R: Remote + ?Sized> Link for FaultyRemote<R> {
    fn hold_each(&self, bell: Arc<Notify>) -> Turnstile {
        self.hold_each_with(bell)
    }

    fn end_session(&self) {
        FaultyRemote::end_session(self);
    }
}

/// What happens to a client at a random step.
enum Mishap {
    Kill,
    Interrupt(Box<dyn FnOnce() + Send>),
}

struct Client<T> {
    name: String,
    links: Vec<(Arc<dyn Link>, Turnstile)>,
    work: State<T>,
    mishap: Option<(usize, Mishap)>,
    /// Calls that it was let go on with.
    steps: usize,
}

enum State<T> {
    Ready(Pin<Box<dyn Future<Output = T> + Send>>),
    Running(JoinHandle<T>),
    Over(Option<T>),
}

/// Clients that are to be interleaved. See the [module](self).
pub struct Interleave<T> {
    seed: u64,
    random: Random,
    clients: Vec<Client<T>>,
    /// A call has come to a stop.
    bell: Arc<Notify>,
}

/// A moment at which no client goes on.
pub struct Stop {
    seed: u64,
    step: usize,
    recent: VecDeque<(usize, Option<Call>)>,
    names: Vec<String>,
    killed: bool,
}

impl Stop {
    /// How many calls were let go on so far.
    #[must_use]
    pub fn step(&self) -> usize {
        self.step
    }

    /// Whether a client was killed or interrupted before.
    #[must_use]
    pub fn is_after_mishap(&self) -> bool {
        self.killed
    }

    fn note(&mut self, client: usize, call: Option<Call>) {
        self.step += 1;
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((client, call));
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "seed {}, step {}:", self.seed, self.step)?;
        for (client, call) in &self.recent {
            match call {
                Some(call) => write!(out, " {}.{call:?}", self.names[*client])?,
                None => write!(out, " {} is stopped;", self.names[*client])?,
            }
        }
        Ok(())
    }
}

/// Prints where a failure was.
struct Report(Stop);

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("interleaved with {}", self.0);
        }
    }
}

impl<T: Send + 'static> Interleave<T> {
    /// No clients yet. The same seed gives the same order.
    #[must_use]
    pub fn new(seed: u64) -> Interleave<T> {
        Interleave { seed, random: Random(seed), clients: Vec::new(), bell: Arc::default() }
    }

    /// Adds a client that does `work`, and reaches the server through these links only. The links
    /// must not be used before [`Interleave::run`].
    pub fn client<R: Remote + ?Sized>(
        &mut self,
        name: &str,
        links: impl IntoIterator<Item = Arc<FaultyRemote<R>>>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> &mut Self {
        let links = links.into_iter().map(|link: Arc<FaultyRemote<R>>| {
            let turnstile = Link::hold_each(&*link, self.bell.clone());
            (link as Arc<dyn Link>, turnstile)
        });
        let links = links.collect();
        let (name, work) = (name.to_owned(), State::Ready(Box::pin(work)));
        self.clients.push(Client { name, links, work, mishap: None, steps: 0 });
        self
    }

    /// Lets the client that was added last be dropped at a random step, and its sessions end, as if its
    /// process was killed. Where the step comes after its end, nothing happens.
    pub fn kill(&mut self) -> &mut Self {
        self.mishap(Mishap::Kill)
    }

    /// As [`Interleave::kill`], but `interrupt` is called and the client goes on.
    pub fn interrupt(&mut self, interrupt: impl FnOnce() + Send + 'static) -> &mut Self {
        self.mishap(Mishap::Interrupt(Box::new(interrupt)))
    }

    fn mishap(&mut self, mishap: Mishap) -> &mut Self {
        // As often among the first calls as among the first thousand.
        let most = 1 << (1 + self.random.below(10));
        let step = self.random.below(most);
        let client = self.clients.last_mut().expect("a client was added");
        client.mishap = Some((step, mishap));
        self
    }

    /// Runs all clients to their ends, and calls `check` at each stop. Returns what the clients
    /// returned, in the order in which they were added; `None` for one that was killed.
    ///
    /// # Panics
    ///
    /// When `check` or a client does. The seed and the last calls are printed then.
    pub async fn run(mut self, mut check: impl FnMut(&Stop)) -> Vec<Option<T>> {
        let names = self.clients.iter().map(|client| client.name.clone()).collect();
        let stop = Stop { seed: self.seed, step: 0, recent: VecDeque::new(), names, killed: false };
        let mut report = Report(stop);
        // Some orders change the client at each call, some let one run for long: many faults need
        // one client at a certain point and the other far beyond it.
        let goes_on_of_64 = [0, 32, 58, 63][self.random.below(4)];
        let mut current = self.random.below(self.clients.len());
        for client in &mut self.clients {
            client.start();
        }
        loop {
            tokio::time::sleep(SETTLING).await;
            for client in &mut self.clients {
                client.note_end().await;
            }
            check(&report.0);
            let able: Vec<usize> = self.able();
            if able.is_empty() {
                if self.clients.iter().all(Client::is_over) {
                    break;
                }
                self.arrival().await;
                continue;
            }
            let goes_on = able.contains(&current) && self.random.below(64) < goes_on_of_64;
            if !goes_on {
                current = able[self.random.below(able.len())];
            }
            let client = &mut self.clients[current];
            if let Some((_, mishap)) = client.mishap.take_if(|(step, _)| *step <= client.steps) {
                report.0.note(current, None);
                report.0.killed = true;
                match mishap {
                    Mishap::Kill => client.kill().await,
                    Mishap::Interrupt(interrupt) => interrupt(),
                }
                continue;
            }
            let call = client.step(&mut self.random);
            report.0.note(current, call);
        }
        let over = self.clients.into_iter().map(|client| match client.work {
            State::Over(value) => value,
            _ => None,
        });
        over.collect()
    }

    /// The clients of which a call waits.
    fn able(&self) -> Vec<usize> {
        let waiting = |client: &Client<T>| client.links.iter().any(|(_, it)| it.waiting() > 0);
        let able = self.clients.iter().enumerate().filter(|(_, client)| waiting(client));
        able.map(|(at, _)| at).collect()
    }

    /// Waits until a client comes to a stop, or to its end.
    async fn arrival(&mut self) {
        let mut bell = pin!(self.bell.notified());
        let clients = &mut self.clients;
        std::future::poll_fn(|context| {
            let mut arrived = bell.as_mut().poll(context).is_ready();
            for client in &mut *clients {
                if let State::Running(running) = &mut client.work
                    && let Poll::Ready(end) = Pin::new(running).poll(context)
                {
                    client.work = State::Over(Some(ended(end)));
                    arrived = true;
                }
            }
            if arrived { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// What a task has returned; its panic is ours.
fn ended<T>(joined: Result<T, tokio::task::JoinError>) -> T {
    match joined {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl<T: Send + 'static> Client<T> {
    fn start(&mut self) {
        self.work = match std::mem::replace(&mut self.work, State::Over(None)) {
            State::Ready(work) => State::Running(tokio::spawn(work)),
            other => other,
        };
    }

    fn is_over(&self) -> bool {
        matches!(self.work, State::Over(_))
    }

    async fn note_end(&mut self) {
        if let State::Running(running) = &mut self.work
            && running.is_finished()
        {
            self.work = State::Over(Some(ended(running.await)));
        }
    }

    /// Lets one of its calls go on.
    fn step(&mut self, random: &mut Random) -> Option<Call> {
        self.steps += 1;
        let waiting: usize = self.links.iter().map(|(_, it)| it.waiting()).sum();
        let mut number = random.below(waiting);
        for (_, turnstile) in &self.links {
            match turnstile.waiting() {
                here if number < here => return turnstile.release(number),
                here => number -= here,
            }
        }
        None
    }

    async fn kill(&mut self) {
        if let State::Running(running) = &mut self.work {
            running.abort();
            let _ = running.await;
        }
        self.work = State::Over(None);
        for (link, turnstile) in &self.links {
            link.end_session();
            turnstile.open();
        }
    }
}

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}
