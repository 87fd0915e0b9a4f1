//! Every call with its connection cut before a request, between request and reply, and after the
//! reply: the result, the effect on the server, and that later calls work.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Access, AttrChange, Create, Dh, Errno, Fh, OpenFlags, Remote, RenameMode, Timestamp};
use bytes::Bytes;
use host::{Config, ConnectError, Connection, Connector, Host, Role};
use tempfile::TempDir;
use testkit::proxy::{Action, Message, Moment, Server};

use super::peer::path;

/// Limit for an event that has to happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Concurrent cases: most of the time each waits for the pause before a reconnect.
const CONCURRENT: usize = 16;

/// Connects through the proxy.
struct Through(Arc<Server>);

#[async_trait]
impl Connector for Through {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (reader, writer) = self.0.connect();
        Ok(Connection::from_halves(reader, writer, Box::new(|| None)))
    }
}

/// A host over a proxy, with some files and open handles.
struct Stage {
    host: Host,
    server: Arc<Server>,
    dir: TempDir,
    fh: Fh,
    target: Fh,
    dh: Dh,
}

fn read_write(create: Create) -> OpenFlags {
    OpenFlags { create, ..OpenFlags::existing(Access::ReadWrite) }
}

impl Stage {
    async fn new(config: Config) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (file, len) in [("file", 10_000), ("open", 10_000), ("target", 5_000)] {
            std::fs::write(at(file), vec![b'o'; len]).unwrap();
        }
        std::fs::create_dir(at("dir")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let server = Server::new(dir.path());
        let host = Host::connect(Arc::new(Through(server.clone())), config).await.unwrap();
        let open = |name: &'static str| host.open_file(name);
        let (fh, target) = (open("open").await, open("target").await);
        let dh = host.opendir(&path("dir")).await.unwrap();
        while host.readdir(dh).await.unwrap().is_some() {}
        // When this is answered, requests sent ahead have arrived.
        host.readlink(&path("link")).await.unwrap();
        Stage { host, server, dir, fh, target, dh }
    }

    fn sees(&self, happened: Happened) -> bool {
        happened(self.dir.path())
    }
}

/// A short form for tests.
trait OpenFile {
    async fn open_file(&self, name: &str) -> Fh;
}

impl OpenFile for Host {
    async fn open_file(&self, name: &str) -> Fh {
        self.open(&path(name), read_write(Create::Never)).await.unwrap().fh
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<(), Errno>> + Send + 'a>>;

/// A call on a stage.
type Call = fn(&Stage) -> Answer<'_>;

/// Whether a change has happened in this directory.
type Happened = fn(&Path) -> bool;

/// A call.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    call: Call,
    /// The request that changes something, and how to detect the change.
    change: Option<(Message, Happened)>,
}

fn content(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).unwrap()
}

fn mtime(secs: i64) -> AttrChange {
    AttrChange { mtime: Some(Timestamp::from_secs(secs)), ..AttrChange::default() }
}

fn has_mtime(dir: &Path, name: &str, secs: i64) -> bool {
    use std::os::unix::fs::MetadataExt;
    dir.join(name).metadata().unwrap().mtime() == secs
}

/// Calls that change nothing.
const QUERIES: &[Case] = &[
    Case {
        name: "lstat",
        call: |stage| Box::pin(async { stage.host.lstat(&path("file")).await.map(drop) }),
        change: None,
    },
    Case {
        name: "readlink",
        call: |stage| Box::pin(async { stage.host.readlink(&path("link")).await.map(drop) }),
        change: None,
    },
    Case {
        name: "open",
        call: |stage| {
            Box::pin(async {
                let opened = stage.host.open(&path("file"), read_write(Create::Never)).await?;
                stage.host.close(opened.fh);
                Ok(())
            })
        },
        change: None,
    },
    Case {
        name: "fstat",
        call: |stage| Box::pin(async { stage.host.fstat(stage.fh).await.map(drop) }),
        change: None,
    },
    Case {
        name: "read",
        call: |stage| {
            Box::pin(async {
                let data = stage.host.read(stage.fh, 0, 20_000).await?;
                assert_eq!(data.to_vec(), vec![b'o'; 10_000], "a short read");
                Ok(())
            })
        },
        change: None,
    },
    Case {
        name: "statvfs",
        call: |stage| Box::pin(async { stage.host.statvfs(&path("")).await.map(drop) }),
        change: None,
    },
    Case {
        name: "fsync",
        call: |stage| Box::pin(async { stage.host.fsync(stage.fh).await }),
        change: None,
    },
    Case {
        name: "fsyncdir",
        call: |stage| Box::pin(async { stage.host.fsyncdir(&path("dir")).await }),
        change: None,
    },
];

