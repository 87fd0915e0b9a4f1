//! Which engine may copy what, and the streams, connections and runs of both directions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use base::RemotePath;
use local::Local;
use tokio::sync::watch;

use super::operand::{LocalOperand, RemoteOperand};
use super::results::Results;
use super::{Connection, Connector, CopyError, CopyRequest, Direction, Display, Engine, Halt};
use crate::digest::ShellDigester;
use crate::engine;
use crate::events::{Entry, Events, Progress};
use crate::job::{Job, JobError, Source, Tree};
use crate::options::Options;
use crate::outcome::{Outcome, Problem};
use crate::plan::Ahead;
use crate::run::Run;
use crate::shell::Shell;
use crate::tar::by_name::StreamsByName;
use crate::tar::listing::{self, Listing, SftpLogin};
use crate::tar::{
    ANSWER_LIMIT, Compress, Declined, LOGIN_LIMIT, ReusableLogin, Stage, Streamed, Streaming,
};
use crate::unseen::{ShellFind, Unseen};

/// Hint for a local target whose parent directory does not exist.
const PARENTS: &str = "its last directory is made, the others have to be there";

/// A copy, and the program around it.
pub(super) struct Context {
    pub(super) request: CopyRequest,
    pub(super) connector: Arc<dyn Connector>,
    display: Arc<dyn Display>,
    /// Becomes true when the user asks for the end.
    stop: watch::Receiver<bool>,
    /// Further sessions that were started, see `sessions`.
    pub(super) sessions_started: AtomicUsize,
}

/// A remote operand that SFTP is connected to.
pub(super) struct Connected {
    pub(super) connection: Connection,
    pub(super) shell: Option<Arc<dyn Shell>>,
    /// Runs the commands that make digests.
    digest_shell: Option<Arc<dyn Shell>>,
    pub(super) directory: Vec<u8>,
    /// The directory is on this machine.
    is_local: bool,
    /// What its login has listed.
    pub(super) listing: Option<Listing>,
}

/// What a stream has left to copy of its source.
#[derive(Debug)]
pub(super) enum Remains {
    Nothing,
    /// Something, or all of it. A run compares.
    Rest,
    /// Something, in a tree that has not got its name.
    Stage(Stage),
}

impl Context {
    pub(super) fn new(
        request: CopyRequest,
        connector: Arc<dyn Connector>,
        display: Arc<dyn Display>,
        stop: watch::Receiver<bool>,
    ) -> Context {
        Context { request, connector, display, stop, sessions_started: AtomicUsize::new(0) }
    }

    /// Begins again with the directory that the target of a push leads to.
    pub(super) fn enter_target(&mut self) {
        self.connector.enter(0);
        let operand = &mut self.request.remote[0].operand;
        *operand = operand.entered();
    }

