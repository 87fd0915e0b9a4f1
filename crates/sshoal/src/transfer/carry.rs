//! One copy: the engines in their order.
//!
//! A stream by tar goes first where it can: what it brings is not there yet, so that nothing has to
//! be compared. Whatever it does not bring is for a run over SFTP, which compares both sides; so a
//! stream that breaks is no more than a copy with less left to do. The connections of the run are
//! made when it is needed.

mod pull;
mod push;
mod sessions;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Errno, Name, Remote, RemotePath};
use local::Local;
use tokio::sync::watch;
use transfer::digest::ShellDigester;
use transfer::plan::Ahead;
use transfer::tar::collect::Collector;
use transfer::tar::listing::{self, Left, Listing};
use transfer::tar::{ANSWER_LIMIT, LOGIN_LIMIT};
use transfer::tar::{Compress, Declined, Spare, Streak, Streamed, Streaming};
use transfer::unseen::{ShellFind, Unseen};
use transfer::{Job, Options, Outcome, Progress, Run, Shell, Source, Stop, Tree};

use super::Way;
use super::arguments::{Arguments, Engine};
use super::place::{FarPlace, NearPlace, is_far};
use super::shell;
use super::show::Show;
use crate::connector::Begun;
use crate::mount::request::MountRequest;
use crate::report::{Problem, printable};
use crate::stack::{self, Stack};
use sessions::Sessions;

/// How it ended.
pub struct Ended {
    pub outcome: Outcome,
    /// Those that have copied something.
    pub engines: Vec<&'static str>,
    /// What the user should know, though nothing is wrong.
    pub notes: Vec<String>,
    /// What a stream used of what its link can, from 0 to 1 and more, where that was measured.
    pub link_share: Option<f64>,
}

/// What is to be done, checked as far as the command line alone tells.
pub struct Carrier {
    way: Way,
    engine: Engine,
    compress: Compress,
    options: Options,
    has_filter: bool,
    request: MountRequest,
    far: Vec<FarPlace>,
    near: Vec<NearPlace>,
    /// The target was written with a slash at its end: it is a directory.
    target_is_directory: bool,
    show: Arc<Show>,
    /// Sessions of the only host, begun before they are needed.
    sessions: Sessions,
}

/// What of the far side is in use.
struct Reached {
    /// Keeps the connections.
    _stack: Stack,
    remote: Arc<dyn Remote>,
    shell: Option<Arc<dyn Shell>>,
    directory: Vec<u8>,
    /// What its login has listed.
    listing: Option<Listing>,
}

/// What the streams have left.
#[derive(Default)]
struct Progressed {
    /// Each with whether nothing was left.
    streaks: Vec<(Streak, bool)>,
    outcome: Option<Outcome>,
    engines: Vec<&'static str>,
    notes: Vec<String>,
    link_share: Option<f64>,
}

type Asked = watch::Receiver<bool>;

