//! Connecting, and the location of the root.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Remote;
use host::{Cause, Config, ConnectError, Connection, Connector, Error, Explanation, Host, Role};
use tokio::io::AsyncReadExt;

use super::peer::{Servers, path};

async fn connect(base: &str) -> (Result<Host, Error>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/in"), "x").unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink("sub", dir.path().join("link")).unwrap();
    let base = base.replace("DIR", dir.path().to_str().unwrap());
    let config = Config { base: base.into_bytes(), ..Config::default() };
    (Host::connect(Servers::new(dir.path(), &[]), config).await, dir)
}

#[tokio::test]
async fn the_base_may_have_several_forms() {
    for base in ["sub", "DIR/sub", "DIR/sub/", "link", "./sub", "DIR/link/"] {
        let (host, dir) = connect(base).await;
        let host = host.unwrap();
        assert_eq!(host.lstat(&path("in")).await.unwrap().size, 1, "{base}");
        assert!(host.lstat(&path("")).await.unwrap().is_dir(), "{base}");
        let real = dir.path().canonicalize().unwrap().join("sub");
        assert_eq!(host.real_root(), Some(real.to_str().unwrap().as_bytes()), "{base}");
    }
    let (host, _dir) = connect("").await;
    host.unwrap().lstat(&path("sub/in")).await.unwrap();
    let (host, _dir) = connect("/").await;
    assert!(host.unwrap().lstat(&path("etc")).await.unwrap().is_dir());
}

#[tokio::test]
async fn a_tilde_is_where_sessions_begin_and_a_users_home() {
    // OpenSSH's server takes its start directory for the home.
    let (host, dir) = connect("~").await;
    let here = dir.path().canonicalize().unwrap();
    assert_eq!(host.unwrap().real_root(), here.to_str().map(str::as_bytes));
    let (host, _dir) = connect("~/sub").await;
    host.unwrap().lstat(&path("in")).await.unwrap();
    let (host, _dir) = connect("~daemon/..").await;
    assert_eq!(host.unwrap().real_root(), Some(&b"/usr"[..]));
    let (host, _dir) = connect("~/none").await;
    assert!(matches!(host.err(), Some(Error::RootMissing { .. })));
    // Without the extension, as far as that is possible.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    for (base, works) in [("~", true), ("~/sub", true), ("~root", false)] {
        let servers = Servers::new(dir.path(), &["-P", "expand-path"]);
        let config = Config { base: base.into(), ..Config::default() };
        let host = Host::connect(servers, config).await;
        match works {
            true => drop(host.unwrap()),
            false => assert!(matches!(host.err(), Some(Error::RootNotExpanded { .. }))),
        }
    }
    let (host, _dir) = connect("~nobody-of-that-name/x").await;
    let error = host.err().unwrap().to_string();
    assert!(error.starts_with("~nobody-of-that-name/x: "), "{error}");
}

#[tokio::test]
async fn a_wrong_base_is_reported() {
    let (host, _dir) = connect("none\x1b").await;
    let error = host.err().unwrap();
    assert!(matches!(error, Error::RootMissing { .. }), "{error}");
    assert_eq!(error.to_string(), "none\\x1b: no such directory on the server");
    let (host, _dir) = connect("file").await;
    assert!(matches!(host.err().unwrap(), Error::RootNotDirectory { .. }));
    let long = "x/".repeat(3000);
    let (host, _dir) = connect(&long).await;
    assert!(matches!(host.err().unwrap(), Error::RootTooLong));
}

#[tokio::test]
async fn the_root_check_can_be_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { base: b"later".to_vec(), check_root: false, ..Config::default() };
    let host = Host::connect(Servers::new(dir.path(), &[]), config).await.unwrap();
    assert_eq!(host.lstat(&path("f")).await, Err(base::Errno::ENOENT));
    std::fs::create_dir(dir.path().join("later")).unwrap();
    std::fs::write(dir.path().join("later/f"), "x").unwrap();
    host.lstat(&path("f")).await.unwrap();
}

#[tokio::test]
async fn a_delayed_connection_is_made_by_the_first_call() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::new(dir.path(), &[]);
    let config = Config { delay_connect: true, ..Config::default() };
    let host = Arc::new(Host::connect(servers.clone(), config).await.unwrap());
    assert_eq!((servers.roles().len(), host.real_root()), (0, None));
    let calls: Vec<_> = (0..9)
        .map(|_| {
            let host = host.clone();
            tokio::spawn(async move { host.lstat(&path("")).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().unwrap().is_dir());
    }
    assert_eq!(servers.roles().len(), 1, "all shared one attempt");
    let real = dir.path().canonicalize().unwrap();
    assert_eq!(host.real_root(), real.to_str().map(str::as_bytes));
}

#[tokio::test]
async fn the_login_is_the_owner_of_where_sessions_begin() {
    let (host, dir) = connect("/").await;
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(dir.path()).unwrap());
    assert_eq!(host.unwrap().login_ids().await.unwrap().0, owner);
}

