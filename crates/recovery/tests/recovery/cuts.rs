//! Every operation, interrupted before its request, between request and reply, and after the reply.

use std::time::Duration;

use base::{
    Access, Allocation, AttrChange, Create, Errno, Fh, FileKind, Lock, LockFamily, LockKind,
    LockOwner, LockRange, OpenFlags, RenameMode, Result, Seek, SetXattr,
};
use base::{Remote, RemotePath};
use bytes::Bytes;
use recovery::Recovering;
use testkit::{Call, path};

use super::stage::{Stage, Started, appending, making, others_run};

/// The moment of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    BeforeTheRequest,
    BetweenRequestAndReply,
    /// All handles become stale.
    AfterTheReply,
    /// Only this call fails, and was not executed.
    Unsent,
    /// Only the reply to this call is lost.
    Unanswered,
}

const CUTS: [Cut; 5] = [
    Cut::BeforeTheRequest,
    Cut::BetweenRequestAndReply,
    Cut::AfterTheReply,
    Cut::Unsent,
    Cut::Unanswered,
];

/// Open handles for the operations.
#[derive(Clone, Copy)]
struct Open {
    file: Fh,
    log: Fh,
    dir: base::Dh,
}

struct Case {
    call: Call,
    /// Runs the operation and returns the result to compare.
    run: fn(&Recovering, Open) -> Started<'_, Result<String>>,
    /// The state on the server afterwards.
    look: fn(&Stage) -> String,
    answer: &'static str,
    after: &'static str,
}

fn at(text: &str) -> RemotePath {
    path(text)
}

/// An extended attribute of `file`.
fn xattr(stage: &Stage, name: &[u8]) -> String {
    let value = stage
        .server()
        .edit(|tree| tree.xattr(tree.lookup(&at("file"), testkit::tree::Follow::No)?, name));
    format!("{value:?}")
}

fn nothing(_: &Stage) -> String {
    String::new()
}

/// Opens a file, closes it, and returns its size.
async fn opened(recovering: &Recovering, name: &str, flags: OpenFlags) -> Result<String> {
    let opened = recovering.open(&at(name), flags).await?;
    let attr = recovering.fstat(opened.fh).await?;
    recovering.close(opened.fh);
    Ok(attr.size.to_string())
}

async fn done(call: impl Future<Output = Result<()>>) -> Result<String> {
    call.await.map(|()| "done".to_owned())
}

const OWNER: LockOwner = LockOwner { family: LockFamily::Posix, number: 1 };

