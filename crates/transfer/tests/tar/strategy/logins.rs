//! Which logins a copy makes, and what it does when they fail.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use local::Local;
use testkit::MemRemote;
use transfer::strategy::{ConnectError, Connection, Connector, CopyError, Direction, Engine};
use transfer::{Options, Running, Shell};

use super::super::plain::plain;
use super::super::shell::LocalShell;
use super::{Hidden, Server, answers, request, run, run_well, tree};

fn failure(message: &str, is_of_operand: bool) -> ConnectError {
    ConnectError { message: message.to_owned(), is_of_operand }
}

/// A server that shows `directory` to its shell and over SFTP.
fn served(directory: &Path) -> Arc<Server> {
    Server::new(Arc::new(Local::open(directory).unwrap()), Some(LocalShell::plain()))
}

#[tokio::test]
async fn a_new_tree_needs_the_login_of_its_stream_alone() {
    let (source, target) = (tree(), tempfile::tempdir().unwrap());
    let server = served(target.path());
    let to = (target.path(), None);
    let local = source.path().join("tree");
    let copied = run_well(request(Direction::Push, &local, to, Options::default()), &server).await;
    assert_eq!((copied.engines, server.connected()), (vec!["tar"], vec![]));
    assert_eq!(fs::read(target.path().join("tree/sub/two")).unwrap(), b"more content");

    let back = tempfile::tempdir().unwrap();
    let from = (target.path(), Some("tree"));
    let pull = request(Direction::Pull, &back.path().join("new"), from, Options::default());
    let copied = run_well(pull, &server).await;
    assert_eq!((copied.engines, server.connected()), (vec!["tar"], vec![]));
    assert_eq!(fs::read(back.path().join("new/tree/one")).unwrap(), b"content");
}

#[tokio::test]
async fn what_is_compared_is_connected_by_the_login_of_the_stream_that_was_not() {
    let (source, target) = (tree(), tempfile::tempdir().unwrap());
    fs::create_dir(target.path().join("tree")).unwrap();
    let server = served(target.path());
    let (local, to) = (source.path().join("tree"), (target.path(), None));
    let copied = run_well(request(Direction::Push, &local, to, Options::default()), &server).await;
    assert_eq!((copied.engines, server.connected()), (vec!["sftp"], vec![true]));
    assert_eq!(
        copied.notes,
        ["no stream by tar: there is something at the target to compare with"]
    );
    assert_eq!(fs::read(target.path().join("tree/one")).unwrap(), b"content");
}

#[tokio::test]
async fn a_lost_login_of_a_stream_is_followed_by_another() {
    let (source, target) = (tree(), tempfile::tempdir().unwrap());
    fs::create_dir(target.path().join("tree")).unwrap();
    let (local, to) = (source.path().join("tree"), (target.path(), None));
    let server = served(target.path());
    server.failures.lock().unwrap().push_back(failure("h: lost", false));
    run_well(request(Direction::Push, &local, to, Options::default()), &server).await;
    assert_eq!(server.connected(), [true, false]);

    // What the server says of the place, another login would hear again.
    let server = served(target.path());
    server.failures.lock().unwrap().push_back(failure("h: no such directory", true));
    let ended = run(request(Direction::Push, &local, to, Options::default()), &server).await;
    assert_eq!(ended.unwrap_err().to_string(), "h: no such directory");
    assert_eq!(server.connected(), [true]);

    // The login of SFTP itself is not tried twice.
    let server = Server::new(Arc::new(MemRemote::new()), None);
    server.failures.lock().unwrap().push_back(failure("h: lost", false));
    let to = (Path::new(""), None);
    let ended = run(request(Direction::Push, &local, to, Options::default()), &server).await;
    assert_eq!(ended.unwrap_err().to_string(), "h: lost");
    assert_eq!(server.connected(), [false]);
}