#[tokio::test]
async fn the_reason_of_a_failed_connection_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::new(dir.path(), &[]);
    servers.refuse.store(1, Ordering::SeqCst);
    let error = Host::connect(servers, Config::default()).await.err().unwrap();
    assert_eq!(error.to_string(), "cannot connect: refused by the test");
    // A server that starts and ends at once: the transport's explanation is the reason.
    let servers = Servers::new(dir.path(), &["-?"]);
    let error = Host::connect(servers, Config::default()).await.err().unwrap();
    assert_eq!(error.to_string(), "the test's words");
}

/// A server that never sends anything, one for each connection.
struct Silent(tokio::sync::mpsc::UnboundedSender<tokio::io::DuplexStream>);

#[async_trait::async_trait]
impl Connector for Silent {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (ours, theirs) = tokio::io::duplex(4096);
        self.0.send(theirs).unwrap();
        Ok(Connection::new(ours, Box::new(|| None)))
    }
}

/// An ssh that waits for a password must end when the host is dropped.
#[tokio::test]
async fn dropping_the_host_cancels_the_attempt_to_connect() {
    let (sender, mut servers) = tokio::sync::mpsc::unbounded_channel();
    let connecting = tokio::spawn(Host::connect(Arc::new(Silent(sender)), Config::default()));
    let mut server = servers.recv().await.unwrap();
    connecting.abort();
    let mut said = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), server.read_to_end(&mut said));
    end.await.expect("the connection is dropped").unwrap();
}

/// A server that hangs after it has accepted the login: other logins may work later.
#[tokio::test(start_paused = true)]
async fn a_first_login_that_is_never_answered_ends() {
    let (sender, mut servers) = tokio::sync::mpsc::unbounded_channel();
    let config = Config { delay_connect: true, ..Config::default() };
    let host = Host::connect(Arc::new(Silent(sender)), config).await.unwrap();
    let hour = Duration::from_secs(60 * 60);
    let root = path("");
    for _ in 0..2 {
        let call = tokio::time::timeout(hour, host.lstat(&root));
        let (result, server) = tokio::join!(call, servers.recv());
        assert_eq!(result.expect("the attempt ends"), Err(base::Errno::EHOSTDOWN));
        drop(server);
    }
}

/// A server whose logins take this long, except for the first one.
struct Slow {
    servers: Arc<Servers>,
    login: Duration,
}

#[async_trait::async_trait]
impl Connector for Slow {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        if role != Role::Metadata {
            tokio::time::sleep(self.login).await;
        }
        self.servers.connect(role).await
    }
}

#[tokio::test]
async fn a_slow_login_succeeds_after_attempts_that_gave_up_too_early() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::new(dir.path(), &[]);
    let stall_limit = Duration::from_millis(200);
    let slow = Slow { servers: servers.clone(), login: stall_limit * 3 };
    let config = Config { stall_limit, ..Config::default() };
    let host = Host::connect(Arc::new(slow), config).await.unwrap();
    servers.signal_all(rustix::process::Signal::KILL);
    let connected = async {
        while host.lstat(&path("")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let connected = tokio::time::timeout(Duration::from_secs(20), connected).await;
    connected.expect("an attempt lasts long enough");
    let attempts = servers.roles().len();
    assert_eq!(attempts, 2, "the attempts that gave up made no connection");
}

/// Panics at each attempt.
struct Panics;

#[async_trait::async_trait]
impl Connector for Panics {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        panic!("as it should");
    }
}

#[tokio::test]
async fn a_panic_while_connecting_ends_the_attempt() {
    let connected = Host::connect(Arc::new(Panics), Config::default());
    let connected = tokio::time::timeout(Duration::from_secs(10), connected).await;
    let error = connected.expect("the attempt ends").err().unwrap();
    assert_eq!(error.to_string(), "cannot connect: internal error (a panic, see the log)");
}

/// Ends each connection before the server has sent anything.
struct Ends {
    cause: Cause,
    /// How long it takes until then.
    login: Duration,
    attempts: Mutex<Vec<tokio::time::Instant>>,
}

#[async_trait::async_trait]
impl Connector for Ends {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        self.attempts.lock().unwrap().push(tokio::time::Instant::now());
        tokio::time::sleep(self.login).await;
        let (ours, _) = tokio::io::duplex(4096);
        let explanation = Explanation { text: "no".into(), cause: self.cause, logged_in: false };
        Ok(Connection::new(ours, Box::new(move || Some(explanation.clone()))))
    }
}

impl Ends {
    async fn host(cause: Cause, login: Duration) -> (Arc<Ends>, Host) {
        let ends = Arc::new(Ends { cause, login, attempts: Mutex::default() });
        let config = Config { delay_connect: true, ..Config::default() };
        let host = Host::connect(ends.clone(), config).await.unwrap();
        (ends, host)
    }