impl Carrier {
    /// Reads the operands.
    pub fn new(
        way: Way,
        arguments: &Arguments,
        request: MountRequest,
        show: Arc<Show>,
    ) -> Result<Carrier, Problem> {
        if let Some(refused) = arguments.refused() {
            return Err(refused);
        }
        let operands = arguments.operands.split_last();
        let Some((target, sources)) = operands.filter(|(_, sources)| !sources.is_empty()) else {
            let usage = format!("usage: sshoal {} [OPTIONS] SOURCE... TARGET", way.name());
            return Err(Problem::new("target", "missing").hint(usage));
        };
        let wrong_side = |word: &std::ffi::OsString, what: &str| {
            let command = if way == Way::Pull { "push" } else { "pull" };
            let hint = format!("host:path names one; `sshoal {command}` goes the other way");
            Problem::new(format!("'{}'", printable(word)), what).hint(hint)
        };
        let (mut far, mut near) = (Vec::new(), Vec::new());
        match way {
            Way::Pull => {
                for word in sources {
                    if !is_far(word) {
                        return Err(wrong_side(word, "the source of a pull is on another machine"));
                    }
                    far.push(FarPlace::parse(word, false)?);
                }
                if is_far(target) {
                    return Err(wrong_side(target, "the target of a pull is on this machine")
                        .hint_too("a name with a colon in it is written ./name"));
                }
                near.push(NearPlace::of_target(target));
            }
            Way::Push => {
                if !is_far(target) {
                    return Err(wrong_side(target, "the target of a push is on another machine"));
                }
                far.push(FarPlace::parse(target, true)?);
                for word in sources {
                    if is_far(word) {
                        return Err(wrong_side(word, "the source of a push is on this machine")
                            .hint_too("a name with a colon in it is written ./name"));
                    }
                    near.push(NearPlace::of(word));
                }
            }
        }
        let may_own = way == Way::Push || rustix::process::geteuid().is_root();
        let options = arguments.transfer_options(may_own)?;
        let engine = arguments.engine;
        if engine == Engine::Tar
            && let Some(option) = Streaming::unsuited_for_names(&options)
        {
            return Err(Problem::new("--engine tar", format!("it cannot do {option}"))
                .hint("leave --engine out, and what can is used"));
        }
        Ok(Carrier {
            way,
            engine,
            // What ssh compresses does not get smaller by being compressed before.
            compress: match arguments.ssh_compression && arguments.compress == Compress::Auto {
                true => Compress::Never,
                false => arguments.compress,
            },
            options,
            has_filter: !arguments.rules.is_empty(),
            request,
            far,
            near,
            target_is_directory: target.as_encoded_bytes().ends_with(b"/"),
            show,
            sessions: Sessions::default(),
        })
    }

    /// Where it is shown.
    pub fn show(&self) -> Arc<Show> {
        self.show.clone()
    }

    /// Copies. Ends in order when `asked` becomes true.
    pub async fn carry(self, asked: Asked) -> Result<Ended, Problem> {
        match self.way {
            Way::Pull => self.pull(asked).await,
            Way::Push => self.push(asked).await,
        }
    }

    /// Begins to list a tree of this machine that is compared when the other one is reached.
    fn list_ahead(&self, directory: &Path, top: RemotePath) -> Option<Arc<Ahead>> {
        // What is on other file systems would be listed for nothing, and there may be much of it.
        if self.options.one_file_system {
            return None;
        }
        let local = Local::open(directory).ok()?;
        Some(Arc::new(Ahead::begin(Arc::new(local), top)))
    }

    fn near_source(&self, index: usize, to: RemotePath) -> Result<Source, Problem> {
        let near = &self.near[index];
        let local = Local::open(&near.directory).map_err(|error| {
            Problem::new(format!("source '{}'", printable(near.path())), error.to_string())
        })?;
        let tree = Tree::here(Arc::new(local), &near.directory).at(becomes(&near.name));
        Ok(Source { tree, to })
    }

    fn far_tree(&self, connected: &Reached, path: RemotePath) -> Tree {
        let mut tree = Tree::far(connected.remote.clone()).at(path);
        tree.digester = digester(connected);
        tree
    }

    /// Whether a run that compares may have a stream from there, or to there.
    fn may_collect(&self, far: &FarPlace) -> Result<(), String> {
        self.may_call()?;
        if far.spec.gateways().is_empty() {
            return Err("both sides are this machine".to_owned());
        }
        if far.spec.gateways().len() > 1 && self.engine == Engine::Auto {
            return Err("several gateways bring more than one stream".to_owned());
        }
        let unsuited = match self.way {
            Way::Pull => None,
            Way::Push => Streaming::unsuited_for_push(&self.options),
        };
        match unsuited.or(Streaming::unsuited_for_names(&self.options)) {
            Some(option) => Err(format!("it cannot do {option}")),
            None => Ok(()),
        }
    }

    fn may_stream_at_all(&self) -> Result<(), String> {
        self.may_call()?;
        let unsuited = match self.way {
            Way::Pull => None,
            Way::Push => Streaming::unsuited_for_tree_push(&self.options),
        };
        match unsuited.or(Streaming::unsuited(&self.options)) {
            Some(option) => Err(format!("it cannot do {option}")),
            None => Ok(()),
        }
    }

