//! Connecting, and where the root is.

use std::sync::atomic::Ordering;
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
async fn the_base_may_be_given_in_many_ways() {
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
    // OpenSSH's server takes the directory it was started in for the home.
    let (host, dir) = connect("~").await;
    let here = dir.path().canonicalize().unwrap();
    assert_eq!(host.unwrap().real_root(), here.to_str().map(str::as_bytes));
    let (host, _dir) = connect("~/sub").await;
    host.unwrap().lstat(&path("in")).await.unwrap();
    let (host, _dir) = connect("~daemon/..").await;
    assert_eq!(host.unwrap().real_root(), Some(&b"/usr"[..]));
    let (host, _dir) = connect("~/none").await;
    assert!(matches!(host.err(), Some(Error::RootMissing { .. })));
    // Without the extension as far as that goes.
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
async fn a_wrong_base_is_told() {
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
async fn a_root_that_is_not_to_be_checked_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { base: b"later".to_vec(), check_root: false, ..Config::default() };
    let host = Host::connect(Servers::new(dir.path(), &[]), config).await.unwrap();
    assert_eq!(host.lstat(&path("f")).await, Err(base::Errno::ENOENT));
    std::fs::create_dir(dir.path().join("later")).unwrap();
    std::fs::write(dir.path().join("later/f"), "x").unwrap();
    host.lstat(&path("f")).await.unwrap();
}

#[tokio::test]
async fn a_delayed_connection_is_made_by_the_first_who_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::new(dir.path(), &[]);
    let config = Config { delay_connect: true, ..Config::default() };
    let host = Arc::new(Host::connect(servers.clone(), config).await.unwrap());
    assert_eq!(servers.roles().len(), 0);
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
}

#[tokio::test]
async fn the_login_is_the_owner_of_where_sessions_begin() {
    let (host, dir) = connect("/").await;
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(dir.path()).unwrap());
    assert_eq!(host.unwrap().login_ids().await.unwrap().0, owner);
}

#[tokio::test]
async fn why_there_is_no_connection_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::new(dir.path(), &[]);
    servers.refuse.store(1, Ordering::SeqCst);
    let error = Host::connect(servers, Config::default()).await.err().unwrap();
    assert_eq!(error.to_string(), "cannot connect: refused by the test");
    // One that starts and ends at once: the transport's own words are the reason.
    let servers = Servers::new(dir.path(), &["-?"]);
    let error = Host::connect(servers, Config::default()).await.err().unwrap();
    assert_eq!(error.to_string(), "the test's words");
}

/// A server that never says a word, one for each connection.
struct Silent(tokio::sync::mpsc::UnboundedSender<tokio::io::DuplexStream>);

#[async_trait::async_trait]
impl Connector for Silent {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (ours, theirs) = tokio::io::duplex(4096);
        self.0.send(theirs).unwrap();
        Ok(Connection::new(ours, Box::new(|| None)))
    }
}

/// An ssh that asks for a password must not stay when nobody wants the host any more.
#[tokio::test]
async fn an_attempt_ends_with_the_host_that_it_is_for() {
    let (sender, mut servers) = tokio::sync::mpsc::unbounded_channel();
    let connecting = tokio::spawn(Host::connect(Arc::new(Silent(sender)), Config::default()));
    let mut server = servers.recv().await.unwrap();
    connecting.abort();
    let mut said = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), server.read_to_end(&mut said));
    end.await.expect("the connection is dropped").unwrap();
}

/// Ends each connection before the server has said a word, from a number of them on answers.
struct Ends {
    cause: Cause,
    attempts: Mutex<Vec<tokio::time::Instant>>,
}

#[async_trait::async_trait]
impl Connector for Ends {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        self.attempts.lock().unwrap().push(tokio::time::Instant::now());
        let (ours, _) = tokio::io::duplex(4096);
        let explanation = Explanation { text: "no".into(), cause: self.cause };
        Ok(Connection::new(ours, Box::new(move || Some(explanation.clone()))))
    }
}

impl Ends {
    /// The times between the attempts of a host, of which something is wanted all the time.
    async fn pauses(cause: Cause, wanted_for: Duration) -> (Vec<Duration>, String) {
        let ends = Arc::new(Ends { cause, attempts: Mutex::default() });
        let config = Config { delay_connect: true, ..Config::default() };
        let host = Host::connect(ends.clone(), config).await.unwrap();
        let began = tokio::time::Instant::now();
        while began.elapsed() < wanted_for {
            assert_eq!(host.lstat(&path("")).await, Err(base::Errno::EHOSTDOWN));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let attempts = ends.attempts.lock().unwrap().clone();
        let pauses = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        (pauses, host.trouble().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_login_is_repeated_once_a_minute_and_twice_at_most() {
    let minute = Duration::from_secs(60);
    let (pauses, why) = Ends::pauses(Cause::Refused, 50 * minute).await;
    assert_eq!(pauses.len(), 2, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause >= minute), "{pauses:?}");
    // What to do is said.
    assert!(why.contains("refused 3 times") && why.contains("ssh-add"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_turns_away_is_asked_again_within_a_limit() {
    let (pauses, _) = Ends::pauses(Cause::TurnedAway, Duration::from_secs(10)).await;
    assert!(pauses.len() > 5 && pauses[0] < Duration::from_secs(1), "{pauses:?}");
    let distinct: std::collections::HashSet<_> = pauses.iter().collect();
    assert!(distinct.len() > pauses.len() / 2, "not drawn at random: {pauses:?}");
    let (pauses, _) = Ends::pauses(Cause::Lasting, Duration::from_secs(100)).await;
    assert!(pauses.len() <= 4, "{pauses:?}");
}

/// A link that is back after half a minute is noticed within a second or so.
#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_reached_is_tried_each_second_for_a_minute() {
    let (pauses, _) = Ends::pauses(Cause::Passing, Duration::from_secs(50)).await;
    let most = Duration::from_millis(1_200);
    assert!(pauses.len() >= 40 && pauses.iter().all(|pause| *pause <= most), "{pauses:?}");
    let (pauses, _) = Ends::pauses(Cause::Passing, Duration::from_secs(300)).await;
    let last = pauses.last().unwrap();
    assert!((4..6).contains(&last.as_secs()), "{pauses:?}");
}
