//! Changes of names whose reply is lost: the results, and what is never done.

use base::{AttrChange, Create, Errno, FileKind, OpenFlags, Remote, RenameMode, SetXattr};
use testkit::mem::Options;
use testkit::{Call, MemRemote, path};

use super::stage::{Stage, Started, appending, making, others_run, poll_once};

/// An old time stamp: not created just now.
const OLD: i64 = 1_000_000_000;

/// Makes the server's clock known.
async fn with_clock(stage: &Stage) {
    let flags = OpenFlags { create: Create::Exclusive(0o644), ..making() };
    let fh = stage.open("clock", flags).await;
    stage.recovering.close(fh);
}

#[tokio::test(start_paused = true)]
async fn a_directory_created_by_another_client_is_eexist() {
    for clock in [true, false] {
        let stage = Stage::new();
        if clock {
            with_clock(&stage).await;
        }
        let make = |change: fn(&Stage)| {
            stage.faulty.fail(Call::Mkdir, 1, Errno::EHOSTDOWN);
            change(&stage);
        };
        // It existed long before.
        make(|stage| {
            stage.server().put_dir("d");
            stage.server().set_mtime("d", OLD);
        });
        assert_eq!(stage.recovering.mkdir(&path("d"), 0o755).await, Err(Errno::EEXIST));
        // It is not empty.
        make(|stage| stage.server().put_file("e/x", ""));
        assert_eq!(stage.recovering.mkdir(&path("e"), 0o755).await, Err(Errno::EEXIST));
        // It has more permission bits.
        make(|stage| {
            stage.server().put_dir("g");
            stage.server().set_perm("g", 0o777);
        });
        assert_eq!(stage.recovering.mkdir(&path("g"), 0o700).await, Err(Errno::EEXIST));
        // It is a file.
        make(|stage| stage.server().put_file("f", ""));
        assert_eq!(stage.recovering.mkdir(&path("f"), 0o755).await, Err(Errno::EEXIST));
    }
}