#[tokio::test]
async fn only_one_host_and_no_choice_of_a_server_lets_streams_be() {
    let source = tree();
    let (local, to) = (source.path().join("tree"), (Path::new(""), None));
    for which in 0..3 {
        let server = Server::new(Arc::new(MemRemote::new()), answers("there sftp"));
        let mut request = request(Direction::Push, &local, to, Options::default());
        match which {
            0 => request.remote[0].gateways.push("other".to_owned()),
            1 => request.logins.password_stdin = true,
            _ => request.engine = Engine::Sftp,
        }
        let copied = run_well(request, &server).await;
        assert_eq!((copied.engines, server.connected()), (vec!["sftp"], vec![false]), "{which}");
    }
    // The login is SFTP's own where the user names the server.
    let server = Server::new(Arc::new(MemRemote::new()), answers("there sftp"));
    let mut request = request(Direction::Push, &local, to, Options::default());
    request.logins.own_server = true;
    run_well(request, &server).await;
    assert_eq!(server.connected(), [false]);
}

#[tokio::test]
async fn a_command_makes_digests_only_where_it_may_run_and_finds_the_same_files() {
    let (source, target) = (tree(), tempfile::tempdir().unwrap());
    let programs = tempfile::tempdir().unwrap();
    let called = programs.path().join("called");
    let script = format!("#!/bin/sh\ntouch {}\nexec /usr/bin/sha256sum \"$@\"\n", called.display());
    sandbox::write_program(programs.path().join("sha256sum"), script).unwrap();
    let shell = LocalShell { programs: Some(programs.path().into()), instead: None, umask: None };
    let server = Server::new(plain(source.path()).await, Some(Arc::new(shell)));
    let options = Options { checksum: true, ..Options::default() };
    let from = (source.path(), Some("tree"));
    let pull = request(Direction::Pull, target.path(), from, options);
    run_well(pull.clone(), &server).await;
    for (engine, own_server, is_called) in
        [(Engine::Auto, false, true), (Engine::Sftp, false, false), (Engine::Auto, true, false)]
    {
        let mut pull = pull.clone();
        pull.engine = engine;
        pull.logins.own_server = own_server;
        let copied = run_well(pull, &server).await;
        assert_eq!(copied.outcome.counts.files_copied, 0, "{engine:?}");
        assert_eq!(fs::remove_file(&called).is_ok(), is_called, "{engine:?} {own_server}");
    }
}

#[tokio::test]
async fn streams_alone_are_an_error_where_there_is_none() {
    let source = tree();
    let (local, to) = (source.path().join("tree"), (Path::new(""), None));
    let server = Server::new(Arc::new(MemRemote::new()), answers("none"));
    let mut streams = request(Direction::Push, &local, to, Options::default());
    streams.engine = Engine::Tar;
    assert_eq!(streams.check(), Ok(()));
    let ended = run(streams.clone(), &server).await;
    let none = CopyError::NoStream("the server has no tar that can".to_owned());
    assert_eq!(ended.unwrap_err(), none);
    assert_eq!(
        none.to_string(),
        "--engine tar: the server has no tar that can\n  leave --engine out, and what can is used"
    );
    streams.options.verify = true;
    assert_eq!(streams.check(), Err(CopyError::NoStream("it cannot do --verify".to_owned())));
}

/// Connects never.
struct Silent(Arc<Server>);

#[async_trait]
impl Connector for Silent {
    async fn connect(
        &self,
        remote_index: usize,
        login: Option<Running>,
    ) -> Result<Connection, ConnectError> {
        let _connected = self.0.connect(remote_index, login).await;
        std::future::pending().await
    }

    fn shell(
        &self,
        remote_index: usize,
        may_ask: bool,
    ) -> Result<Option<Arc<dyn Shell>>, ConnectError> {
        self.0.shell(remote_index, may_ask)
    }

    fn enter(&self, _place: usize) {}

    fn start_sessions(&self, _sessions: std::ops::Range<usize>) {}
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_ends_the_copy() {
    let source = tree();
    let silent = Silent(Server::new(Arc::new(MemRemote::new()), None));
    let (_stopping, stop) = tokio::sync::watch::channel(false);
    let request = request(
        Direction::Push,
        &source.path().join("tree"),
        (Path::new(""), None),
        Options::default(),
    );
    let since = tokio::time::Instant::now();
    let ended = transfer::strategy::copy(request, Arc::new(silent), Arc::new(Hidden), stop).await;
    assert_eq!(
        ended.unwrap_err().to_string(),
        "h: its SFTP server has not answered within 300 s\n  \
         does `sftp` of OpenSSH get an answer there?"
    );
    assert!(since.elapsed() - Duration::from_secs(300) < Duration::from_secs(1));
}
