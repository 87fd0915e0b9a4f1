//! Which engines a copy takes, in which order and over which logins; with a server that connects to
//! remotes of the tests.

mod completion;
mod logins;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use base::{Name, Remote, RemotePath};
use local::Local;
use testkit::faulty::Gate;
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::sync::watch;
use transfer::strategy::operand::{LocalOperand, Operand, RemoteOperand};
use transfer::strategy::{
    ConnectError, Connection, Connector, Copied, CopyError, CopyRequest, Direction, Display,
    Engine, Logins, copy,
};
use transfer::tar::{Compress, Method};
use transfer::{Entry, Events, JobError, Options, Progress, Running, Shell, Stop};

use super::shell::LocalShell;

/// Shows nothing.
struct Hidden;

impl Events for Hidden {
    fn entry(&self, _entry: Entry<'_>) {}
}

impl Display for Hidden {
    fn watch(&self, _progress: Arc<Progress>) {}
}

/// A server, and what was asked of it.
pub struct Server {
    remote: Arc<dyn Remote>,
    shell: Option<Arc<LocalShell>>,
    /// How the next connections fail.
    failures: Mutex<VecDeque<ConnectError>>,
    /// Of each connection, whether the login of a stream was to serve it.
    connected: Mutex<Vec<bool>>,
    sessions: Mutex<Vec<Range<usize>>>,
}

impl Server {
    pub fn new(remote: Arc<dyn Remote>, shell: Option<Arc<LocalShell>>) -> Arc<Server> {
        let (failures, connected, sessions) =
            (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Server { remote, shell, failures, connected, sessions })
    }

    pub fn connected(&self) -> Vec<bool> {
        self.connected.lock().unwrap().clone()
    }
}

#[async_trait]
impl Connector for Server {
    async fn connect(
        &self,
        _place: usize,
        login: Option<Running>,
    ) -> Result<Connection, ConnectError> {
        self.connected.lock().unwrap().push(login.is_some());
        match self.failures.lock().unwrap().pop_front() {
            Some(failure) => Err(failure),
            None => Ok(Connection { remote: self.remote.clone(), guard: Box::new(()) }),
        }
    }

    fn shell(&self, _place: usize, _may_ask: bool) -> Result<Option<Arc<dyn Shell>>, ConnectError> {
        Ok(self.shell.clone().map(|shell| shell as Arc<dyn Shell>))
    }

    fn enter(&self, _place: usize) {}