/// What another client creates long after the loss was noticed is not taken for one's own. A lock
/// directory would have two owners.
#[tokio::test(start_paused = true)]
async fn an_entry_created_by_another_client_in_an_outage_is_not_ours() {
    for how in How::ALL {
        let stage = Stage::new();
        with_clock(&stage).await;
        let at = path("d");
        assert_eq!(stage.recovering.lstat(&at).await.unwrap_err(), Errno::ENOENT);
        let recovering = &stage.recovering;
        stage.faulty.cut();
        let mut create: Started<'_, _> = Box::pin(async {
            match how {
                How::Mkdir => recovering.mkdir(&at, 0o666).await,
                How::Mknod => recovering.mknod(&at, FileKind::Fifo, 0o666, (0, 0)).await,
                How::Open(create) => {
                    let opened = recovering.open(&at, OpenFlags { create, ..making() }).await?;
                    recovering.close(opened.fh);
                    Ok(())
                }
            }
        });
        assert!(poll_once(&mut create).is_pending());
        others_run().await;
        // Times are compared in seconds.
        let lost = base::Timestamp::now().secs;
        while base::Timestamp::now().secs == lost {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        match how {
            How::Mkdir => stage.server().put_dir("d"),
            How::Mknod => {
                let theirs = stage.server().mknod(&at, FileKind::Fifo, 0o600, (0, 0));
                theirs.await.unwrap();
            }
            How::Open(_) => stage.server().put_file("d", ""),
        }
        stage.server().set_perm("d", 0o600);
        // The longest time that is not distinguished from the present.
        stage.server().set_mtime("d", base::Timestamp::now().secs + 2);
        stage.faulty.restore();
        let expected = match how {
            How::Open(Create::IfAbsent(_)) => Ok(()),
            _ => Err(Errno::EEXIST),
        };
        assert_eq!(create.await, expected, "{how:?}");
        assert_eq!(stage.server().attr("d").perm, 0o600, "{how:?}");
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_created_by_another_client_is_eexist() {
    let stage = Stage::new();
    with_clock(&stage).await;
    let flags = OpenFlags { create: Create::Exclusive(0o600), ..making() };
    for (name, content, mtime) in [("full", "x", None), ("old", "", Some(OLD))] {
        stage.faulty.fail(Call::Open, 1, Errno::EHOSTDOWN);
        stage.server().put_file(name, content);
        stage.server().set_perm(name, 0o600);
        if let Some(mtime) = mtime {
            stage.server().set_mtime(name, mtime);
        }
        let opened = stage.recovering.open(&path(name), flags).await;
        assert_eq!(opened.unwrap_err(), Errno::EEXIST, "{name}");
        assert_eq!(stage.content(name), content);
    }
    stage.nothing_leaked().await;
}

/// L2: a new file whose mode does not permit its own creator to open it again.
#[tokio::test(start_paused = true)]
async fn a_created_read_only_file_is_opened_after_a_lost_reply() {
    for create in [Create::Exclusive(0o444), Create::IfAbsent(0o444)] {
        // No other request is lost, or one request of the recovery, or its reply.
        for fault in 0..9 {
            let stage = Stage::new();
            with_clock(&stage).await;
            stage.faulty.fail_after(Call::Open, 1, Errno::EHOSTDOWN);
            // The server refuses to open the file while it has this mode.
            let refused = match create {
                Create::Exclusive(_) => vec![2],
                _ => vec![2, 3],
            };
            for nth in &refused {
                stage.faulty.fail(Call::Open, *nth, Errno::EACCES);
            }
            let open = refused.len() as u64 + 2;
            let faults =
                [(Call::Lstat, 1), (Call::Setattr, 1), (Call::Open, open), (Call::Fsetattr, 1)];
            match (faults.get(fault / 2), fault % 2) {
                (None, _) => {}
                (Some((call, nth)), 0) => stage.faulty.fail(*call, *nth, Errno::EHOSTDOWN),
                (Some((call, nth)), _) => stage.faulty.fail_after(*call, *nth, Errno::EHOSTDOWN),
            }
            let flags = OpenFlags { create, ..making() };
            let fh = stage.open("f", flags).await;
            assert_eq!(stage.faulty.not_reached(), 0, "{create:?} {fault}");
            stage.put(fh, 0, "content").await.unwrap();
            assert_eq!(stage.content("f"), "content");
            assert_eq!(stage.server().attr("f").perm, 0o444, "{create:?} {fault}");
            stage.recovering.close(fh);
            stage.nothing_leaked().await;
        }
    }
    // A file of another client stays as it is.
    let stage = Stage::new();
    with_clock(&stage).await;
    stage.server().put_file("f", "theirs");
    stage.server().set_perm("f", 0o444);
    stage.faulty.fail(Call::Open, 1, Errno::EHOSTDOWN);
    stage.faulty.fail(Call::Open, 2, Errno::EACCES);
    let flags = OpenFlags { create: Create::IfAbsent(0o444), ..making() };
    let opened = stage.recovering.open(&path("f"), flags).await;
    assert_eq!(opened.unwrap_err(), Errno::EACCES);
    assert_eq!(stage.server().attr("f").perm, 0o444);
}

/// Creates `d/x` by a request whose reply is lost. The server, which has created it with the
/// permission bits `given`, keeps it. Returns the permission bits that it gets in the end.
async fn created_without_reply(stage: &Stage, how: How, wanted: u32, given: u32) -> u32 {
    let (at, call) = (path("d/x"), how.call());
    let recovering = &stage.recovering;
    assert_eq!(recovering.lstat(&at).await.unwrap_err(), Errno::ENOENT);
    stage.faulty.fail_after(call, 1, Errno::EHOSTDOWN);
    // The next request about it.
    let gate = match how {
        How::Open(Create::IfAbsent(_)) => stage.faulty.hold(Call::Open, 2),
        _ => stage.faulty.hold(Call::Lstat, 1),
    };
    let create = async {
        match how {
            How::Mkdir => recovering.mkdir(&at, wanted).await.unwrap(),
            How::Mknod => recovering.mknod(&at, FileKind::Fifo, wanted, (0, 0)).await.unwrap(),
            How::Open(create) => {
                let opened = recovering.open(&at, OpenFlags { create, ..making() }).await.unwrap();
                assert_eq!(opened.attr.perm, stage.server().attr("d/x").perm);
                recovering.close(opened.fh);
            }
        }
    };
    let masked = async {
        gate.arrived().await;
        stage.server().set_perm("d/x", given);
        gate.release();
    };
    tokio::join!(create, masked);
    stage.nothing_leaked().await;
    stage.server().attr("d/x").perm
}

#[derive(Clone, Copy, Debug)]
enum How {
    Mkdir,
    Mknod,
    Open(Create),
}

impl How {
    const ALL: [How; 4] = [
        How::Mkdir,
        How::Mknod,
        How::Open(Create::Exclusive(0o666)),
        How::Open(Create::IfAbsent(0o666)),
    ];

    fn call(self) -> Call {
        match self {
            How::Mkdir => Call::Mkdir,
            How::Mknod => Call::Mknod,
            How::Open(_) => Call::Open,
        }
    }
}

/// L1: the bits that the server's umask has removed are added also after a loss.
#[tokio::test(start_paused = true)]
async fn a_new_entry_gets_its_permission_bits_after_a_lost_reply() {
    for how in How::ALL {
        for clock in [true, false] {
            let stage = Stage::new();
            stage.server().put_dir("d");
            if clock {
                with_clock(&stage).await;
            }
            let perm = created_without_reply(&stage, how, 0o666, 0o600).await;
            assert_eq!(perm, 0o666, "{how:?} {clock}");
        }
    }
}

/// Bits that the default access list of the directory has removed are not added after a loss.
#[tokio::test(start_paused = true)]
async fn a_default_access_list_decides_the_permission_bits_after_a_lost_reply() {
    for how in How::ALL {
        // The list is there, or cannot be queried.
        for fails in [false, true] {
            let stage = Stage::new();
            stage.server().put_dir("d");
            with_clock(&stage).await;
            match fails {
                true => stage.faulty.fail(Call::Getxattr, 1, Errno::EACCES),
                false => stage.server().edit(|tree| {
                    let dir = tree.lookup(&path("d"), testkit::tree::Follow::No).unwrap();
                    let (name, mode) = (b"system.posix_acl_default", SetXattr::Either);
                    tree.set_xattr(dir, name, "a list".into(), mode).unwrap();
                }),
            }
            let perm = created_without_reply(&stage, how, 0o666, 0o600).await;
            assert_eq!(perm, 0o600, "{how:?} {fails}");
        }
    }
}

/// A file that another client has created meanwhile, or that the repeated open has truncated, is
/// not taken for the one that the lost open would have created.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_there_keeps_its_permission_bits_after_a_lost_open() {
    for (content, mtime, known) in [("x", None, true), ("", Some(OLD), true), ("x", None, false)] {
        let stage = Stage::new();
        with_clock(&stage).await;
        if known {
            assert_eq!(stage.recovering.lstat(&path("f")).await.unwrap_err(), Errno::ENOENT);
        }
        stage.server().put_file("f", content);
        stage.server().set_perm("f", 0o600);
        if let Some(mtime) = mtime {
            stage.server().set_mtime("f", mtime);
        }
        stage.faulty.fail(Call::Open, 1, Errno::EHOSTDOWN);
        let create = Create::IfAbsent(0o666);
        let fh = stage.open("f", OpenFlags { create, truncate: !known, ..making() }).await;
        assert_eq!(stage.server().attr("f").perm, 0o600, "{content:?} {mtime:?} {known}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_replaced_a_removed_name_is_not_removed() {
    for clock in [true, false] {
        let stage = Stage::new();
        if clock {
            with_clock(&stage).await;
        }
        stage.server().put_file("f", "old");
        stage.server().set_mtime("f", OLD);
        stage.recovering.lstat(&path("f")).await.unwrap();
        stage.faulty.fail_after(Call::Unlink, 1, Errno::EHOSTDOWN);
        let gate = stage.faulty.hold(Call::Lstat, 1);
        let recovering = stage.recovering.clone();
        let unlinking = tokio::spawn(async move { recovering.unlink(&path("f")).await });
        gate.arrived().await;
        stage.server().put_file("f", "new");
        gate.release();
        assert_eq!(unlinking.await.unwrap(), Err(Errno::EIO));
        assert_eq!(stage.content("f"), "new");
        assert_eq!(stage.faulty.calls(Call::Unlink), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unexecuted_removal_is_repeated_for_any_known_name() {
    let stage = Stage::new();
    with_clock(&stage).await;
    // Known by a listing, by a write through this mount, and by its age alone.
    stage.server().put_file("listed", "x");
    let dh = stage.recovering.opendir(&path("")).await.unwrap();
    while stage.recovering.readdir(dh).await.unwrap().is_some() {}
    stage.recovering.closedir(dh);
    let fh = stage.create("written").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.recovering.close(fh);
    stage.server().put_file("aged", "x");
    stage.server().set_mtime("aged", OLD);
    for name in ["listed", "written", "aged"] {
        stage.faulty.fail(Call::Unlink, 1, Errno::EHOSTDOWN);
        assert_eq!(stage.recovering.unlink(&path(name)).await, Ok(()), "{name}");
        assert!(!stage.server().exists(name));
    }
}

/// L2: what is known of a stale file says nothing of the one that has its name now.
#[tokio::test(start_paused = true)]
async fn a_file_with_the_name_of_a_stale_one_is_removed() {
    for is_closed in [false, true] {
        let stage = Stage::new();
        let fh = stage.create("f").await;
        stage.put(fh, 0, "content").await.unwrap();
        stage.faulty.cut();
        stage.server().put_file("f", "another content");
        stage.faulty.restore_without_handles(Errno::ESTALE);
        assert_eq!(stage.read(fh).await, Err(Errno::ESTALE));
        stage.recovering.lstat(&path("f")).await.unwrap();
        if is_closed {
            stage.recovering.close(fh);
        }
        stage.faulty.fail(Call::Unlink, 1, Errno::EHOSTDOWN);
        assert_eq!(stage.recovering.unlink(&path("f")).await, Ok(()), "closed: {is_closed}");
        assert!(!stage.server().exists("f"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_replaced_a_removed_one_stays() {
    let stage = Stage::new();
    with_clock(&stage).await;
    stage.server().put_dir("d");
    stage.recovering.lstat(&path("d")).await.unwrap();
    stage.faulty.fail_after(Call::Rmdir, 1, Errno::EHOSTDOWN);
    let gate = stage.faulty.hold(Call::Lstat, 1);
    let recovering = stage.recovering.clone();
    let removing = tokio::spawn(async move { recovering.rmdir(&path("d")).await });
    gate.arrived().await;
    stage.server().put_dir("d");
    stage.server().set_mtime("d", base::Timestamp::now().secs + 60);
    gate.release();
    assert_eq!(removing.await.unwrap(), Err(Errno::EIO));
    assert!(stage.server().exists("d"));
}

#[tokio::test(start_paused = true)]
async fn a_directory_with_an_mtime_in_the_future_is_removed() {
    let future = base::Timestamp::now().secs + 3600;
    for by_us in [false, true] {
        let stage = Stage::new();
        with_clock(&stage).await;
        stage.server().put_dir("d");
        if by_us {
            stage.recovering.lstat(&path("d")).await.unwrap();
            let mtime = Some(base::Timestamp::from_secs(future));
            let change = base::AttrChange { mtime, ..base::AttrChange::default() };
            stage.recovering.setattr(&path("d"), change).await.unwrap();
        } else {
            stage.server().set_mtime("d", future);
            stage.recovering.lstat(&path("d")).await.unwrap();
        }
        stage.faulty.fail(Call::Rmdir, 1, Errno::EHOSTDOWN);
        assert_eq!(stage.recovering.rmdir(&path("d")).await, Ok(()), "by us: {by_us}");
        assert!(!stage.server().exists("d"));
    }
}

/// L2: the attributes of an open file stay known until the outcome is, even if its last handle is
/// closed while the request is in flight.
#[tokio::test(start_paused = true)]
async fn a_file_closed_during_its_rename_is_recognized() {
    for names in [("from", "to"), ("new", "absent")] {
        let stage = Stage::new();
        with_clock(&stage).await;
        stage.server().put_file("to", "before");
        let (from, to) = (path(names.0), path(names.1));
        let _ = stage.recovering.lstat(&to).await;
        let fh = stage.create(names.0).await;
        stage.put(fh, 0, "content").await.unwrap();
        stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN);
        let gate = stage.faulty.hold(Call::Rename, 1);
        let mut renaming: Started<'_, _> =
            Box::pin(stage.recovering.rename(&from, &to, RenameMode::Replace));
        assert!(super::stage::poll_once(&mut renaming).is_pending());
        gate.arrived().await;
        stage.recovering.close(fh);
        super::stage::others_run().await;
        gate.release();
        assert_eq!(renaming.await, Ok(()), "{names:?}");
        assert_eq!(stage.content(names.1), "content");
        stage.nothing_leaked().await;
    }
}

/// L1: a change of a file by one of its names changes its attributes under the others.
#[tokio::test(start_paused = true)]
async fn a_hard_link_changed_by_another_name_is_removed_and_renamed() {
    type Prepare = for<'a> fn(&'a Stage) -> Started<'a, ()>;
    // The change of the file with the names "one" and "other".
    let cases: [(&str, Prepare); 4] = [
        ("changed by the first name", |stage| {
            Box::pin(async {
                stage.recovering.lstat(at("other")).await.unwrap();
                write_to(stage, "one").await;
            })
        }),
        ("changed by the second name", |stage| {
            Box::pin(async {
                stage.recovering.rename(at("one"), at("x"), RenameMode::Replace).await.unwrap();
                stage.recovering.rename(at("other"), at("one"), RenameMode::Replace).await.unwrap();
                write_to(stage, "one").await;
                stage.recovering.rename(at("x"), at("other"), RenameMode::Replace).await.unwrap();
            })
        }),
        ("changed by a name that was removed since", |stage| {
            Box::pin(async {
                let fh = stage.create("one").await;
                stage.recovering.unlink(at("one")).await.unwrap();
                stage.put(fh, 0, "longer content").await.unwrap();
                stage.recovering.close(fh);
            })
        }),
        ("with permissions that were set by another name", |stage| {
            Box::pin(async {
                stage.recovering.lstat(at("other")).await.unwrap();
                let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
                stage.recovering.setattr(at("one"), change).await.unwrap();
            })
        }),
    ];
    for (what, prepare) in cases {
        for took_effect in [false, true] {
            for renames in [false, true] {
                let stage = Stage::new();
                with_clock(&stage).await;
                write_to(&stage, "one").await;
                let _ = stage.recovering.lstat(at("new")).await;
                stage.recovering.link(at("one"), at("other")).await.unwrap();
                prepare(&stage).await;
                let call = if renames { Call::Rename } else { Call::Unlink };
                match took_effect {
                    true => stage.faulty.fail_after(call, 1, Errno::EHOSTDOWN),
                    false => stage.faulty.fail(call, 1, Errno::EHOSTDOWN),
                }
                let (other, new) = (at("other"), at("new"));
                let answer = match renames {
                    true => stage.recovering.rename(other, new, RenameMode::Replace).await,
                    false => stage.recovering.unlink(other).await,
                };
                assert_eq!(answer, Ok(()), "{what}, {call:?}, took effect: {took_effect}");
                assert!(!stage.server().exists("other"), "{what}");
                assert_eq!(stage.server().exists("new"), renames, "{what}");
                stage.nothing_leaked().await;
            }
        }
    }
}

async fn write_to(stage: &Stage, name: &str) {
    let fh = stage.open(name, appending()).await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.recovering.close(fh);
}

/// If nothing was known of a name, only its mtime can show that the entry is new.
#[tokio::test(start_paused = true)]
async fn an_unknown_name_is_removed() {
    for took_effect in [false, true] {
        let stage = Stage::new();
        with_clock(&stage).await;
        stage.server().put_file("f", "made just now");
        stage.server().put_file("g", "made just now");
        match took_effect {
            true => stage.faulty.fail_after(Call::Unlink, 1, Errno::EHOSTDOWN),
            false => stage.faulty.fail(Call::Unlink, 1, Errno::EHOSTDOWN),
        }
        assert_eq!(stage.recovering.unlink(at("f")).await, Ok(()));
        match took_effect {
            true => stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN),
            false => stage.faulty.fail(Call::Rename, 1, Errno::EHOSTDOWN),
        }
        assert_eq!(stage.recovering.rename(at("g"), at("h"), RenameMode::Replace).await, Ok(()));
        assert!(!stage.server().exists("f") && stage.server().exists("h"));
    }
    let stage = Stage::new();
    with_clock(&stage).await;
    stage.server().put_file("f", "newer than the request");
    stage.server().set_mtime("f", base::Timestamp::now().secs + 60);
    stage.faulty.fail_after(Call::Unlink, 1, Errno::EHOSTDOWN);
    let gate = stage.faulty.hold(Call::Lstat, 1);
    let later = async {
        gate.arrived().await;
        stage.server().put_file("f", "newer than the request");
        stage.server().set_mtime("f", base::Timestamp::now().secs + 60);
        gate.release();
    };
    let (answer, ()) = tokio::join!(stage.recovering.unlink(at("f")), later);
    assert_eq!(answer, Err(Errno::EIO));
}

/// L2: another client may write the file while it gets its second name.
#[tokio::test(start_paused = true)]
async fn a_hard_link_to_a_file_being_written_is_recognized() {
    let stage = Stage::new();
    let fh = stage.create("file").await;
    let _ = stage.recovering.lstat(at("second")).await;
    stage.faulty.fail_after(Call::Link, 1, Errno::EHOSTDOWN);
    let gate = stage.faulty.hold_answer(Call::Lstat, 1);
    let writing = async {
        gate.arrived().await;
        stage.put(fh, 0, "content").await.unwrap();
        gate.release();
    };
    let (answer, ()) = tokio::join!(stage.recovering.link(at("file"), at("second")), writing);
    assert_eq!(answer, Ok(()));
    stage.recovering.close(fh);
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_rename_follows_from_both_names() {
    type Change = fn(&Stage);
    // The change on the server while the reply is in flight, whether the request was executed, and
    // the result.
    let cases: [(&str, bool, Change, Result<(), Errno>); 7] = [
        ("done", true, |_| {}, Ok(())),
        ("not done", false, |_| {}, Ok(())),
        (
            "done, and a new one at the old name",
            true,
            |s| s.server().put_file("a", "newer"),
            Ok(()),
        ),
        ("done, and then removed", true, |s| s.server().remove("b"), Err(Errno::EIO)),
        (
            "done, and then replaced",
            true,
            |s| s.server().put_file("b", "something else"),
            Err(Errno::EIO),
        ),
        ("removed before", false, |s| s.server().remove("a"), Err(Errno::EIO)),
        (
            "not done, and the new name changed",
            false,
            |s| s.server().put_file("b", "something else"),
            Ok(()),
        ),
    ];
    for (what, took_effect, change, answer) in cases {
        let stage = Stage::new();
        stage.server().put_file("a", "content of a");
        stage.server().put_file("b", "b");
        for name in ["a", "b"] {
            stage.recovering.lstat(&path(name)).await.unwrap();
        }
        match took_effect {
            true => stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN),
            false => stage.faulty.fail(Call::Rename, 1, Errno::EHOSTDOWN),
        }
        let gate = stage.faulty.hold(Call::Lstat, 1);
        let recovering = stage.recovering.clone();
        let renaming = tokio::spawn(async move {
            recovering.rename(&path("a"), &path("b"), RenameMode::Replace).await
        });
        gate.arrived().await;
        change(&stage);
        gate.release();
        assert_eq!(renaming.await.unwrap(), answer, "{what}");
        if answer.is_ok() {
            assert_eq!(stage.content("b"), "content of a", "{what}");
        }
    }
}

/// L2, L4: a program appends to the file while the names are checked, so the attributes that arrive
/// are older than the expected ones.
#[tokio::test(start_paused = true)]
async fn a_file_that_grows_while_its_names_are_checked_is_recognized() {
    // Whether the request was executed, whether the new name was looked up before, and which lookup
    // after the loss finds the file.
    for (took_effect, target_known, lookup) in
        [(false, false, 1), (false, true, 1), (true, false, 2), (true, true, 2)]
    {
        let what = format!("executed: {took_effect}, target known: {target_known}");
        let stage = Stage::new();
        let fh = stage.open("log", appending()).await;
        stage.put(fh, 0, "one").await.unwrap();
        if target_known {
            stage.recovering.lstat(at("old")).await.unwrap_err();
        }
        match took_effect {
            true => stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN),
            false => stage.faulty.fail(Call::Rename, 1, Errno::EHOSTDOWN),
        }
        let gate = stage.faulty.hold_answer(Call::Lstat, lookup);
        let appending = async {
            gate.arrived().await;
            stage.put(fh, 3, "two").await.unwrap();
            gate.release();
        };
        let renaming = stage.recovering.rename(at("log"), at("old"), RenameMode::Replace);
        let (answer, ()) = tokio::join!(renaming, appending);
        assert_eq!(answer, Ok(()), "{what}");
        assert_eq!(stage.content("old"), "onetwo", "{what}");
        assert!(!stage.server().exists("log"), "{what}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// The same for a removal.
#[tokio::test(start_paused = true)]
async fn a_file_that_grows_while_its_removal_is_in_doubt_is_removed() {
    let stage = Stage::new();
    with_clock(&stage).await;
    let fh = stage.open("log", appending()).await;
    stage.put(fh, 0, "one").await.unwrap();
    stage.faulty.fail(Call::Unlink, 1, Errno::EHOSTDOWN);
    let gate = stage.faulty.hold_answer(Call::Lstat, 1);
    let appending = async {
        gate.arrived().await;
        stage.put(fh, 3, "two").await.unwrap();
        gate.release();
    };
    let (answer, ()) = tokio::join!(stage.recovering.unlink(at("log")), appending);
    assert_eq!(answer, Ok(()));
    assert!(!stage.server().exists("log"));
    stage.recovering.close(fh);
}

/// Lookups may be in flight at any time. The reply to one that was sent before a change, and
/// answered after it, does not show the state before the next change.
#[tokio::test(start_paused = true)]
async fn a_lookup_sent_before_a_change_does_not_show_the_state_after_it() {
    for call in [Call::Lstat, Call::Open, Call::Readdir] {
        let stage = Stage::new();
        stage.server().put_file("d/a", "this is replaced");
        stage.server().set_mtime("d/a", OLD);
        stage.server().put_file("d/b", "this replaces it");
        stage.server().set_mtime("d/b", OLD + 1);
        let (a, b, c) = (path("d/a"), path("d/b"), path("d/c"));
        for name in [&a, &b, &c] {
            let _ = stage.recovering.lstat(name).await;
        }
        let gate = stage.faulty.hold_answer(call, 1);
        let late = async {
            match call {
                Call::Lstat => stage.recovering.lstat(&a).await.map(drop),
                Call::Open => {
                    let flags = OpenFlags::existing(base::Access::Read);
                    let opened = stage.recovering.open(&a, flags).await?;
                    stage.recovering.close(opened.fh);
                    Ok(())
                }
                _ => {
                    let dh = stage.recovering.opendir(&path("d")).await?;
                    while stage.recovering.readdir(dh).await?.is_some() {}
                    stage.recovering.closedir(dh);
                    Ok(())
                }
            }
        };
        let meanwhile = async {
            gate.arrived().await;
            stage.recovering.rename(&b, &a, RenameMode::Replace).await.unwrap();
            gate.release();
        };
        assert_eq!(tokio::join!(late, meanwhile).0, Ok(()), "{call:?}");
        stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN);
        assert_eq!(stage.recovering.rename(&a, &c, RenameMode::Replace).await, Ok(()), "{call:?}");
        assert_eq!(stage.content("d/c"), "this replaces it");
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_symlink_created_by_another_client_is_eexist() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    stage.faulty.fail(Call::Symlink, 2, Errno::EHOSTDOWN);
    stage.recovering.symlink(b"x", &path("mine")).await.unwrap();
    stage.server().put_symlink("l", "elsewhere");
    assert_eq!(stage.recovering.symlink(b"x", &path("l")).await, Err(Errno::EEXIST));
    stage.faulty.fail(Call::Link, 1, Errno::EHOSTDOWN);
    stage.server().put_file("g", "other");
    assert_eq!(stage.recovering.link(&path("f"), &path("g")).await, Err(Errno::EEXIST));
}

/// L2: with `follow_symlinks` a link is shown as its target.
#[tokio::test(start_paused = true)]
async fn a_symlink_that_is_shown_as_its_target_is_recognized() {
    let options = Options { follow_symlinks: true, ..Options::default() };
    let stage = Stage::over(MemRemote::with(options));
    stage.server().put_file("f", "content");
    stage.server().put_symlink("other", "elsewhere");
    stage.server().put_file("elsewhere", "content");
    stage.faulty.fail_after(Call::Symlink, 1, Errno::EHOSTDOWN);
    assert_eq!(stage.recovering.symlink(b"f", &path("l")).await, Ok(()));
    for taken in ["other", "f"] {
        stage.faulty.fail(Call::Symlink, 1, Errno::EHOSTDOWN);
        assert_eq!(stage.recovering.symlink(b"f", &path(taken)).await, Err(Errno::EEXIST));
    }
    // A loss while the link is compared.
    stage.faulty.fail_after(Call::Symlink, 1, Errno::EHOSTDOWN);
    stage.faulty.fail(Call::Readlink, 1, Errno::EHOSTDOWN);
    assert_eq!(stage.recovering.symlink(b"f", &path("m")).await, Ok(()));
}

/// A name that this mount has created exists when it is created again.
#[tokio::test(start_paused = true)]
async fn a_name_created_earlier_is_eexist() {
    let stage = Stage::new();
    stage.recovering.mkdir(&path("d"), 0o755).await.unwrap();
    stage.recovering.symlink(b"x", &path("l")).await.unwrap();
    let exclusive = OpenFlags { create: Create::Exclusive(0o644), ..making() };
    let fh = stage.open("f", exclusive).await;
    stage.recovering.close(fh);
    for lost in [FAIL, FAIL_AFTER] {
        lost(&stage, Call::Mkdir);
        assert_eq!(stage.recovering.mkdir(&path("d"), 0o755).await, Err(Errno::EEXIST));
        lost(&stage, Call::Symlink);
        assert_eq!(stage.recovering.symlink(b"x", &path("l")).await, Err(Errno::EEXIST));
        lost(&stage, Call::Open);
        let opened = stage.recovering.open(&path("f"), exclusive).await;
        assert_eq!(opened.unwrap_err(), Errno::EEXIST);
        stage.faulty.clear();
    }
}

const FAIL: fn(&Stage, Call) = |stage, call| stage.faulty.fail(call, 1, Errno::EHOSTDOWN);
const FAIL_AFTER: fn(&Stage, Call) =
    |stage, call| stage.faulty.fail_after(call, 1, Errno::EHOSTDOWN);

/// A request that was given up as lost may be executed after the check, when it was already sent
/// again.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_executed_late_is_done() {
    let fresh = OpenFlags { create: Create::Exclusive(0o640), ..making() };
    let requests: [(Call, Request); 6] = [
        (Call::Mkdir, |remote| Box::pin(remote.mkdir(at("newdir"), 0o750))),
        (Call::Symlink, |remote| Box::pin(remote.symlink(b"file", at("newlink")))),
        (Call::Link, |remote| Box::pin(remote.link(at("file"), at("second")))),
        (Call::Unlink, |remote| Box::pin(remote.unlink(at("file")))),
        (Call::Rmdir, |remote| Box::pin(remote.rmdir(at("dir")))),
        (Call::Rename, |remote| Box::pin(remote.rename(at("file"), at("x"), RenameMode::Replace))),
    ];
    // Another caller may observe its effect in the meantime, which is not the state before.
    let requests = requests.iter().flat_map(|request| [(request, false), (request, true)]);
    for ((call, request), is_seen) in requests {
        let call = *call;
        let stage = late_stage(call).await;
        let gate = stage.faulty.hold(call, 2);
        let late = async {
            gate.arrived().await;
            request(stage.server()).await.unwrap();
            if is_seen {
                for name in ["newdir", "newlink", "second", "file", "dir", "x"] {
                    let _ = stage.recovering.lstat(at(name)).await;
                }
            }
            gate.release();
        };
        let (answer, ()) = tokio::join!(request(&*stage.recovering), late);
        assert_eq!(answer, Ok(()), "{call:?}, seen: {is_seen}");
        assert_eq!(stage.faulty.not_reached(), 0, "{call:?}");
        // Executing it again is an error, as it must be.
        assert!(request(&*stage.recovering).await.is_err(), "{call:?}");
    }
    let stage = late_stage(Call::Open).await;
    let gate = stage.faulty.hold(Call::Open, 2);
    let late = async {
        gate.arrived().await;
        let opened = stage.server().open(at("new"), fresh).await.unwrap();
        stage.server().close(opened.fh);
        gate.release();
    };
    let (opened, ()) = tokio::join!(stage.recovering.open(at("new"), fresh), late);
    stage.recovering.close(opened.unwrap().fh);
    assert_eq!(stage.recovering.open(at("new"), fresh).await.unwrap_err(), Errno::EEXIST);
    stage.nothing_leaked().await;
}

/// The server's error is returned if the state was so before.
#[tokio::test(start_paused = true)]
async fn a_repeated_request_returns_the_servers_error() {
    for (theirs, answer) in [(0o777, Err(Errno::EEXIST)), (0o750, Ok(()))] {
        let stage = late_stage(Call::Mkdir).await;
        let gate = stage.faulty.hold(Call::Mkdir, 2);
        let late = async {
            gate.arrived().await;
            stage.server().put_dir("newdir");
            stage.server().set_perm("newdir", theirs);
            gate.release();
        };
        let (got, ()) = tokio::join!(stage.recovering.mkdir(at("newdir"), 0o750), late);
        assert_eq!(got, answer);
    }
}

type Request = for<'a> fn(&'a dyn Remote) -> Started<'a, base::Result<()>>;

/// A path with the lifetime of the test.
fn at(name: &str) -> &'static base::RemotePath {
    Box::leak(Box::new(path(name)))
}

/// Some names, and a request that is lost before it arrives, or seems to be.
async fn late_stage(call: Call) -> Stage {
    let stage = Stage::new();
    with_clock(&stage).await;
    stage.server().put_file("file", "content");
    stage.server().put_dir("dir");
    for name in ["file", "dir", "newdir", "newlink", "second", "x", "new"] {
        let _ = stage.recovering.lstat(&path(name)).await;
    }
    stage.faulty.fail(call, 1, Errno::EHOSTDOWN);
    stage
}
