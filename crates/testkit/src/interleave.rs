//! Two or more clients of one server, one of which takes a step at a time.
//!
//! Each client reaches the server through its own [`FaultyRemote`]s. Every call stops twice: before
//! it reaches the server, and with its reply received. When all clients have stopped, the test
//! checks its invariants, and one call is chosen at random and released. So the clients are
//! interleaved call by call, in an order that the seed reproduces. A client may be
//! [killed](Interleave::kill) or [interrupted](Interleave::interrupt) at a random step.
//!
//! Has to run on a current-thread runtime with tokio's time paused (`#[tokio::test(start_paused =
//! true)]`): then at a stop nothing else can run, and the order depends only on the seed, as long
//! as the clients use no threads. With running time, the choice is among calls that arrive within a
//! millisecond.
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
use crate::dice::Dice;
use crate::faulty::Stepper;

/// Number of released calls shown in a failure message.
const REMEMBERED: usize = 60;

/// Time until all clients have stopped. With paused time: until nothing can run.
const SETTLING: Duration = Duration::from_millis(1);

/// The seeds that a test runs: `few`, `many` with `SSHOAL_TEST_BIG=1`, or the one in
/// `SSHOAL_TEST_SEED`, as printed by a failure.
///
/// # Panics
///
/// If `SSHOAL_TEST_SEED` is not a number.
pub fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("SSHOAL_TEST_SEED") {
        let seed: u64 = seed.parse().expect("SSHOAL_TEST_SEED is a number");
        return seed..seed + 1;
    }
    let is_big = std::env::var_os("SSHOAL_TEST_BIG").is_some_and(|value| value == "1");
    0..if is_big { many } else { few }
}

/// A disruption of a client at a random step.
enum Disruption {
    Kill,
    Interrupt(Box<dyn FnOnce() + Send>),
}

struct Client<T> {
    name: String,
    /// Each ends the session of a link.
    links: Vec<(Box<dyn Fn() + Send + Sync>, Stepper)>,
    work: State<T>,
    disruption: Option<(usize, Disruption)>,
    /// Number of released calls.
    steps: usize,
}

enum State<T> {
    Running(JoinHandle<T>),
    Over(Option<T>),
}

/// Clients that are to be interleaved. See the [module](self).
pub struct Interleave<T> {
    seed: u64,
    dice: Dice,
    clients: Vec<Client<T>>,
    /// Notified when a call stops.
    arrivals: Arc<Notify>,
}

/// A moment at which no client is running.
pub struct Stop {
    seed: u64,
    step: usize,
    recent: VecDeque<(usize, Option<Call>)>,
    names: Vec<String>,
    killed: bool,
}

impl Stop {
    /// Number of calls released so far.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Whether a client was killed or interrupted before.
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

/// Prints the position of a failure.
struct Report(Stop);

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("interleaved with {}", self.0);
        }
    }
}

impl<T: Send + 'static> Interleave<T> {
    /// No clients yet. One seed always gives one order.
    pub fn new(seed: u64) -> Interleave<T> {
        Interleave { seed, dice: Dice::new(seed), clients: Vec::new(), arrivals: Arc::default() }
    }

    /// Adds a client that runs `work` and reaches the server only through these links, which must
    /// not be used before. Its first call waits for [`Interleave::run`]. Needs a tokio runtime.
    pub fn client<R: Remote + ?Sized>(
        &mut self,
        name: &str,
        links: impl IntoIterator<Item = Arc<FaultyRemote<R>>>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> &mut Self {
        let links = links.into_iter().map(|link: Arc<FaultyRemote<R>>| {
            let stepper = link.hold_each(self.arrivals.clone());
            let end_session: Box<dyn Fn() + Send + Sync> = Box::new(move || link.end_session());
            (end_session, stepper)
        });
        let links = links.collect();
        let (name, work) = (name.to_owned(), State::Running(tokio::spawn(work)));
        self.clients.push(Client { name, links, work, disruption: None, steps: 0 });
        self
    }

    /// Drops the last added client at a random step and ends its sessions, as if its process was
    /// killed. If the client ends before that step, nothing happens.
    pub fn kill(&mut self) -> &mut Self {
        self.disruption(Disruption::Kill)
    }

    /// Like [`Interleave::kill`], but calls `interrupt`, and the client continues.
    pub fn interrupt(&mut self, interrupt: impl FnOnce() + Send + 'static) -> &mut Self {
        self.disruption(Disruption::Interrupt(Box::new(interrupt)))
    }

    fn disruption(&mut self, disruption: Disruption) -> &mut Self {
        // As often among the first calls as among the first thousand.
        let most = 1 << (1 + self.dice.below(10));
        let step = self.dice.index(most);
        let client = self.clients.last_mut().expect("a client was added");
        client.disruption = Some((step, disruption));
        self
    }

    /// Runs all clients to their ends, and calls `check` at each stop. Returns the clients' results
    /// in the order in which they were added; `None` for a killed one.
    ///
    /// # Panics
    ///
    /// If `check` or a client panics. The seed and the last calls are printed then.
    pub async fn run(mut self, mut check: impl FnMut(&Stop)) -> Vec<Option<T>> {
        let names = self.clients.iter().map(|client| client.name.clone()).collect();
        let stop = Stop { seed: self.seed, step: 0, recent: VecDeque::new(), names, killed: false };
        let mut report = Report(stop);
        // Some orders change the client at each call, others let one run for long: many faults need
        // one client at a certain point and another one far beyond it.
        let goes_on_of_64 = self.dice.pick(&[0, 32, 58, 63]);
        let mut current = self.dice.index(self.clients.len());
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
            let goes_on = able.contains(&current) && self.dice.below(64) < goes_on_of_64;
            if !goes_on {
                current = self.dice.pick(&able);
            }
            let client = &mut self.clients[current];
            if let Some((_, disruption)) =
                client.disruption.take_if(|(step, _)| *step <= client.steps)
            {
                report.0.note(current, None);
                report.0.killed = true;
                match disruption {
                    Disruption::Kill => client.kill().await,
                    Disruption::Interrupt(interrupt) => interrupt(),
                }
                continue;
            }
            let call = client.step(&mut self.dice);
            report.0.note(current, call);
        }
        let over = self.clients.into_iter().map(|client| match client.work {
            State::Over(value) => value,
            State::Running(_) => None,
        });
        over.collect()
    }

    /// The clients with a stopped call.
    fn able(&self) -> Vec<usize> {
        let waiting = |client: &Client<T>| client.links.iter().any(|(_, it)| it.waiting() > 0);
        let able = self.clients.iter().enumerate().filter(|(_, client)| waiting(client));
        able.map(|(at, _)| at).collect()
    }

    /// Waits until a client stops or ends.
    async fn arrival(&mut self) {
        let mut arrivals = pin!(self.arrivals.notified());
        let clients = &mut self.clients;
        std::future::poll_fn(|context| {
            let mut arrived = arrivals.as_mut().poll(context).is_ready();
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

/// The result of a task; propagates its panic.
fn ended<T>(joined: Result<T, tokio::task::JoinError>) -> T {
    match joined {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl<T: Send + 'static> Client<T> {
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

    /// Releases one of the client's calls.
    fn step(&mut self, dice: &mut Dice) -> Option<Call> {
        self.steps += 1;
        let waiting: usize = self.links.iter().map(|(_, it)| it.waiting()).sum();
        let mut number = dice.index(waiting);
        for (_, stepper) in &self.links {
            match stepper.waiting() {
                here if number < here => return stepper.release(number),
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
        for (end_session, stepper) in &self.links {
            end_session();
            stepper.open();
        }
    }
}