    /// Whether commands may run on the far side.
    fn may_call(&self) -> Result<(), String> {
        if self.engine == Engine::Sftp {
            return Err("--engine sftp".to_owned());
        }
        // SFTP takes `~user` for a home directory, and a shell that is given it in quotes does not.
        if self.far.iter().any(|far| far.place.directory.starts_with(b"~")) {
            return Err("a path that begins with '~'".to_owned());
        }
        if self.request.ssh.password_stdin {
            return Err(
                "a password is given once, and a stream needs a login of its own".to_owned()
            );
        }
        Ok(())
    }

    /// Whether the far side's `find` tells what its SFTP would.
    fn may_list(&self) -> bool {
        let request = &self.request;
        // What is on other file systems would be listed for nothing, and where `find` leaves it out
        // it calls it empty.
        !self.options.one_file_system
            // Who names the server wants that one.
            && request.ssh.sftp_server.is_none()
            && !request.host.follow_symlinks
            && request.disk.is_none()
            && self.far.iter().all(|far| far.spec.gateways().len() == 1)
    }

    /// A login that lists the tree at `top`, in the place's directory, before it serves SFTP. Where
    /// it cannot, the next login is SFTP's own, as it would have been.
    async fn log_in_listing(
        &self,
        far: &FarPlace,
        top: &RemotePath,
    ) -> Result<Option<Left>, Problem> {
        if !self.may_list() || self.may_call().is_err() {
            return Ok(None);
        }
        let Some(shell) = self.shell(far)? else { return Ok(None) };
        let left = listing::log_in(&shell, &far.place.directory, top, &self.options).await;
        left.map_err(|why| no_login(far, why))
    }

    /// As [`Carrier::reach`], where nobody has logged in yet: with a listing of the tree at `top`, if
    /// that can be had. `None` when somebody asks for the end.
    async fn reach_listing(
        &self,
        far: &FarPlace,
        top: &RemotePath,
        asked: &Asked,
    ) -> Result<Option<Reached>, Problem> {
        match unless_asked(asked, self.log_in_listing(far, top)).await {
            None => Ok(None),
            Some(left) => self.reach(far, left?, asked).await,
        }
    }

    /// Connects, with the place's directory as the root; by the login that is left, if one is. `None`
    /// when somebody asks for the end.
    async fn reach(
        &self,
        far: &FarPlace,
        left: Option<Left>,
        asked: &Asked,
    ) -> Result<Option<Reached>, Problem> {
        unless_asked(asked, self.connect(far, left)).await.transpose()
    }

    /// Where the user wants a stream and nothing else, its absence is an error.
    fn insist(&self, why: &str) -> Result<(), Problem> {
        tracing::debug!("no stream: {why}");
        match self.engine {
            Engine::Tar => Err(Problem::new("--engine tar", why.to_owned())
                .hint("leave --engine out, and what can is used")),
            Engine::Auto | Engine::Sftp => Ok(()),
        }
    }

    fn shell(&self, far: &FarPlace) -> Result<Option<Arc<dyn Shell>>, Problem> {
        shell::of(stack::ssh_configs(&self.request, &far.spec)?)
    }

    /// Who tells what the listings of that source leave out, where commands may run there.
    fn unseen(
        &self,
        far: &FarPlace,
        connected: &Reached,
    ) -> Result<Option<Arc<dyn Unseen>>, Problem> {
        if self.may_call().is_err() {
            return Ok(None);
        }
        let shell = shell::unasked(stack::ssh_configs(&self.request, &far.spec)?);
        Ok(shell.map(|shell| {
            let (root, stay) = (connected.directory.clone(), self.options.one_file_system);
            Arc::new(ShellFind::new(shell, root, stay)) as Arc<dyn Unseen>
        }))
    }