    /// The value, unless the user asks for the end before it is there.
    pub(super) async fn unless_stopped<T>(
        &self,
        value: impl Future<Output = T>,
    ) -> Result<T, Halt> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => Err(Halt::Interrupted),
            value = value => Ok(value),
        }
    }

    /// Whether commands may run at the servers; if not, why.
    fn may_run_commands(&self) -> Result<(), String> {
        if self.request.engine == Engine::Sftp {
            return Err("--engine sftp".to_owned());
        }
        // SFTP takes `~user` for a home directory, and a shell that gets it in quotes does not.
        if self.request.remote.iter().any(|it| it.operand.directory.starts_with(b"~")) {
            return Err("a path that begins with '~user'".to_owned());
        }
        if self.request.logins.password_stdin {
            return Err("with -o password_stdin, only SFTP logs in".to_owned());
        }
        Ok(())
    }

    /// Whether a stream may copy a whole tree; if not, why.
    pub(super) fn may_stream(&self) -> Result<(), String> {
        self.may_run_commands()?;
        self.suits_streams(true)
    }

    /// Whether a run that compares may have a stream by names; if not, why.
    pub(super) fn may_stream_names(&self, operand: &RemoteOperand) -> Result<(), String> {
        self.may_run_commands()?;
        self.has_one_host(operand, "both sides are this machine")?;
        self.suits_streams(false)
    }

    fn suits_streams(&self, is_tree: bool) -> Result<(), String> {
        let is_push = self.request.direction == Direction::Push;
        match Streaming::unsuited(&self.request.options, is_push, is_tree) {
            Some(option) => Err(format!("it cannot do {option}")),
            None => Ok(()),
        }
    }

    /// Whether one host serves the operand, or the user requires streams; if not, why. `is_local`
    /// is the reason for an operand on this machine.
    pub(super) fn has_one_host(
        &self,
        operand: &RemoteOperand,
        is_local: &str,
    ) -> Result<(), String> {
        match operand.gateways.len() {
            0 => Err(is_local.to_owned()),
            1 => Ok(()),
            _ if self.request.engine == Engine::Tar => Ok(()),
            _ => Err("several gateways bring more than one stream".to_owned()),
        }
    }

    /// Whether a `find` of the server lists what its SFTP would.
    fn may_list(&self) -> bool {
        // What is on other file systems would be listed for nothing, and where `find` leaves it out
        // it shows an empty directory.
        !self.request.options.one_file_system
            && !self.request.logins.own_server
            && !self.request.logins.own_view
            && self.request.remote.iter().all(|operand| operand.gateways.len() == 1)
    }

    /// An error, if the user wants streams only.
    pub(super) fn require_stream(&self, why: &str) -> Result<(), CopyError> {
        tracing::debug!("no stream: {why}");
        match self.request.engine {
            Engine::Tar => Err(CopyError::NoStream(why.to_owned())),
            Engine::Auto | Engine::Sftp => Ok(()),
        }
    }

    /// As [`Context::require_stream`], for a whole tree: a stream by names may copy it instead.
    pub(super) fn require_any_stream(
        &self,
        operand: &RemoteOperand,
        why: &str,
    ) -> Result<(), CopyError> {
        match self.may_stream_names(operand) {
            Ok(()) => Ok(()),
            Err(_) => self.require_stream(why),
        }
    }

    pub(super) fn shell(&self, remote_index: usize) -> Result<Option<Arc<dyn Shell>>, CopyError> {
        Ok(self.connector.shell(remote_index, true)?)
    }

    /// Starts to list a local tree, which is compared when the server is connected.
    pub(super) fn list_ahead(&self, directory: &Path, top: RemotePath) -> Option<Arc<Ahead>> {
        // What is on other file systems would be listed for nothing, and there may be much of it.
        if self.request.options.one_file_system {
            return None;
        }
        let local = Local::open(directory).ok()?;
        Some(Arc::new(Ahead::begin(Arc::new(local), top)))
    }

    /// A source of a push.
    pub(super) fn local_source(&self, index: usize, to: RemotePath) -> Result<Source, CopyError> {
        let operand = &self.request.local[index];
        let failed = |error| CopyError::failed(format!("source '{}'", operand.printable()), error);
        let local = Local::open(&operand.directory).map_err(failed)?;
        let tree = Tree::local(Arc::new(local), &operand.directory).at(operand.relative());
        Ok(Source { tree, to })
    }

    /// The directory of this machine that a pull writes into.
    pub(super) fn local_root(&self, target: &LocalOperand) -> Result<Arc<Local>, CopyError> {
        let failed = |error| {
            let what = format!("target '{}'", target.printable());
            match error {
                local::Error::Missing { .. } => {
                    CopyError::failed(what, format!("{error}\n  {PARENTS}"))
                }
                error => CopyError::failed(what, error),
            }
        };
        Local::open(&target.directory).map(Arc::new).map_err(failed)
    }

    /// What the listings of that source leave out, where commands may run there.
    pub(super) fn unseen(
        &self,
        remote_index: usize,
        connected: &Connected,
    ) -> Result<Option<Arc<dyn Unseen>>, CopyError> {
        if self.may_run_commands().is_err() {
            return Ok(None);
        }
        let shell = self.connector.shell(remote_index, false)?;
        let (root, stay) = (connected.directory.clone(), self.request.options.one_file_system);
        let find = shell.map(|shell| ShellFind::new(shell, root, stay));
        // A server of the user's own may see more than a command of the login.
        let own_server = self.request.logins.own_server;
        let find = find.map(|find| if own_server { find.without_links() } else { find });
        Ok(find.map(|find| Arc::new(find) as Arc<dyn Unseen>))
    }

    /// What runs the commands that make digests of files there, where commands may run. With a server
    /// of the user's own, a command of the login may find another file under the same path.
    fn digest_shell(&self, remote_index: usize) -> Result<Option<Arc<dyn Shell>>, CopyError> {
        if self.may_run_commands().is_err() || self.request.logins.own_server {
            return Ok(None);
        }
        Ok(self.connector.shell(remote_index, false)?)
    }

    /// What keeps the login of a tree's stream that does not start, for the run.
    pub(super) fn reusable_login(&self) -> ReusableLogin {
        if self.may_list() { ReusableLogin::with_listing() } else { ReusableLogin::default() }
    }

    /// The options of a copy in which the source of this number becomes `to`, relative to the
    /// target: the filter matches its own name.
    pub(super) fn options_for(&self, index: usize, to: &RemotePath) -> Options {
        let request = &self.request;
        let own = match request.direction {
            Direction::Push => request.local[index].relative(),
            Direction::Pull => request.remote[index].path(),
        };
        Options { filter: request.options.filter.for_renamed(to, &own), ..request.options.clone() }
    }

    /// A stream of a tree, with counters of its own, or of a run, which has the counters and uses
    /// no login after it.
    pub(super) fn streaming(
        &self,
        shell: Arc<dyn Shell>,
        (index, to): (usize, &RemotePath),
        reusable_login: Option<&ReusableLogin>,
    ) -> Streaming {
        let progress = Arc::<Progress>::default();
        if reusable_login.is_some() {
            self.display.watch(progress.clone());
        }
        Streaming {
            shell,
            options: self.options_for(index, to),
            compress: self.request.compress,
            only_if_fast: self.request.engine == Engine::Auto,
            progress,
            events: self.display.clone(),
            reusable_login: reusable_login.cloned(),
            greeted: Arc::default(),
        }
    }

    /// Notes the result of a stream from or to a remote operand.
    pub(super) fn note_stream(
        &self,
        remote_index: usize,
        streamed: Streamed,
        results: &mut Results,
    ) -> Result<Remains, CopyError> {
        if let Streamed::Whole(done) | Streamed::Partly(done) = &streamed
            && let (Compress::Always(method), None) = (self.request.compress, done.method)
        {
            results
                .note(format!("the stream is not compressed: the server has no {}", method.name()));
        }
        Ok(match streamed {
            Streamed::Whole(done) => {
                results.note_stream(done, true);
                Remains::Nothing
            }
            Streamed::Partly(mut done) => {
                tracing::debug!("the stream is not whole: {:?}", done.why);
                let left = done.stage.take();
                results.note_stream(done, false);
                left.map_or(Remains::Rest, Remains::Stage)
            }
            Streamed::Declined(Declined::Staged(stage)) => Remains::Stage(*stage),
            Streamed::Declined(Declined::NoLogin(why)) => {
                return Err(self.no_login(remote_index, why));
            }
            Streamed::Declined(declined) => {
                let why = words(&declined);
                if let Declined::Slower(round_trip) = declined {
                    self.start_sessions_for(round_trip);
                }
                // Where something is at the target, a run compares, and has a stream by names.
                if self.request.direction == Direction::Pull || declined != Declined::Occupied {
                    self.require_stream(&why)?;
                }
                results.note(format!("no stream by tar: {why}"));
                Remains::Rest
            }
        })
    }

    /// Connects to a remote operand, by the login that is left of a stream if there is one.
    pub(super) async fn connect(
        &self,
        remote_index: usize,
        login: Option<SftpLogin>,
    ) -> Result<Connected, Halt> {
        Ok(self.unless_stopped(self.connect_patiently(remote_index, login)).await??)
    }

    /// As [`Context::connect`], for an operand without a login yet: the login lists the tree at
    /// `top` before it serves SFTP, if it can. Where it cannot, the next login is SFTP's own.
    pub(super) async fn connect_listing(
        &self,
        remote_index: usize,
        top: &RemotePath,
    ) -> Result<Connected, Halt> {
        let login = self.unless_stopped(self.log_in_listing(remote_index, top)).await??;
        self.connect(remote_index, login).await
    }

    async fn log_in_listing(
        &self,
        remote_index: usize,
        top: &RemotePath,
    ) -> Result<Option<SftpLogin>, CopyError> {
        if !self.may_list() || self.may_run_commands().is_err() {
            return Ok(None);
        }
        let Some(shell) = self.shell(remote_index)? else { return Ok(None) };
        let directory = &self.request.remote[remote_index].operand.directory;
        let login = listing::log_in(&shell, directory, top, &self.request.options).await;
        login.map_err(|why| self.no_login(remote_index, why))
    }

    async fn connect_patiently(
        &self,
        remote_index: usize,
        login: Option<SftpLogin>,
    ) -> Result<Connected, CopyError> {
        // Users who name the server want that one.
        let login = login.filter(|_| !self.request.logins.own_server);
        let is_left = login.is_some();
        let (login, mut listing) = match login {
            Some(SftpLogin { running, listing }) => (Some(running), listing),
            None => (None, None),
        };
        // The gateways of a pool may ask on the terminal one after another.
        let logins = self.request.remote[remote_index].gateways.len().max(1) as u32;
        let limit = match is_left {
            true => ANSWER_LIMIT + LOGIN_LIMIT * (logins - 1),
            false => LOGIN_LIMIT * logins,
        };
        let connection = match self.connect_within(limit, remote_index, login).await {
            // The login may have been lost meanwhile. If the server refuses the path, another
            // login would get the same answer.
            Err(error) if is_left && !is_of_operand(&error) => {
                tracing::debug!("the login of the stream serves no SFTP: {error}");
                // It may have been that of another machine.
                listing = None;
                self.connect_within(LOGIN_LIMIT * logins, remote_index, None).await?
            }
            connected => connected?,
        };
        let directory = self.request.remote[remote_index].operand.directory.clone();
        let is_local = self.request.remote[remote_index].gateways.is_empty();
        let shell = self.shell(remote_index)?;
        let digest_shell = self.digest_shell(remote_index)?;
        Ok(Connected { connection, shell, digest_shell, directory, is_local, listing })
    }

    async fn connect_within(
        &self,
        limit: Duration,
        remote_index: usize,
        login: Option<crate::shell::Running>,
    ) -> Result<Connection, CopyError> {
        match tokio::time::timeout(limit, self.connector.connect(remote_index, login)).await {
            Ok(connected) => Ok(connected?),
            Err(_) => {
                let hosts = self.request.remote[remote_index].hosts();
                Err(CopyError::Silent { hosts, seconds: limit.as_secs() })
            }
        }
    }

    pub(super) fn no_login(&self, remote_index: usize, why: String) -> CopyError {
        CopyError::NoLogin { hosts: self.request.remote[remote_index].hosts(), why }
    }

    /// Executes a job over the remotes, with streams for the files that `by_name` takes. Returns
    /// the outcome of this run alone. `shown`: a name at the target, and the one that the user
    /// knows it by.
    pub(super) async fn run(
        &self,
        mut job: Job,
        mut by_name: StreamsByName,
        shown: Option<(RemotePath, RemotePath)>,
        results: &mut Results,
    ) -> Result<Outcome, Halt> {
        let is_local = self.request.remote.iter().all(|operand| operand.gateways.is_empty());
        // What is deleted in a stage is not the user's.
        job.options.withhold_deletions = !job.options.is_stage && results.has_problems();
        engine::check(&job, &by_name).map_err(|error| self.wrong_job(error))?;
        if self.request.engine == Engine::Tar
            && let Ok(called) = self.unless_stopped(by_name.call()).await
        {
            called.or_else(|declined| self.require_stream(&words(&declined)))?;
        }
        let events: Arc<dyn Events> = match &shown {
            Some((from, to)) => {
                let (from, to) = (from.clone(), to.clone());
                Arc::new(Renamed { display: self.display.clone(), from, to })
            }
            None => self.display.clone(),
        };
        let run = self.unless_stopped(Run::start(job, events)).await?;
        let run = run.map_err(|error| self.wrong_job(error))?;
        self.display.watch(run.progress());
        let (stopper, mut stop) = (run.stopper(), self.stop.clone());
        let stopping = tokio::spawn(async move {
            if stop.wait_for(|stop| *stop).await.is_ok() {
                stopper.stop();
            }
        });
        let outcome = engine::drive(run, &mut by_name).await;
        stopping.abort();
        if let Some(declined) = by_name.declined() {
            results.note(format!("no stream by tar: {}", words(declined)));
        }
        let streamed = by_name.entries();
        if streamed > 0 {
            results.note_engine("tar");
        }
        let counts = outcome.counts;
        let copied = counts.files_copied + counts.links_made + counts.names_made;
        if !self.request.options.dry_run && (copied > streamed || streamed == 0) {
            results.note_engine(if is_local { "local" } else { "sftp" });
        }
        let mut noted = outcome.clone();
        if let Some((from, to)) = &shown {
            noted.problems.iter_mut().for_each(|problem| *problem = problem.renamed(from, to));
        }
        results.note_run(noted);
        Ok(outcome)
    }

    /// Shows a problem that no run has found.
    pub(super) fn show_problem(&self, problem: &Problem) {
        self.display.problem(problem);
    }

    fn wrong_job(&self, error: JobError) -> CopyError {
        let path = match self.request.direction {
            Direction::Pull => self.request.local[0].printable(),
            Direction::Push => super::operand::printable(Path::new(&self.request.remote[0].title)),
        };
        match error {
            JobError::Target(_) | JobError::TargetNoDirectory => {
                CopyError::failed(format!("target '{path}'"), error)
            }
            error => CopyError::Job(error),
        }
    }
}

