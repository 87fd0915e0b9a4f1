//! Which program serves the sessions, over scripted servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base::{Errno, Remote};
use bytes::Bytes;
use host::{Cause, Config, ConnectError, Connection, Connector, Explanation, Helper, Host, Role};
use sftp::codec::{NameEntry, Reply, Request};
use sftp::{Extension, FileAttrs, StatusCode};
use tokio::sync::mpsc;

use super::peer::{Actor, Stage, path};

const PLACES: [&str; 2] = ["here/sshoal", "/there/sshoal"];

/// A server, and the helper on it.
struct Both {
    plain: Stage,
    helper: Stage,
    known: Mutex<Option<String>>,
    /// Next starts of the helper that fail as in a shell that does not find it.
    missing: AtomicUsize,
    started: Mutex<Vec<String>>,
}

#[async_trait]
impl Connector for Both {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        self.started.lock().unwrap().push(format!("plain, {role:?}"));
        self.plain.connect(role).await
    }

    fn helper_places(&self) -> Vec<String> {
        PLACES.map(str::to_owned).to_vec()
    }

    async fn known_helper(&self) -> Option<String> {
        self.known.lock().unwrap().clone()
    }

    async fn record_helper(&self, path: Option<&str>) {
        *self.known.lock().unwrap() = path.map(str::to_owned);
    }

    async fn connect_to_helper(&self, role: Role, path: &str) -> Result<Connection, ConnectError> {
        self.started.lock().unwrap().push(format!("{path}, {role:?}"));
        let fail =
            self.missing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if fail.is_err() {
            return self.helper.connect(role).await;
        }
        let (ours, _) = tokio::io::duplex(4096);
        let text = "ssh: sh: not found\n  a hint".to_owned();
        let explanation = Explanation { text, cause: Cause::Permanent, logged_in: true };
        Ok(Connection::new(ours, Box::new(move || Some(explanation.clone()))))
    }
}

type Actors = mpsc::UnboundedReceiver<Actor>;

fn both() -> (Arc<Both>, Actors, Actors) {
    let (plain, plain_actors) = Stage::new(&[]);
    let (helper, helper_actors) = Stage::new(&[Extension::Attrs]);
    let both = Both {
        plain,
        helper,
        known: Mutex::default(),
        missing: AtomicUsize::new(0),
        started: Mutex::default(),
    };
    (Arc::new(both), plain_actors, helper_actors)
}

impl Both {
    fn started(&self) -> Vec<String> {
        std::mem::take(&mut *self.started.lock().unwrap())
    }
}

fn config(helper: Helper) -> Config {
    Config { helper, base: b"/data".to_vec(), ..Config::default() }
}

/// The requests about the root have arrived; gives their ids.
async fn root_requests(actor: &mut Actor) -> (u32, u32) {
    let stat = actor.expect(Request::Stat { path: b"/data" }).await;
    (stat, actor.expect(Request::Realpath { path: b"/data" }).await)
}

async fn name(actor: &mut Actor, id: u32, name: &'static [u8]) {
    let name = Bytes::from_static(name);
    let entry = NameEntry { name, longname: Bytes::new(), attrs: FileAttrs::default() };
    actor.send(id, Reply::Names(vec![entry])).await;
}

async fn answer_root(actor: &mut Actor, (stat, real): (u32, u32)) {
    actor.attrs(stat, 0o040_755, 0).await;
    name(actor, real, b"/data").await;
}

/// The helper's session begins with a request for its attributes.
async fn greet_helper(actors: &mut Actors) -> Actor {
    let mut actor = actors.recv().await.unwrap();
    let id = actor.expect(Request::Attrs { fields: sftp::codec::ExactAttrs::ALL }).await;
    actor.fail(id, StatusCode::OK).await;
    actor
}

/// Nothing has to be answered before the places are requested, and one session is enough.
#[tokio::test]
async fn the_places_are_requested_together_with_the_root() {
    let (both, mut plain, _helper) = both();
    let connecting = tokio::spawn(Host::connect(both.clone(), config(Helper::Auto)));
    let mut actor = plain.recv().await.unwrap();
    let root = root_requests(&mut actor).await;
    for place in PLACES {
        let id = actor.expect(Request::Stat { path: place.as_bytes() }).await;
        actor.fail(id, StatusCode::NO_SUCH_FILE).await;
    }
    answer_root(&mut actor, root).await;
    let host = connecting.await.unwrap().unwrap();
    assert!(!host.server().unwrap().is_helper);
    assert_eq!(both.started(), ["plain, Metadata"]);
    actor.expect_nothing().await;
}