fn locked(stage: &Stage) -> String {
    stage.server().locked_ranges().to_string()
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            call: Call::Lock,
            run: |recovering, open| {
                let lock = recovering.lock(
                    open.file,
                    Lock::new(OWNER, LockRange::WHOLE, LockKind::Write),
                    false,
                );
                Box::pin(done(lock))
            },
            look: locked,
            answer: "done",
            after: "1",
        },
        Case {
            call: Call::Unlock,
            run: |recovering, open| {
                Box::pin(async move {
                    let (whole, part) = (LockRange::WHOLE, LockRange::new(0, 9).unwrap());
                    recovering
                        .lock(open.file, Lock::new(OWNER, whole, LockKind::Read), false)
                        .await?;
                    done(recovering.unlock(open.file, OWNER, part)).await
                })
            },
            look: locked,
            answer: "done",
            after: "1",
        },
        Case {
            call: Call::TestLock,
            run: |recovering, open| {
                Box::pin(async move {
                    let whole = LockRange::WHOLE;
                    let found = recovering
                        .test_lock(open.file, Lock::new(OWNER, whole, LockKind::Read))
                        .await;
                    Ok(format!("{:?}", found?))
                })
            },
            look: locked,
            answer: "None",
            after: "0",
        },
        Case {
            call: Call::Lstat,
            run: |recovering, _| {
                Box::pin(async { Ok(recovering.lstat(&at("file")).await?.size.to_string()) })
            },
            look: nothing,
            answer: "7",
            after: "",
        },
        Case {
            call: Call::Readlink,
            run: |recovering, _| {
                Box::pin(async {
                    Ok(String::from_utf8(recovering.readlink(&at("link")).await?).unwrap())
                })
            },
            look: nothing,
            answer: "file",
            after: "",
        },
        Case {
            call: Call::Statvfs,
            run: |recovering, _| {
                Box::pin(async { Ok(recovering.statvfs(&at("")).await?.name_max.to_string()) })
            },
            look: nothing,
            answer: "255",
            after: "",
        },
        Case {
            call: Call::Fsyncdir,
            run: |recovering, _| Box::pin(async { done(recovering.fsyncdir(&at("dir"))).await }),
            look: nothing,
            answer: "done",
            after: "",
        },
        Case {
            call: Call::Opendir,
            run: |recovering, _| {
                Box::pin(async {
                    let dh = recovering.opendir(&at("dir")).await?;
                    let entries = recovering.readdir(dh).await?;
                    recovering.closedir(dh);
                    Ok(entries.unwrap().len().to_string())
                })
            },
            look: nothing,
            answer: "2",
            after: "",
        },
        Case {
            call: Call::Readdir,
            run: |recovering, open| {
                Box::pin(async move {
                    let mut names = Vec::new();
                    while let Some(entries) = recovering.readdir(open.dir).await? {
                        names.extend(entries.into_iter().map(|entry| entry.name.to_string()));
                    }
                    names.sort();
                    Ok(names.join(" "))
                })
            },
            look: nothing,
            answer: "one two",
            after: "",
        },
        Case {
            call: Call::Open,
            run: |recovering, _| {
                Box::pin(opened(recovering, "file", OpenFlags::existing(Access::Read)))
            },
            look: nothing,
            answer: "7",
            after: "",
        },
        Case {
            call: Call::Open,
            run: |recovering, _| {
                let flags = OpenFlags { truncate: true, ..making() };
                Box::pin(opened(recovering, "second", flags))
            },
            look: |stage| stage.content("second"),
            answer: "0",
            after: "",
        },
        Case {
            call: Call::Open,
            run: |recovering, _| Box::pin(opened(recovering, "made", making())),
            look: |stage| stage.content("made"),
            answer: "0",
            after: "",
        },
        Case {
            call: Call::Open,
            run: |recovering, _| {
                let flags = OpenFlags { create: Create::Exclusive(0o640), ..making() };
                Box::pin(opened(recovering, "new", flags))
            },
            look: |stage| format!("{:o}", stage.server().attr("new").perm),
            answer: "0",
            after: "640",
        },
        Case {
            call: Call::Fstat,
            run: |recovering, open| {
                Box::pin(async move { Ok(recovering.fstat(open.file).await?.size.to_string()) })
            },
            look: nothing,
            answer: "7",
            after: "",
        },
        Case {
            call: Call::Read,
            run: |recovering, open| {
                Box::pin(async move {
                    let data = recovering.read(open.file, 0, 100).await?;
                    Ok(String::from_utf8(data.to_vec()).unwrap())
                })
            },
            look: nothing,
            answer: "content",
            after: "",
        },
        Case {
            call: Call::Write,
            run: |recovering, open| {
                let data = Bytes::from_static(b"XY");
                Box::pin(async move { done(recovering.write(open.file, 6, data)).await })
            },
            look: |stage| stage.content("file"),
            answer: "done",
            after: "contenXY",
        },
        Case {
            call: Call::Write,
            run: |recovering, open| {
                let data = Bytes::from_static(b" more");
                Box::pin(async move { done(recovering.write(open.log, 0, data)).await })
            },
            look: |stage| stage.content("log"),
            answer: "done",
            after: "lines more",
        },
        Case {
            call: Call::Fsync,
            run: |recovering, open| {
                Box::pin(async move { done(recovering.fsync(open.file)).await })
            },
            look: nothing,
            answer: "done",
            after: "",
        },
        Case {
            call: Call::Finish,
            run: |recovering, _| {
                Box::pin(async move {
                    let fh = recovering.open(&at("written"), making()).await?.fh;
                    recovering.write(fh, 0, Bytes::from_static(b"whole")).await?;
                    done(recovering.finish(fh)).await
                })
            },
            look: |stage| stage.content("written"),
            answer: "done",
            after: "whole",
        },
        Case {
            call: Call::Finish,
            run: |recovering, _| {
                Box::pin(async move {
                    let fh = recovering.open(&at("flushed"), making()).await?.fh;
                    recovering.write(fh, 0, Bytes::from_static(b"whole")).await?;
                    recovering.flush(fh).await?;
                    recovering.write(fh, 0, Bytes::from_static(b"W")).await?;
                    done(recovering.finish(fh)).await
                })
            },
            look: |stage| stage.content("flushed"),
            answer: "done",
            after: "Whole",
        },
        Case {
            call: Call::Fsetattr,
            run: |recovering, open| {
                let change = AttrChange { size: Some(3), ..AttrChange::default() };
                Box::pin(async move { done(recovering.fsetattr(open.file, change)).await })
            },
            look: |stage| stage.content("file"),
            answer: "done",
            after: "con",
        },
        Case {
            call: Call::Setattr,
            run: |recovering, _| {
                let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
                Box::pin(async move { done(recovering.setattr(&at("file"), change)).await })
            },
            look: |stage| format!("{:o}", stage.server().attr("file").perm),
            answer: "done",
            after: "600",
        },
        Case {
            call: Call::Mkdir,
            run: |recovering, _| {
                Box::pin(async { done(recovering.mkdir(&at("newdir"), 0o700)).await })
            },
            look: |stage| format!("{:o}", stage.server().attr("newdir").perm),
            answer: "done",
            after: "700",
        },
        Case {
            call: Call::Mkdir,
            run: |recovering, _| {
                Box::pin(async { done(recovering.mkdir(&at("empty"), 0o700)).await })
            },
            look: nothing,
            answer: "EEXIST",
            after: "",
        },
        Case {
            call: Call::Rmdir,
            run: |recovering, _| Box::pin(async { done(recovering.rmdir(&at("empty"))).await }),
            look: |stage| stage.server().exists("empty").to_string(),
            answer: "done",
            after: "false",
        },
        Case {
            call: Call::Rmdir,
            run: |recovering, _| Box::pin(async { done(recovering.rmdir(&at("dir"))).await }),
            look: |stage| stage.server().exists("dir").to_string(),
            answer: "ENOTEMPTY",
            after: "true",
        },
        Case {
            call: Call::Unlink,
            run: |recovering, _| Box::pin(async { done(recovering.unlink(&at("second"))).await }),
            look: |stage| stage.server().exists("second").to_string(),
            answer: "done",
            after: "false",
        },
        Case {
            call: Call::Symlink,
            run: |recovering, _| {
                Box::pin(async { done(recovering.symlink(b"target", &at("newlink"))).await })
            },
            look: |stage| stage.server().attr("newlink").size.to_string(),
            answer: "done",
            after: "6",
        },
        Case {
            call: Call::Symlink,
            run: |recovering, _| {
                Box::pin(async { done(recovering.symlink(b"file", &at("link"))).await })
            },
            look: nothing,
            answer: "EEXIST",
            after: "",
        },
        Case {
            call: Call::Link,
            run: |recovering, _| {
                Box::pin(async { done(recovering.link(&at("second"), &at("third"))).await })
            },
            look: |stage| stage.content("third"),
            answer: "done",
            after: "other",
        },
        Case {
            call: Call::Rename,
            run: |recovering, _| {
                let (from, to) = (at("second"), at("log"));
                Box::pin(
                    async move { done(recovering.rename(&from, &to, RenameMode::Replace)).await },
                )
            },
            look: |stage| format!("{} {}", stage.content("log"), stage.server().exists("second")),
            answer: "done",
            after: "other false",
        },
        Case {
            call: Call::Rename,
            run: |recovering, _| {
                let (from, to) = (at("dir"), at("moved"));
                Box::pin(
                    async move { done(recovering.rename(&from, &to, RenameMode::NoReplace)).await },
                )
            },
            look: |stage| stage.server().names("moved").join(" "),
            answer: "done",
            after: "one two",
        },
        Case {
            call: Call::Rename,
            run: |recovering, _| {
                let (from, to) = (at("dir"), at("empty"));
                Box::pin(
                    async move { done(recovering.rename(&from, &to, RenameMode::NoReplace)).await },
                )
            },
            look: |stage| stage.server().names("dir").join(" "),
            answer: "EEXIST",
            after: "one two",
        },
        Case {
            call: Call::Copy,
            run: |recovering, open| {
                Box::pin(async move {
                    let target = recovering.open(&at("second"), making()).await?.fh;
                    let copied = recovering.copy((open.file, 0), (target, 3), 100).await;
                    recovering.close(target);
                    Ok(copied?.to_string())
                })
            },
            look: |stage| stage.content("second"),
            answer: "7",
            after: "othcontent",
        },
        Case {
            call: Call::Rename,
            run: |recovering, _| {
                let (from, to) = (at("second"), at("empty"));
                Box::pin(
                    async move { done(recovering.rename(&from, &to, RenameMode::Exchange)).await },
                )
            },
            look: |stage| {
                format!("{} {}", stage.content("empty"), stage.server().names("second").len())
            },
            answer: "done",
            after: "other 0",
        },
        Case {
            call: Call::Mknod,
            run: |recovering, _| {
                Box::pin(async {
                    done(recovering.mknod(&at("fifo"), FileKind::Fifo, 0o640, (0, 0))).await
                })
            },
            look: |stage| format!("{:?}", stage.server().attr("fifo").kind),
            answer: "done",
            after: "Fifo",
        },
        Case {
            call: Call::Fallocate,
            run: |recovering, open| {
                let grow = Allocation::Reserve { keep_size: false };
                Box::pin(async move { done(recovering.fallocate(open.file, grow, 5, 4)).await })
            },
            look: |stage| stage.content("file"),
            answer: "done",
            after: "content\0\0",
        },
        Case {
            call: Call::Fallocate,
            run: |recovering, open| {
                let hole = Allocation::PunchHole;
                Box::pin(async move { done(recovering.fallocate(open.file, hole, 5, 4)).await })
            },
            look: |stage| stage.content("file"),
            answer: "done",
            after: "conte\0\0",
        },
        Case {
            call: Call::Seek,
            run: |recovering, open| {
                Box::pin(
                    async move { Ok(recovering.seek(open.file, 3, Seek::Hole).await?.to_string()) },
                )
            },
            look: nothing,
            answer: "7",
            after: "",
        },
        Case {
            call: Call::ReadFile,
            run: |recovering, _| {
                Box::pin(async {
                    let (attr, data) = recovering.read_file(&at("file"), 100).await?.unwrap();
                    assert_eq!(attr.size, data.len() as u64);
                    Ok(String::from_utf8(data.to_vec()).unwrap())
                })
            },
            look: nothing,
            answer: "content",
            after: "",
        },
        Case {
            call: Call::Getxattr,
            run: |recovering, _| {
                Box::pin(async {
                    let value = recovering.getxattr(&at("file"), b"user.old").await?;
                    Ok(String::from_utf8(value.to_vec()).unwrap())
                })
            },
            look: nothing,
            answer: "old",
            after: "",
        },
        Case {
            call: Call::Listxattr,
            run: |recovering, _| {
                Box::pin(async { Ok(format!("{:?}", recovering.listxattr(&at("file")).await?)) })
            },
            look: nothing,
            answer: "[b\"user.old\"]",
            after: "",
        },
        Case {
            call: Call::EntriesWithXattrs,
            run: |recovering, _| {
                Box::pin(async {
                    Ok(format!("{:?}", recovering.entries_with_xattrs(&at("")).await?))
                })
            },
            look: nothing,
            answer: "[\"file\"]",
            after: "",
        },
        Case {
            call: Call::Setxattr,
            run: |recovering, _| {
                let value = Bytes::from_static(b"new");
                Box::pin(async {
                    let (at, mode) = (at("file"), SetXattr::Create);
                    done(recovering.setxattr(&at, b"user.new", value, mode)).await
                })
            },
            look: |stage| xattr(stage, b"user.new"),
            answer: "done",
            after: "Ok(b\"new\")",
        },
        Case {
            call: Call::Setxattr,
            run: |recovering, _| {
                let value = Bytes::from_static(b"other");
                Box::pin(async {
                    let (at, mode) = (at("file"), SetXattr::Create);
                    done(recovering.setxattr(&at, b"user.old", value, mode)).await
                })
            },
            look: |stage| xattr(stage, b"user.old"),
            answer: "EEXIST",
            after: "Ok(b\"old\")",
        },
        Case {
            call: Call::Setxattr,
            run: |recovering, _| {
                let value = Bytes::from_static(b"list");
                Box::pin(async {
                    let (at, mode) = (at("file"), SetXattr::Either);
                    done(recovering.setxattr(&at, b"system.posix_acl_access", value, mode)).await
                })
            },
            // The list has changed the mode, which the open file must not mind.
            look: |stage| {
                stage.server().edit(|tree| {
                    let ino = tree.lookup(&at("file"), testkit::tree::Follow::No).unwrap();
                    let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
                    tree.set_attr(ino, &perm).unwrap();
                });
                xattr(stage, b"system.posix_acl_access")
            },
            answer: "done",
            after: "Ok(b\"list\")",
        },
        Case {
            call: Call::Removexattr,
            run: |recovering, _| {
                Box::pin(async { done(recovering.removexattr(&at("file"), b"user.old")).await })
            },
            look: |stage| xattr(stage, b"user.old"),
            answer: "done",
            after: "Err(ENODATA)",
        },
    ]
}