    /// A stream that counts for itself. If it does not come about, its login is the one that the run
    /// begins with.
    fn streaming(&self, shell: Arc<dyn Shell>) -> (Streaming, Spare) {
        let progress = Arc::new(Progress::default());
        self.show.watch(progress.clone());
        let spare = if self.may_list() { Spare::with_listing() } else { Spare::default() };
        let streaming = self.streaming_for(shell, progress);
        (Streaming { spare: Some(spare.clone()), ..streaming }, spare)
    }

    fn streaming_for(&self, shell: Arc<dyn Shell>, progress: Arc<Progress>) -> Streaming {
        Streaming {
            shell,
            options: self.options.clone(),
            compress: self.compress,
            only_if_fast: self.engine == Engine::Auto,
            progress,
            events: self.show.clone(),
            spare: None,
            greeted: Arc::default(),
        }
    }

    /// Takes note of a stream.
    fn taken(&self, streamed: Streamed, progressed: &mut Progressed) -> Result<Taken, Problem> {
        match streamed {
            Streamed::Whole(streak) => {
                progressed.note_stream(streak, true);
                Ok(Taken::Whole)
            }
            Streamed::Partly(streak) => {
                if let Some(why) = &streak.why {
                    tracing::debug!("the stream is not whole: {why}");
                }
                let stage = streak.stage.clone().filter(|_| !streak.placed);
                let (in_doubt, cut) = (streak.in_doubt, streak.cut.clone());
                progressed.note_stream(streak, false);
                Ok(match stage {
                    None => Taken::Partly,
                    Some(stage) => Taken::Staged(BegunTree { stage, is_own: true, in_doubt, cut }),
                })
            }
            Streamed::Declined(Declined::Staged { stage, in_doubt }) => {
                Ok(Taken::Staged(BegunTree { stage, is_own: false, in_doubt, cut: None }))
            }
            Streamed::Declined(declined) => {
                let why = words(&declined);
                if let Declined::Slower(round_trip) = declined {
                    self.begin_sessions(sessions::needed(round_trip));
                }
                // Where there is something already, a run compares, and has a stream by names.
                if self.way == Way::Pull || declined != Declined::Occupied {
                    self.insist(&why)?;
                }
                progressed.notes.push(format!("no stream by tar: {why}"));
                Ok(Taken::Nothing)
            }
        }
    }

    async fn connect(&self, far: &FarPlace, left: Option<Left>) -> Result<Reached, Problem> {
        let directory = &far.place.directory;
        let mut request = self.request.clone();
        request.sources = vec![far.spec_at(directory)];
        request.source = far.spec.name.clone();
        // The mount point of no mount: a place that contains nothing.
        request.mountpoint = "/proc/self/fdinfo".into();
        // Who names the server wants that one.
        let left = left.filter(|_| request.ssh.sftp_server.is_none());
        let is_left = left.is_some();
        let mut listing = None;
        // Of one host only: sessions do not tell whose they are.
        let begun = match &self.far[..] {
            [_] => self.sessions.begun(),
            _ => Begun::default(),
        };
        if let Some(left) = left {
            begun.set_first(shell::session(left.running));
            listing = left.listing;
        }
        // Those of a pool may ask on the terminal one after another.
        let logins = far.spec.gateways().len().max(1) as u32;
        let limit = match is_left {
            true => ANSWER_LIMIT + LOGIN_LIMIT * (logins - 1),
            false => LOGIN_LIMIT * logins,
        };
        let stack = match within(limit, far, Stack::build_on(&request, begun.clone())).await {
            // What was left may have been lost meanwhile. What it says of the place another one says.
            Err(error) if is_left && !error.is_of_source() => {
                tracing::debug!("the login of the stream serves no SFTP: {error}");
                // It may have been another machine's.
                listing = None;
                within(LOGIN_LIMIT * logins, far, Stack::build_on(&request, begun)).await?
            }
            built => built?,
        };
        let shell = self.shell(far)?;
        let remote = stack.remote.clone();
        Ok(Reached { _stack: stack, remote, shell, directory: directory.clone(), listing })
    }