/// It is started once, replaces the first session, and serves the next one after a loss; while it
/// is missing there is none.
#[tokio::test]
async fn a_helper_that_is_found_serves_all_sessions() {
    let (both, mut plain, mut helper) = both();
    let connecting = tokio::spawn(Host::connect(both.clone(), config(Helper::Auto)));
    let mut first = plain.recv().await.unwrap();
    let root = root_requests(&mut first).await;
    let here = first.expect(Request::Stat { path: PLACES[0].as_bytes() }).await;
    let there = first.expect(Request::Stat { path: PLACES[1].as_bytes() }).await;
    answer_root(&mut first, root).await;
    first.fail(here, StatusCode::NO_SUCH_FILE).await;
    first.attrs(there, 0o100_755, 5).await;
    let mut second = greet_helper(&mut helper).await;
    let (start, before) = tokio::join!(
        second.expect(Request::Realpath { path: b"." }),
        first.expect(Request::Realpath { path: b"." })
    );
    let root = root_requests(&mut second).await;
    name(&mut first, before, b"/home").await;
    name(&mut second, start, b"/home").await;
    answer_root(&mut second, root).await;
    let host = connecting.await.unwrap().unwrap();
    assert!(host.server().unwrap().is_helper);
    assert_eq!(both.started(), ["plain, Metadata", "/there/sshoal, Trial"]);
    assert_eq!(both.known.lock().unwrap().as_deref(), Some(PLACES[1]));

    drop(second);
    both.missing.store(1, Ordering::SeqCst);
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert_eq!(host.lstat(&path("file")).await, Err(Errno::EHOSTDOWN));
    let why = host.connection_error().unwrap();
    assert!(why.starts_with("the helper /there/sshoal is gone: ssh: sh: not found\n"), "{why}");
    assert_eq!(both.started(), ["/there/sshoal, Reconnect"], "no plain session");
}

/// The subsystem of the server becomes the helper while a mount lives, or another server.
#[tokio::test]
async fn a_subsystem_that_changes_changes_nothing() {
    for (before, after) in [(false, true), (true, false)] {
        let extensions = |is_helper| if is_helper { &[Extension::Attrs][..] } else { &[] };
        let (stage, mut actors) = Stage::new(extensions(before));
        let stage = Arc::new(Changing { now: Mutex::new(stage) });
        let connecting = tokio::spawn(Host::connect(stage.clone(), config(Helper::Auto)));
        let mut actor = match before {
            true => greet_helper(&mut actors).await,
            false => actors.recv().await.unwrap(),
        };
        let root = root_requests(&mut actor).await;
        answer_root(&mut actor, root).await;
        let host = connecting.await.unwrap().unwrap();
        assert_eq!(host.server().unwrap().is_helper, before);

        let (next, mut actors) = Stage::new(extensions(after));
        *stage.now.lock().unwrap() = next;
        drop(actor);
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        let host = Arc::new(host);
        let used = host.clone();
        let lstat = tokio::spawn(async move { used.lstat(&path("file")).await });
        let mut actor = actors.recv().await.unwrap();
        if before {
            assert_eq!(lstat.await.unwrap(), Err(Errno::EHOSTDOWN));
            let why = host.connection_error().unwrap();
            assert!(why.starts_with("the helper (the SFTP subsystem) is gone"), "{why}");
        } else {
            // The exact attributes are not requested.
            let id = actor.expect(Request::Lstat { path: b"/data/file" }).await;
            actor.attrs(id, 0o100_644, 5).await;
            assert_eq!(lstat.await.unwrap().unwrap().size, 5);
            assert!(!host.server().unwrap().is_helper);
        }
    }
}

/// A server that may be exchanged.
struct Changing {
    now: Mutex<Stage>,
}

#[async_trait]
impl Connector for Changing {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        Ok(self.now.lock().unwrap().start())
    }
}

/// A helper that is known is started at once; if it is missing, plain SFTP is.
#[tokio::test]
async fn a_known_helper_is_started_first_and_forgotten_if_it_is_missing() {
    let (both, mut plain, mut helper) = both();
    *both.known.lock().unwrap() = Some(PLACES[0].to_owned());
    let connecting = tokio::spawn(Host::connect(both.clone(), config(Helper::Auto)));
    let mut actor = greet_helper(&mut helper).await;
    let root = root_requests(&mut actor).await;
    answer_root(&mut actor, root).await;
    let host = connecting.await.unwrap().unwrap();
    assert!(host.server().unwrap().is_helper);
    assert_eq!(both.started(), ["here/sshoal, Metadata"]);

    both.missing.store(1, Ordering::SeqCst);
    let connecting = tokio::spawn(Host::connect(both.clone(), config(Helper::Auto)));
    let mut actor = plain.recv().await.unwrap();
    let root = root_requests(&mut actor).await;
    // The place that has failed is not tried again.
    let id = actor.expect(Request::Stat { path: PLACES[1].as_bytes() }).await;
    answer_root(&mut actor, root).await;
    actor.fail(id, StatusCode::NO_SUCH_FILE).await;
    let host = connecting.await.unwrap().unwrap();
    assert!(!host.server().unwrap().is_helper);
    assert_eq!(both.started(), ["here/sshoal, Metadata", "plain, Metadata"]);
    assert_eq!(*both.known.lock().unwrap(), None);
}

/// Whatever is known or found: `No` starts no helper, and `At` nothing else.
#[tokio::test]
async fn a_helper_that_is_off_or_required() {
    let (both, mut plain, _helper) = both();
    *both.known.lock().unwrap() = Some(PLACES[0].to_owned());
    let connecting = tokio::spawn(Host::connect(both.clone(), config(Helper::No)));
    let mut actor = plain.recv().await.unwrap();
    let root = root_requests(&mut actor).await;
    answer_root(&mut actor, root).await;
    let _host = connecting.await.unwrap().unwrap();
    actor.expect_nothing().await;
    assert_eq!(both.started(), ["plain, Metadata"]);

    both.missing.store(1, Ordering::SeqCst);
    let required = config(Helper::At("/x".to_owned()));
    let error = Host::connect(both.clone(), required).await.err().unwrap();
    assert_eq!(error.to_string(), "the helper /x does not serve: ssh: sh: not found");
    assert_eq!(both.started(), ["/x, Metadata"]);
}