/// Lookups as by a process that has listed the tree, so that the names are known as in real use.
async fn look_around(recovering: &Recovering) {
    for name in ["file", "second", "log", "link", "dir", "empty", "newdir", "moved", "third"] {
        let _ = recovering.lstat(&at(name)).await;
    }
}

async fn ground(stage: &Stage) -> Open {
    let server = stage.server();
    server.put_file("file", "content");
    server.put_file("second", "other");
    server.put_file("log", "lines");
    server.put_symlink("link", "file");
    server.put_dir("empty");
    server.put_file("dir/one", "");
    server.put_file("dir/two", "");
    server.edit(|tree| {
        let ino = tree.lookup(&at("file"), testkit::tree::Follow::No).unwrap();
        let value = Bytes::from_static(b"old");
        tree.set_xattr(ino, b"user.old", value, SetXattr::Create).unwrap();
    });
    let open = Open {
        file: stage.open("file", OpenFlags::existing(Access::ReadWrite)).await,
        log: stage.open("log", appending()).await,
        dir: stage.recovering.opendir(&at("dir")).await.unwrap(),
    };
    look_around(&stage.recovering).await;
    open
}

async fn run(stage: Stage, case: &Case, cut: Cut) {
    let open = ground(&stage).await;
    stage.server().set_pending(true);
    let call = (case.run)(&stage.recovering, open);
    let answer = match cut {
        Cut::Unsent => {
            stage.faulty.fail(case.call, 1, Errno::EHOSTDOWN);
            call.await
        }
        Cut::Unanswered => {
            stage.faulty.fail_after(case.call, 1, Errno::ETIMEDOUT);
            call.await
        }
        Cut::BeforeTheRequest | Cut::BetweenRequestAndReply => {
            let gate = match cut {
                Cut::BeforeTheRequest => stage.faulty.hold(case.call, 1),
                _ => stage.faulty.hold_answer(case.call, 1),
            };
            let cutting = async {
                gate.arrived().await;
                stage.cut_for(Duration::from_secs(5));
            };
            tokio::join!(call, cutting).0
        }
        Cut::AfterTheReply => {
            let answer = call.await;
            stage.cut_for(Duration::from_secs(5));
            answer
        }
    };
    let said = answer.unwrap_or_else(|errno| errno.name().unwrap().to_owned());
    assert_eq!(said, case.answer, "{:?} {cut:?}", case.call);
    assert_eq!((case.look)(&stage), case.after, "{:?} {cut:?}", case.call);
    assert_eq!(stage.faulty.not_reached(), 0, "{:?} {cut:?}", case.call);
    // Open files stay usable, unless their name was removed or their file replaced.
    if stage.server().exists("file") {
        let content = stage.server().content("file");
        assert_eq!(stage.read(open.file).await.unwrap(), content, "{:?} {cut:?}", case.call);
    }
    stage.recovering.close(open.file);
    stage.recovering.close(open.log);
    stage.recovering.closedir(open.dir);
    others_run().await;
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn every_operation_survives_a_cut_anywhere() {
    for case in &cases() {
        for cut in CUTS {
            run(Stage::new(), case, cut).await;
        }
    }
}

/// Over two gateways, of which the other one stays connected.
#[tokio::test(start_paused = true)]
async fn every_operation_survives_a_cut_of_its_gateway_anywhere() {
    // Two gateways cannot copy between them: the caller gets an error and copies by itself. They
    // have no request for a whole file, either.
    for case in cases().iter().filter(|case| !matches!(case.call, Call::Copy | Call::ReadFile)) {
        for cut in CUTS {
            run(Stage::pool(), case, cut).await;
        }
    }
}

/// Loses each round trip of an operation in turn, those of the recovery included.
#[tokio::test(start_paused = true)]
async fn every_operation_survives_two_losses_wherever_they_are() {
    for case in &cases() {
        for first in 1..=2 {
            for second in 1..=8 {
                let stage = Stage::new();
                let open = ground(&stage).await;
                stage.faulty.fail_after(case.call, 1, Errno::EHOSTDOWN);
                stage.blink();
                if first == 1 {
                    stage.faulty.fail(testkit::faulty::Which::Any, second + 1, Errno::EHOSTDOWN);
                } else {
                    let any = testkit::faulty::Which::Any;
                    stage.faulty.fail_after(any, second + 1, Errno::ETIMEDOUT);
                }
                let answer = (case.run)(&stage.recovering, open).await;
                let said = answer.unwrap_or_else(|errno| errno.name().unwrap().to_owned());
                let story = format!("{:?} {first} {second}", case.call);
                assert_eq!(said, case.answer, "{story}");
                assert_eq!((case.look)(&stage), case.after, "{story}");
                stage.faulty.clear();
                stage.recovering.close(open.file);
                stage.recovering.close(open.log);
                stage.recovering.closedir(open.dir);
                stage.nothing_leaked().await;
            }
        }
    }
}

/// Calls without a case have no caller that waits; a flush continues as `Finish`.
#[test]
fn no_operation_is_left_out() {
    let cases = cases();
    let waited_for = |call: &&Call| call.is_round_trip() && **call != Call::Flush;
    for call in Call::ALL.iter().filter(waited_for) {
        assert!(cases.iter().any(|case| case.call == *call), "{call:?}");
    }
}

/// A close waits for nothing, whatever happens to the link. No handle leaks, and other open files
/// stay usable.
#[tokio::test(start_paused = true)]
async fn closing_over_a_cut_leaks_nothing() {
    for cut in [Cut::BeforeTheRequest, Cut::BetweenRequestAndReply, Cut::AfterTheReply] {
        let stage = Stage::new();
        let open = ground(&stage).await;
        stage.server().set_pending(true);
        let give_back = || {
            stage.recovering.close(open.file);
            stage.recovering.closedir(open.dir);
        };
        match cut {
            Cut::BeforeTheRequest => {
                stage.cut_for(Duration::from_secs(5));
                give_back();
            }
            Cut::BetweenRequestAndReply => {
                // Earlier calls through the same handles are still in flight.
                let gate = stage.faulty.hold(Call::Write, 1);
                let write = stage.recovering.write(open.file, 0, Bytes::from_static(b"C"));
                let given_back = async {
                    gate.arrived().await;
                    give_back();
                    stage.cut_for(Duration::from_secs(5));
                };
                assert_eq!(tokio::join!(write, given_back).0, Ok(()));
                assert_eq!(stage.content("file"), "Content");
            }
            _ => {
                give_back();
                stage.cut_for(Duration::from_secs(5));
            }
        }
        assert_eq!(stage.read(open.log).await.unwrap(), b"lines", "{cut:?}");
        assert_eq!(stage.recovering.fstat(open.file).await, Err(Errno::EBADF), "{cut:?}");
        stage.recovering.close(open.log);
        stage.nothing_leaked().await;
    }
}