/// Shows entries by the names that the user knows.
struct Renamed {
    display: Arc<dyn Display>,
    from: RemotePath,
    to: RemotePath,
}

impl Events for Renamed {
    fn entry(&self, entry: Entry<'_>) {
        let name = entry.name.moved(&self.from, &self.to);
        let problem = entry.problem.map(|problem| problem.renamed(&self.from, &self.to));
        let (name, problem) = (name.as_ref().unwrap_or(entry.name), problem.as_ref());
        self.display.entry(Entry { name, problem, ..entry });
    }

    fn problem(&self, problem: &Problem) {
        self.display.problem(&problem.renamed(&self.from, &self.to));
    }
}

impl Connected {
    /// The tree at `path`, with digests made at the server if commands may make them.
    pub(super) fn tree(&self, path: RemotePath) -> Tree {
        let mut tree = Tree::remote(self.connection.remote.clone()).at(path);
        if let Some(shell) = self.digest_shell.clone() {
            tree.digester = Some(Arc::new(ShellDigester::new(shell, self.directory.clone())));
        }
        tree.local = self.is_local.then(|| PathBuf::from(OsStr::from_bytes(&self.directory)));
        tree
    }
}

fn is_of_operand(error: &CopyError) -> bool {
    matches!(error, CopyError::Connect(error) if error.is_of_operand)
}

/// The length of a regular file, and 0 of anything else.
pub(super) fn length(path: &Path) -> u64 {
    path.symlink_metadata().ok().filter(|it| it.is_file()).map_or(0, |it| it.len())
}

/// Why there was no stream, on one line: hints are for errors.
fn words(declined: &Declined) -> String {
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    match declined {
        Declined::NoShell(why) => format!("the server runs no commands: {}", first_line(why)),
        Declined::Unquotable => "a name with a newline is not given to a shell".to_owned(),
        Declined::NoTar => "the server has no tar that can".to_owned(),
        Declined::Absent => "the directory is not there".to_owned(),
        Declined::Occupied => "there is something at the target to compare with".to_owned(),
        Declined::Slower(_) => "several sessions are faster for large files".to_owned(),
        Declined::Staged { .. } => "an earlier copy is gone on with".to_owned(),
        Declined::Lost(why) | Declined::NoLogin(why) => first_line(why),
    }
}