    fn attempts(&self) -> usize {
        self.attempts.lock().unwrap().len()
    }

    /// The times between a host's attempts while it is called all the time.
    async fn pauses(cause: Cause, wanted_for: Duration) -> (Vec<Duration>, String) {
        let (ends, host) = Ends::host(cause, Duration::ZERO).await;
        let began = tokio::time::Instant::now();
        while began.elapsed() < wanted_for {
            assert_eq!(host.lstat(&path("")).await, Err(base::Errno::EHOSTDOWN));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let attempts = ends.attempts.lock().unwrap().clone();
        let pauses = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        (pauses, host.connection_error().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_login_is_retried_each_minute_and_at_most_twice() {
    let minute = Duration::from_secs(60);
    let (pauses, why) = Ends::pauses(Cause::Refused, 50 * minute).await;
    assert_eq!(pauses.len(), 2, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause >= minute), "{pauses:?}");
    // The message tells the user what to do.
    assert!(why.contains("refused 3 times") && why.contains("ssh-add"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn what_the_user_has_changed_ends_the_pause() {
    let (ends, host) = Ends::host(Cause::Refused, Duration::ZERO).await;
    for expected in 1..=5 {
        for _ in 0..2 {
            assert_eq!(host.lstat(&path("")).await, Err(base::Errno::EHOSTDOWN));
            assert_eq!(ends.attempts(), expected);
        }
        host.retry_now();
    }
}

/// A caller that waits for the next attempt does not wait for the end of the pause.
#[tokio::test(start_paused = true)]
async fn what_the_user_has_changed_wakes_who_waits_for_the_end_of_the_pause() {
    let (ends, host) = Ends::host(Cause::Transient, Duration::ZERO).await;
    host.lstat(&path("")).await.unwrap_err();
    let began = tokio::time::Instant::now();
    let (root, change) = (path(""), async {
        tokio::task::yield_now().await;
        assert_eq!(ends.attempts(), 1);
        host.retry_now();
    });
    let (result, ()) = tokio::join!(host.lstat(&root), change);
    assert_eq!((result, ends.attempts()), (Err(base::Errno::EHOSTDOWN), 2));
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

/// A login with the former password that is refused afterwards.
#[tokio::test(start_paused = true)]
async fn an_attempt_from_before_the_users_change_begins_no_pause() {
    let second = Duration::from_secs(1);
    let (ends, host) = Ends::host(Cause::Refused, 2 * second).await;
    let (root, change) = (path(""), async {
        tokio::time::sleep(second).await;
        assert_eq!(ends.attempts(), 1);
        host.retry_now();
    });
    let (result, ()) = tokio::join!(host.lstat(&root), change);
    assert_eq!((result, ends.attempts()), (Err(base::Errno::EHOSTDOWN), 1));
    host.lstat(&root).await.unwrap_err();
    assert_eq!(ends.attempts(), 2);
    // That one was refused after the change.
    host.lstat(&root).await.unwrap_err();
    assert_eq!(ends.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_turns_away_is_retried_within_a_limit() {
    let (pauses, _) = Ends::pauses(Cause::TurnedAway, Duration::from_secs(10)).await;
    assert!(pauses.len() > 5 && pauses[0] < Duration::from_secs(1), "{pauses:?}");
    let distinct: std::collections::HashSet<_> = pauses.iter().collect();
    assert!(distinct.len() > pauses.len() / 2, "not drawn at random: {pauses:?}");
    let (pauses, _) = Ends::pauses(Cause::Permanent, Duration::from_secs(100)).await;
    assert!(pauses.len() <= 4, "{pauses:?}");
}

/// Counts log messages that contain this.
struct Counted(&'static str, Arc<AtomicUsize>);

impl tracing::Subscriber for Counted {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut is_counted = false;
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            is_counted |= format!("{value:?}").contains(self.0);
        });
        self.1.fetch_add(usize::from(is_counted), Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// L10.
#[tokio::test(start_paused = true)]
async fn that_a_server_turns_away_is_logged_once_in_an_outage() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Counted("closed before the login; trying again", count.clone());
    let _guard = tracing::subscriber::set_default(counted);
    Ends::pauses(Cause::TurnedAway, Duration::from_secs(300)).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

/// A link that is restored after half a minute is noticed within about a second.
#[tokio::test(start_paused = true)]
async fn an_unreachable_host_is_retried_each_second_for_a_minute() {
    let (pauses, _) = Ends::pauses(Cause::Transient, Duration::from_secs(50)).await;
    let most = Duration::from_millis(1_200);
    assert!(pauses.len() >= 40 && pauses.iter().all(|pause| *pause <= most), "{pauses:?}");
    let (pauses, _) = Ends::pauses(Cause::Transient, Duration::from_secs(300)).await;
    let last = pauses.last().unwrap();
    assert!((4..6).contains(&last.as_secs()), "{pauses:?}");
}