/// Calls that change something.
const CHANGES: &[Case] = &[
    Case {
        name: "create",
        call: |stage| {
            Box::pin(async {
                let new = read_write(Create::Exclusive(0o600));
                let opened = stage.host.open(&path("new"), new).await?;
                stage.host.close(opened.fh);
                Ok(())
            })
        },
        change: Some((Message::Open, |dir| dir.join("new").exists())),
    },
    Case {
        name: "truncating open",
        call: |stage| {
            Box::pin(async {
                let flags = OpenFlags { truncate: true, ..read_write(Create::Never) };
                let opened = stage.host.open(&path("file"), flags).await?;
                stage.host.close(opened.fh);
                Ok(())
            })
        },
        // It is cut when it is known to be a regular one.
        change: Some((Message::Fsetstat, |dir| content(dir, "file").is_empty())),
    },
    Case {
        name: "write",
        call: |stage| {
            Box::pin(async { stage.host.write(stage.fh, 0, Bytes::from_static(b"new")).await })
        },
        change: Some((Message::Write, |dir| content(dir, "open").starts_with(b"new"))),
    },
    Case {
        name: "setattr",
        call: |stage| Box::pin(async { stage.host.setattr(&path("file"), mtime(1_000)).await }),
        change: Some((Message::Lsetstat, |dir| has_mtime(dir, "file", 1_000))),
    },
    Case {
        name: "setattr size",
        call: |stage| {
            Box::pin(async {
                let change = AttrChange { size: Some(7), ..AttrChange::default() };
                stage.host.setattr(&path("file"), change).await
            })
        },
        change: Some((Message::Setstat, |dir| content(dir, "file").len() == 7)),
    },
    Case {
        name: "fsetattr",
        call: |stage| Box::pin(async { stage.host.fsetattr(stage.fh, mtime(2_000)).await }),
        change: Some((Message::Fsetstat, |dir| has_mtime(dir, "open", 2_000))),
    },
    Case {
        name: "mkdir",
        call: |stage| Box::pin(async { stage.host.mkdir(&path("new"), 0o755).await }),
        change: Some((Message::Mkdir, |dir| dir.join("new").is_dir())),
    },
    Case {
        name: "rmdir",
        call: |stage| Box::pin(async { stage.host.rmdir(&path("dir")).await }),
        change: Some((Message::Rmdir, |dir| !dir.join("dir").exists())),
    },
    Case {
        name: "unlink",
        call: |stage| Box::pin(async { stage.host.unlink(&path("file")).await }),
        change: Some((Message::Remove, |dir| !dir.join("file").exists())),
    },
    Case {
        name: "symlink",
        call: |stage| Box::pin(async { stage.host.symlink(b"x", &path("new")).await }),
        change: Some((Message::Symlink, |dir| dir.join("new").is_symlink())),
    },
    Case {
        name: "link",
        call: |stage| Box::pin(async { stage.host.link(&path("file"), &path("new")).await }),
        change: Some((Message::Hardlink, |dir| dir.join("new").exists())),
    },
    Case {
        name: "rename",
        call: |stage| {
            Box::pin(async {
                let (from, to) = (path("file"), path("target"));
                stage.host.rename(&from, &to, RenameMode::Replace).await
            })
        },
        change: Some((Message::PosixRename, |dir| !dir.join("file").exists())),
    },
    Case {
        name: "rename to a new name",
        call: |stage| {
            Box::pin(async {
                let (from, to) = (path("file"), path("new"));
                stage.host.rename(&from, &to, RenameMode::NoReplace).await
            })
        },
        change: Some((Message::Rename, |dir| dir.join("new").exists())),
    },
];

/// Sequences of calls: the later ones find the connection and its handles lost.
const SEQUENCES: &[Case] = &[
    Case {
        name: "a listing",
        call: |stage| {
            Box::pin(async {
                let dh = stage.host.opendir(&path("")).await?;
                let mut result = Ok(Some(Vec::new()));
                while let Ok(Some(_)) = result {
                    result = stage.host.readdir(dh).await;
                }
                stage.host.closedir(dh);
                result.map(drop)
            })
        },
        change: None,
    },
    Case {
        name: "copy",
        call: |stage| {
            Box::pin(async {
                stage.host.write(stage.fh, 0, Bytes::from_static(b"copied")).await?;
                stage.host.copy((stage.fh, 0), (stage.target, 0), 6).await.map(drop)
            })
        },
        change: Some((Message::CopyData, |dir| content(dir, "target").starts_with(b"copied"))),
    },
];