    /// Runs a job over the remotes, and by streams where the collector has them; how that alone has
    /// ended.
    async fn run(
        &self,
        job: Job,
        mut collector: Collector,
        progressed: &mut Progressed,
        asked: &Asked,
    ) -> Result<Outcome, Problem> {
        let near = job.target.local.is_some()
            && job.sources.iter().all(|source| source.tree.local.is_some());
        let target = match self.way {
            Way::Pull => printable(self.near[0].path()),
            Way::Push => printable(&self.far[0].spec.name),
        };
        let wrong = |error: transfer::JobError| match error {
            transfer::JobError::Target(_) | transfer::JobError::TargetNoDirectory => {
                Problem::new(format!("target '{target}'"), error.to_string())
            }
            error => Problem::new("copy", error.to_string()),
        };
        transfer::engine::check(&job, &collector).map_err(wrong)?;
        if self.engine == Engine::Tar
            && let Some(called) = unless_asked(asked, collector.call()).await
        {
            called.or_else(|declined| self.insist(&words(&declined)))?;
        }
        let run = Run::start(job, self.show.clone()).await.map_err(wrong)?;
        self.show.watch(run.progress());
        let stopper = run.stopper();
        let mut asked = asked.clone();
        let stopping = tokio::spawn(async move {
            if asked.wait_for(|asked| *asked).await.is_ok() {
                stopper.stop();
            }
        });
        let outcome = transfer::engine::drive_with(run, &mut collector).await;
        stopping.abort();
        if let Some(declined) = collector.declined() {
            progressed.notes.push(format!("no stream by tar: {}", words(declined)));
        }
        let collected = collector.collected();
        if collected.entries > 0 {
            progressed.note_engine("tar");
        }
        if let Some(link) = collected.link {
            progressed.note_link(link.bytes, link.elapsed, link.rate);
        }
        let counts = outcome.counts;
        let copied = counts.files_copied + counts.links_made + counts.names_made;
        if copied > collected.entries || collected.entries == 0 {
            progressed.note_engine(if near { "local" } else { "sftp" });
        }
        progressed.note_run(outcome.clone());
        Ok(outcome)
    }
}

/// What a stream has left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Taken {
    /// Nothing.
    Whole,
    /// Something, in a tree that has its name.
    Partly,
    /// Something, in a tree that has not.
    Staged(BegunTree),
    /// Everything.
    Nothing,
}

/// A tree that has not its name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BegunTree {
    stage: Name,
    /// This run has made it.
    is_own: bool,
    /// See [`Streak::in_doubt`] and [`Streak::cut`].
    in_doubt: bool,
    cut: Option<(RemotePath, Attr)>,
}

impl Progressed {
    fn note_stream(&mut self, streak: Streak, is_whole: bool) {
        self.note_engine("tar");
        self.note_link(streak.link_bytes, streak.elapsed, streak.rate);
        self.streaks.push((streak, is_whole));
    }

    fn note_run(&mut self, outcome: Outcome) {
        self.outcome = Some(match self.outcome.take() {
            None => outcome,
            Some(before) => both(before, outcome),
        });
    }

    fn note_link(&mut self, bytes: u64, elapsed: Duration, rate: Option<f64>) {
        let used = bytes as f64 / elapsed.as_secs_f64().max(1e-6);
        self.link_share = rate.map(|rate| used / rate.max(1.0)).or(self.link_share);
    }

    fn note_engine(&mut self, engine: &'static str) {
        if !self.engines.contains(&engine) {
            self.engines.push(engine);
        }
    }

    fn interrupted(&mut self) {
        let stopped = Some(Stop::Asked);
        self.outcome = Some(Outcome { stopped, ..Outcome::default() });
    }

    fn is_stopped(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.stopped.is_some())
    }

    fn ended(self) -> Ended {
        let mut outcome = self.outcome;
        let mut streaks = self.streaks;
        streaks.sort_by_key(|(_, is_whole)| *is_whole);
        for (streak, is_whole) in &streaks {
            outcome = Some(match (outcome, is_whole) {
                (None, _) => streak.outcome(),
                (Some(others), true) => both(streak.outcome(), others),
                // The run has counted what the stream has copied as unchanged.
                (Some(run), false) => streak.followed_by(run),
            });
        }
        Ended {
            outcome: outcome.unwrap_or_default(),
            engines: self.engines,
            notes: self.notes,
            link_share: self.link_share,
        }
    }
}