    fn start_sessions(&self, sessions: Range<usize>) {
        self.sessions.lock().unwrap().push(sessions);
    }
}

/// A shell whose commands answer the first word with this state, and no other.
pub fn answers(state: &str) -> Option<Arc<LocalShell>> {
    Some(LocalShell::instead(&format!("read word; echo 'sshoal-1 {state}'; cat >/dev/null")))
}

fn operand(directory: &Path, name: Option<&str>) -> Operand {
    Operand {
        directory: directory.as_os_str().as_bytes().to_vec(),
        name: name.map(|name| Name::new(name.as_bytes()).unwrap()),
    }
}

/// From or to `local`, and to or from `name` in `directory` of one host.
pub fn request(
    direction: Direction,
    local: &Path,
    (directory, name): (&Path, Option<&str>),
    options: Options,
) -> CopyRequest {
    let operand = operand(directory, name);
    CopyRequest {
        direction,
        engine: Engine::Auto,
        compress: Compress::Never,
        options,
        remote: vec![RemoteOperand {
            title: "h:x".into(),
            gateways: vec!["h".to_owned()],
            operand,
        }],
        local: vec![match direction {
            Direction::Pull => LocalOperand::of_target(local.as_os_str()),
            Direction::Push => LocalOperand::of(local.as_os_str()),
        }],
        target_is_directory: false,
        logins: Logins {
            password_stdin: false,
            own_server: false,
            own_view: false,
            max_sessions: 5,
        },
    }
}

pub async fn run(request: CopyRequest, server: &Arc<Server>) -> Result<Copied, CopyError> {
    let (_stopping, stop) = watch::channel(false);
    copy(request, server.clone(), Arc::new(Hidden), stop).await
}

pub async fn run_well(request: CopyRequest, server: &Arc<Server>) -> Copied {
    let copied = run(request, server).await.unwrap();
    assert!(copied.outcome.is_complete(), "{copied:#?}");
    copied
}

/// Ends the copy in order when a call has reached the gate, which stays closed.
pub async fn stopped_at(request: CopyRequest, server: &Arc<Server>, gate: &Gate) {
    let (stopping, stop) = watch::channel(false);
    let copying = copy(request, server.clone(), Arc::new(Hidden), stop);
    let ending = async {
        gate.arrived().await;
        stopping.send_replace(true);
    };
    let both = async { tokio::join!(copying, ending) };
    let (copied, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
    assert_eq!(copied.unwrap().outcome.stopped, Some(Stop::Asked));
}

/// When the files of [`tree`] were changed, in seconds.
pub const CHANGED: u64 = 1_000_000;

/// 12 MiB that do not repeat.
pub fn large_content() -> Vec<u8> {
    (0..12u32 << 20).map(|at| (at.wrapping_mul(40_503) >> 9) as u8).collect()
}

/// A tree `tree` of this machine with two files.
pub fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    std::fs::write(dir.path().join("tree/one"), "content").unwrap();
    std::fs::write(dir.path().join("tree/sub/two"), "more content").unwrap();
    for file in ["tree/one", "tree/sub/two"] {
        let file = std::fs::File::options().write(true).open(dir.path().join(file)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(CHANGED)).unwrap();
    }
    dir
}

#[tokio::test]
async fn an_interruption_before_the_first_login_copies_nothing() {
    let source = tree();
    let remote = Arc::new(MemRemote::new());
    let server = Server::new(remote.clone(), answers("gnu"));
    let (_stopping, stop) = watch::channel(true);
    let request = request(
        Direction::Push,
        &source.path().join("tree"),
        (Path::new(""), None),
        Options::default(),
    );
    let copied = copy(request, server.clone(), Arc::new(Hidden), stop).await.unwrap();
    assert_eq!(copied.outcome.stopped, Some(Stop::Asked));
    assert!(server.connected().is_empty() && remote.names("").is_empty());
}

#[tokio::test]
async fn a_server_that_does_not_answer_does_not_delay_the_end() {
    let source = tree();
    let remote = || {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("one", "CONTENT");
        remote.put_file("d/e", "");
        Arc::new(FaultyRemote::new(remote))
    };
    // The target of a push, a link, what it leads to; the source of a pull.
    let local = source.path().join("tree/one");
    for name in ["new", "one"] {
        let faulty = remote();
        let gate = faulty.hold(Call::Lstat, 1);
        let request =
            request(Direction::Push, &local, (Path::new(""), Some(name)), Options::default());
        stopped_at(request, &Server::new(faulty, None), &gate).await;
    }
    let faulty = remote();
    let gate = faulty.hold(Call::Lstat, 1);
    let new = source.path().join("new");
    let request_of =
        |options| request(Direction::Pull, &new, (Path::new(""), Some("one")), options);
    stopped_at(request_of(Options::default()), &Server::new(faulty, None), &gate).await;
    // The content of a source, which is compared before the run begins.
    std::fs::write(&new, "content").unwrap();
    let faulty = remote();
    let gate = faulty.hold(Call::Read, 1);
    let options = Options { checksum: true, ..Options::default() };
    stopped_at(request_of(options), &Server::new(faulty, None), &gate).await;
    // The entries that would be deleted.
    let empty = source.path().join("empty/");
    std::fs::create_dir(&empty).unwrap();
    let faulty = remote();
    let gate = faulty.hold(Call::Opendir, 2);
    let options = Options { delete: true, max_delete: Some(9), ..Options::default() };
    let request = request(Direction::Push, &empty, (Path::new(""), None), options);
    stopped_at(request, &Server::new(faulty, None), &gate).await;
}

#[tokio::test]
async fn a_file_gets_a_new_name_and_a_directory_gets_it_as_its_own() {
    let source = tree();
    for (name, is_file) in [("tree/one", true), ("tree", false)] {
        let remote = Arc::new(MemRemote::new());
        let server = Server::new(remote.clone(), None);
        let local = source.path().join(name);
        let to = (Path::new(""), Some("new"));
        run_well(request(Direction::Push, &local, to, Options::default()), &server).await;
        let (at, content) = if is_file { ("new", "content") } else { ("new/tree/one", "content") };
        assert_eq!(remote.content(at), content.as_bytes());

        let back = tempfile::tempdir().unwrap();
        let (local, from) = (back.path().join("name"), (Path::new(""), Some("new")));
        run_well(request(Direction::Pull, &local, from, Options::default()), &server).await;
        let at = if is_file { "name" } else { "name/new/tree/one" };
        assert_eq!(std::fs::read(back.path().join(at)).unwrap(), b"content");
        assert_eq!(server.connected(), [false, false]);
    }
}

#[tokio::test]
async fn two_sources_of_one_name_are_refused_before_anything_is_written() {
    let (source, target) = (tree(), tempfile::tempdir().unwrap());
    let (one, other) = (source.path().join("tree"), source.path().join("other/tree"));
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("one"), "another").unwrap();
    let remote = |root: &Path| Arc::new(Local::open(root).unwrap());
    let pulling = Server::new(remote(source.path()), Some(LocalShell::plain()));
    let options = Options { delete: true, ..Options::default() };
    let from = (source.path(), Some("tree"));
    let mut pull = request(Direction::Pull, target.path(), from, options.clone());
    pull.remote.push(RemoteOperand {
        operand: Operand::of(other.as_os_str().as_bytes()),
        ..pull.remote[0].clone()
    });
    let pushing = Server::new(remote(target.path()), Some(LocalShell::plain()));
    let mut push = request(Direction::Push, &one, (target.path(), None), options);
    push.local.push(LocalOperand::of(other.as_os_str()));
    for (request, server) in [(pull, pulling), (push, pushing)] {
        let refused = run(request, &server).await.unwrap_err();
        let name = RemotePath::parse(b"tree").unwrap();
        assert_eq!(refused, CopyError::Job(JobError::SameName(name)));
        assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn a_large_file_is_continued_after_its_pull_was_interrupted_within_the_stream() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (programs, content) = (tempfile::tempdir().unwrap(), large_content());
    std::fs::write(source.path().join("large"), &content).unwrap();
    let pull = || {
        let from = (source.path(), Some("large"));
        request(Direction::Pull, target.path(), from, Options::default())
    };
    let local = Arc::new(Local::open(source.path()).unwrap());
    let tar = "$real \"$@\" | head -c 10485760; exec sleep 60";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let server = Server::new(local.clone(), Some(shell));
    let has_begun = || {
        let mut entries = std::fs::read_dir(target.path()).unwrap().map(Result::unwrap);
        entries.any(|entry| entry.metadata().unwrap().len() > 9 << 20)
    };
    let begun = async {
        while !has_begun() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        copied = run(pull(), &server) => panic!("{copied:?}"),
        () = begun => {}
    }
    let copied = run_well(pull(), &Server::new(local, Some(LocalShell::plain()))).await;
    assert!(copied.outcome.counts.bytes_resumed > 8 << 20, "{copied:#?}");
    assert!(std::fs::read(target.path().join("large")).unwrap() == content);
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_compression_that_a_copy_does_not_have_is_reported() {
    let source = tree();
    let to = (Path::new(""), None);
    let mut push = request(Direction::Push, &source.path().join("tree"), to, Options::default());
    push.compress = Compress::Always(Method::Zstd);
    let server = Server::new(Arc::new(MemRemote::new()), Some(LocalShell::plain()));
    let refused = run(push, &server).await.unwrap_err();
    assert_eq!(refused, CopyError::PushMethod(Method::Zstd));

    let target = tempfile::tempdir().unwrap();
    let tar = format!("exec tar -C {} -cf - ./tree", source.path().display());
    let script = format!("read -r hello; echo 'sshoal-1 gnu dir'; read -r go; {tar}");
    let local = Arc::new(Local::open(source.path()).unwrap());
    let server = Server::new(local, Some(LocalShell::instead(&script)));
    let from = (source.path(), Some("tree"));
    let mut pull = request(Direction::Pull, target.path(), from, Options::default());
    pull.compress = Compress::Always(Method::Zstd);
    let copied = run_well(pull, &server).await;
    assert_eq!(copied.notes, ["the stream is not compressed: the server has no zstd"]);
}

#[tokio::test]
async fn a_large_file_over_a_long_link_starts_sessions_ahead() {
    let remote = Arc::new(MemRemote::new());
    remote.put_file("large", vec![7; 17 << 20]);
    remote.set_latency(Some(Duration::from_millis(25)));
    let server = Server::new(remote, None);
    let target = tempfile::tempdir().unwrap();
    let (local, from) = (target.path().join("new"), (Path::new(""), Some("large")));
    let mut request = request(Direction::Pull, &local, from, Options::default());
    request.logins.max_sessions = 3;
    run_well(request, &server).await;
    // One beside these is the connection's own.
    assert_eq!(*server.sessions.lock().unwrap(), vec![Range { start: 0, end: 2 }]);
    assert_eq!(std::fs::metadata(local).unwrap().len(), 17 << 20);
}