/// The requests of a call without a failure.
async fn requests_of(case: Case) -> Vec<(Message, u64)> {
    let stage = Stage::new(Config::default()).await;
    let before = stage.server.proxy().all_requests();
    (case.call)(&stage).await.unwrap_or_else(|errno| panic!("{}: {errno:?}", case.name));
    // A reply to this request comes after all earlier requests were received, including CLOSE.
    stage.host.readlink(&path("link")).await.unwrap();
    let count = |counts: &[(Message, u64)], message| {
        let found = counts.iter().find(|(seen, _)| *seen == message);
        found.map_or(0, |(_, count)| *count)
    };
    let after = stage.server.proxy().all_requests();
    let sent = after.iter().map(|(message, total)| {
        // The READLINK above does not belong to the call.
        let others = count(&before, *message) + u64::from(*message == Message::Readlink);
        (*message, total - others)
    });
    sent.filter(|(_, count)| *count > 0).collect()
}

/// One call, one type of request, one moment.
async fn cut_at(case: Case, message: Message, alone: bool, moment: Moment, lost: &[Errno]) {
    let what = format!("{}, {message:?}, {moment:?}", case.name);
    let stage = Stage::new(Config::default()).await;
    let mut trigger = stage.server.proxy().at(message, moment, Action::Cut);
    let answer = tokio::time::timeout(LIMIT, (case.call)(&stage)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{what}: it hangs"));
    let fired = tokio::time::timeout(LIMIT, trigger.fired()).await;
    fired.unwrap_or_else(|_| panic!("{what}: the request was not sent"));
    // CLOSE, and LSTAT of a created file, are sent when the result is already decided.
    let decides = case.change.is_none_or(|(decisive, _)| decisive == message);
    let needed = decides && message != Message::Close;
    match moment {
        Moment::BeforeRequest | Moment::BeforeReply if needed => {
            assert!(answer.is_err_and(|errno| lost.contains(&errno)), "{what}: {answer:?}");
        }
        Moment::AfterReply if alone => assert_eq!(answer, Ok(()), "{what}"),
        _ => {
            let right = answer.is_ok() || answer.is_err_and(|errno| lost.contains(&errno));
            assert!(right, "{what}: {answer:?}");
        }
    }
    // The first server ends when its connection ends; what it executes, it executes before that.
    eventually(&format!("{what}: the server still runs"), || {
        stage.server.running() < stage.server.connections()
    })
    .await;
    if let Some((decisive, happened)) = case.change {
        if answer.is_ok() {
            assert!(stage.sees(happened), "{what}: nothing has happened");
        }
        if decisive == message {
            let expected = moment != Moment::BeforeRequest;
            assert_eq!(stage.sees(happened), expected, "{what}: has it happened?");
        }
    }
    // The next call reconnects and works; earlier handles are stale.
    let root = path("");
    let next = async || {
        let next = tokio::time::timeout(LIMIT, stage.host.lstat(&root)).await;
        next.unwrap_or_else(|_| panic!("{what}: the next call hangs"))
    };
    let mut seen = next().await;
    // No call has seen the loss yet, so this may be the first one.
    while seen == Err(Errno::EHOSTDOWN) && answer.is_ok() {
        seen = next().await;
    }
    assert!(seen.is_ok_and(|attr| attr.is_dir()), "{what}: {seen:?}");
    assert_eq!(stage.host.fstat(stage.fh).await, Err(Errno::ESTALE), "{what}");
    assert_eq!(stage.host.readdir(stage.dh).await.err(), Some(Errno::ESTALE), "{what}");
    for fh in [stage.fh, stage.target] {
        stage.host.close(fh);
    }
    stage.host.closedir(stage.dh);
    assert_eq!(stage.server.connections(), 2, "{what}");
    eventually(&format!("{what}: a handle leaks"), || stage.server.open_handles() == 0).await;
    let Stage { host, server, .. } = stage;
    drop(host);
    eventually(&format!("{what}: a session leaks"), || server.running() == 0).await;
}

/// Waits for a condition without an event.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Runs all moments of all requests of these calls. A call that fails must return one of `lost`.
async fn cut_everywhere(cases: &'static [Case], lost: &'static [Errno]) {
    let room = Arc::new(tokio::sync::Semaphore::new(CONCURRENT));
    let mut runs = tokio::task::JoinSet::new();
    for case in cases {
        let sent = requests_of(*case).await;
        assert!(!sent.is_empty(), "{} asks nothing", case.name);
        if let Some((decisive, _)) = case.change {
            let seen = sent.iter().any(|(message, _)| *message == decisive);
            assert!(seen, "{}: {sent:?}", case.name);
        }
        let alone = sent.iter().map(|(_, count)| count).sum::<u64>() == 1;
        for (message, _) in sent {
            for moment in Moment::ALL {
                let room = room.clone();
                runs.spawn(async move {
                    let _place = room.acquire().await.unwrap();
                    cut_at(*case, message, alone, moment, lost).await;
                });
            }
        }
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_cut_fails_and_can_be_repeated() {
    cut_everywhere(QUERIES, &[Errno::EHOSTDOWN]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_cut_has_happened_or_not_by_the_moment_of_the_cut() {
    cut_everywhere(CHANGES, &[Errno::EHOSTDOWN]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_that_is_cut_fails_with_a_connection_error() {
    cut_everywhere(SEQUENCES, &[Errno::EHOSTDOWN, Errno::ESTALE]).await;
}

/// A connection without progress is ended, whenever the stall began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_stalled_times_out_and_the_next_one_works() {
    let stall_limit = Duration::from_millis(700);
    let mut runs = tokio::task::JoinSet::new();
    let named = |case: &&Case| ["lstat", "read", "write", "mkdir", "rename"].contains(&case.name);
    let cases: Vec<Case> = QUERIES.iter().chain(CHANGES).filter(named).copied().collect();
    assert_eq!(cases.len(), 5);
    for case in cases {
        for moment in [Moment::BeforeRequest, Moment::BeforeReply] {
            runs.spawn(async move {
                let what = format!("{}, {moment:?}", case.name);
                let stage = Stage::new(Config { stall_limit, ..Config::default() }).await;
                let trigger = stage.server.proxy().at(Message::Any, moment, Action::Stall);
                let answer = tokio::time::timeout(LIMIT, (case.call)(&stage)).await;
                assert_eq!(answer.expect("it hangs"), Err(Errno::ETIMEDOUT), "{what}");
                assert!(trigger.has_fired(), "{what}");
                stage.server.proxy().resume();
                let root = path("");
                let next = tokio::time::timeout(LIMIT, stage.host.lstat(&root)).await;
                assert!(next.expect("it hangs").is_ok(), "{what}");
                eventually(&what, || stage.server.running() == 1).await;
            });
        }
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
}

/// The probe for the cause of FAILURE can be cut off too. Action no errno is guessed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_cut_returns_the_connection_error() {
    let calls: [(&str, Message, Errno, Call); 4] = [
        ("rename onto a full directory", Message::Lstat, Errno::ENOTEMPTY, |stage| {
            Box::pin(async {
                stage.host.rename(&path("source"), &path("full"), RenameMode::Replace).await
            })
        }),
        ("rename, its entries", Message::Readdir, Errno::ENOTEMPTY, |stage| {
            Box::pin(async {
                stage.host.rename(&path("source"), &path("full"), RenameMode::Replace).await
            })
        }),
        ("rmdir", Message::Readdir, Errno::ENOTEMPTY, |stage| {
            Box::pin(async { stage.host.rmdir(&path("full")).await })
        }),
        ("link onto what is there", Message::Lstat, Errno::EEXIST, |stage| {
            Box::pin(async { stage.host.link(&path("file"), &path("target")).await })
        }),
    ];
    for (what, message, errno, call) in calls {
        let stage = Stage::new(Config::default()).await;
        for made in ["source", "full", "full/inside"] {
            std::fs::create_dir(stage.dir.path().join(made)).unwrap();
        }
        let mut trigger = stage.server.proxy().at(message, Moment::BeforeReply, Action::Cut);
        let answer = tokio::time::timeout(LIMIT, call(&stage)).await.unwrap();
        tokio::time::timeout(LIMIT, trigger.fired()).await.unwrap();
        assert_eq!(answer, Err(Errno::EHOSTDOWN), "{what}");
        let again = tokio::time::timeout(LIMIT, call(&stage)).await.unwrap();
        assert_eq!(again, Err(errno), "{what}, again");
    }
}