/// The outcome of two runs of different sources.
fn both(mut one: Outcome, other: Outcome) -> Outcome {
    let (sum, more) = (&mut one.counts, other.counts);
    sum.entries += more.entries;
    sum.dirs_made += more.dirs_made;
    sum.files_copied += more.files_copied;
    sum.links_made += more.links_made;
    sum.names_made += more.names_made;
    sum.attrs_set += more.attrs_set;
    sum.unchanged += more.unchanged;
    sum.skipped += more.skipped;
    sum.failed += more.failed;
    sum.deleted += more.deleted;
    sum.bytes += more.bytes;
    sum.bytes_copied += more.bytes_copied;
    sum.bytes_resumed += more.bytes_resumed;
    one.problems.extend(other.problems);
    one.problems_total += other.problems_total;
    one.stopped = one.stopped.or(other.stopped);
    one.deletions_withheld += other.deletions_withheld;
    one.deletions_limited |= other.deletions_limited;
    one.owners_refused |= other.owners_refused;
    one.elapsed += other.elapsed;
    one.waited_for_source += other.waited_for_source;
    one.waited_for_target += other.waited_for_target;
    one
}

/// Why there was no stream, on one line: hints are for errors.
fn words(declined: &Declined) -> String {
    match declined {
        Declined::NoShell(why) => format!("the server runs no commands: {}", first_line(why)),
        Declined::Unquotable => "a name with a newline is not given to a shell".to_owned(),
        Declined::NoTar => "the server has no tar that can".to_owned(),
        Declined::Absent => "the directory is not there".to_owned(),
        Declined::Occupied => "there is something at the target to compare with".to_owned(),
        Declined::Slower(_) => "several sessions are faster for large files".to_owned(),
        Declined::Staged { .. } => "an earlier copy is gone on with".to_owned(),
        Declined::Lost(why) | Declined::NoLogin(why) => first_line(why).to_owned(),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// As whoever connects for SFTP tells it.
fn no_login(far: &FarPlace, why: String) -> Problem {
    Problem::new(host_name(far), why)
}

fn host_name(far: &FarPlace) -> String {
    let names: Vec<String> = far.spec.gateways().iter().map(ToString::to_string).collect();
    names.join(",")
}

/// What is built there, unless it takes too long.
async fn within<T>(
    limit: Duration,
    far: &FarPlace,
    built: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(limit, built).await {
        Ok(built) => built,
        Err(_) => {
            let why = format!("its SFTP server has not answered within {} s", limit.as_secs());
            Err(Problem::new(host_name(far), why)
                .hint("does `sftp` of OpenSSH get an answer there?"))
        }
    }
}

/// What a source becomes, relative to the target.
fn becomes(name: &Option<Name>) -> RemotePath {
    RemotePath::from_names(name)
}

/// Whether nothing is there, or a directory without entries.
fn is_free(place: &Path) -> bool {
    match place.symlink_metadata() {
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        Ok(metadata) if metadata.is_dir() => {
            std::fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
        }
        Ok(_) => false,
    }
}

fn at_target(path: &Path, errno: Errno) -> Problem {
    Problem::new(format!("target '{}'", printable(path)), errno.to_string())
}

fn digester(reached: &Reached) -> Option<Arc<dyn transfer::digest::Digester>> {
    let shell = reached.shell.clone()?;
    Some(Arc::new(ShellDigester::new(shell, reached.directory.clone())))
}

/// The value, unless somebody asks for the end before.
async fn unless_asked<T>(asked: &Asked, value: impl Future<Output = T>) -> Option<T> {
    let mut asked = asked.clone();
    tokio::select! {
        biased;
        _ = asked.wait_for(|asked| *asked) => None,
        value = value => Some(value),
    }
}
