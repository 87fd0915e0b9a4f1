//! Names that are changed while the answer is lost: what is answered, and what is never done.

use base::{Create, Errno, OpenFlags, Remote, RenameMode};
use testkit::{Call, path};

use super::stage::{Stage, making};

/// A while ago: nothing that was made just now.
const OLD: i64 = 1_000_000_000;

/// Teaches the clock.
async fn with_clock(stage: &Stage) {
    let flags = OpenFlags { create: Create::Exclusive(0o644), ..making() };
    let fh = stage.open("clock", flags).await;
    stage.steady.close(fh);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_somebody_else_made_is_not_ours() {
    for clock in [true, false] {
        let stage = Stage::new();
        if clock {
            with_clock(&stage).await;
        }
        let make = |change: fn(&Stage)| {
            stage.faulty.fail(Call::Mkdir, 1, Errno::EHOSTDOWN);
            change(&stage);
        };
        // It was there long before.
        make(|stage| {
            stage.server().put_dir("d");
            stage.server().set_mtime("d", OLD);
        });
        assert_eq!(stage.steady.mkdir(&path("d"), 0o755).await, Err(Errno::EEXIST));
        // It has something in it.
        make(|stage| stage.server().put_file("e/x", ""));
        assert_eq!(stage.steady.mkdir(&path("e"), 0o755).await, Err(Errno::EEXIST));
        // It lets others in.
        make(|stage| {
            stage.server().put_dir("g");
            stage.server().set_perm("g", 0o777);
        });
        assert_eq!(stage.steady.mkdir(&path("g"), 0o700).await, Err(Errno::EEXIST));
        // It is a file.
        make(|stage| stage.server().put_file("f", ""));
        assert_eq!(stage.steady.mkdir(&path("f"), 0o755).await, Err(Errno::EEXIST));
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_file_of_somebody_else_is_not_ours() {
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
        let opened = stage.steady.open(&path(name), flags).await;
        assert_eq!(opened.unwrap_err(), Errno::EEXIST, "{name}");
        assert_eq!(stage.content(name), content);
    }
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_put_in_the_place_of_a_removed_name_is_not_removed() {
    for clock in [true, false] {
        let stage = Stage::new();
        if clock {
            with_clock(&stage).await;
        }
        stage.server().put_file("f", "old");
        stage.server().set_mtime("f", OLD);
        stage.steady.lstat(&path("f")).await.unwrap();
        stage.faulty.fail_after(Call::Unlink, 1, Errno::EHOSTDOWN);
        let gate = stage.faulty.hold(Call::Lstat, 1);
        let steady = stage.steady.clone();
        let unlinking = tokio::spawn(async move { steady.unlink(&path("f")).await });
        gate.arrived().await;
        stage.server().put_file("f", "new");
        gate.release();
        assert_eq!(unlinking.await.unwrap(), Err(Errno::EIO));
        assert_eq!(stage.content("f"), "new");
        assert_eq!(stage.faulty.calls(Call::Unlink), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_removed_is_removed_however_it_was_known() {
    let stage = Stage::new();
    with_clock(&stage).await;
    // By a listing, by being written through us, and by its age alone.
    stage.server().put_file("listed", "x");
    let dh = stage.steady.opendir(&path("")).await.unwrap();
    while stage.steady.readdir(dh).await.unwrap().is_some() {}
    stage.steady.closedir(dh);
    let fh = stage.create("written").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.steady.close(fh);
    stage.server().put_file("aged", "x");
    stage.server().set_mtime("aged", OLD);
    for name in ["listed", "written", "aged"] {
        stage.faulty.fail(Call::Unlink, 1, Errno::EHOSTDOWN);
        assert_eq!(stage.steady.unlink(&path(name)).await, Ok(()), "{name}");
        assert!(!stage.server().exists(name));
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_directory_in_the_place_of_a_removed_one_stays() {
    let stage = Stage::new();
    with_clock(&stage).await;
    stage.server().put_dir("d");
    stage.steady.lstat(&path("d")).await.unwrap();
    stage.faulty.fail_after(Call::Rmdir, 1, Errno::EHOSTDOWN);
    let gate = stage.faulty.hold(Call::Lstat, 1);
    let steady = stage.steady.clone();
    let removing = tokio::spawn(async move { steady.rmdir(&path("d")).await });
    gate.arrived().await;
    stage.server().put_dir("d");
    stage.server().set_mtime("d", base::Timestamp::now().secs + 60);
    gate.release();
    assert_eq!(removing.await.unwrap(), Err(Errno::EIO));
    assert!(stage.server().exists("d"));
}

#[tokio::test(start_paused = true)]
async fn a_rename_is_answered_by_what_is_at_both_names() {
    type Change = fn(&Stage);
    // What happens at the server while the answer is on its way, whether ours had taken effect, and
    // the answer.
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
            stage.steady.lstat(&path(name)).await.unwrap();
        }
        match took_effect {
            true => stage.faulty.fail_after(Call::Rename, 1, Errno::EHOSTDOWN),
            false => stage.faulty.fail(Call::Rename, 1, Errno::EHOSTDOWN),
        }
        let gate = stage.faulty.hold(Call::Lstat, 1);
        let steady = stage.steady.clone();
        let renaming = tokio::spawn(async move {
            steady.rename(&path("a"), &path("b"), RenameMode::Replace).await
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

#[tokio::test(start_paused = true)]
async fn a_link_of_somebody_else_is_not_ours() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    stage.faulty.fail(Call::Symlink, 2, Errno::EHOSTDOWN);
    stage.steady.symlink(b"x", &path("mine")).await.unwrap();
    stage.server().put_symlink("l", "elsewhere");
    assert_eq!(stage.steady.symlink(b"x", &path("l")).await, Err(Errno::EEXIST));
    stage.faulty.fail(Call::Link, 1, Errno::EHOSTDOWN);
    stage.server().put_file("g", "other");
    assert_eq!(stage.steady.link(&path("f"), &path("g")).await, Err(Errno::EEXIST));
}

/// What was made through us, and is made once more, is there already.
#[tokio::test(start_paused = true)]
async fn what_we_made_before_is_not_made_again() {
    let stage = Stage::new();
    stage.steady.mkdir(&path("d"), 0o755).await.unwrap();
    stage.steady.symlink(b"x", &path("l")).await.unwrap();
    let exclusive = OpenFlags { create: Create::Exclusive(0o644), ..making() };
    let fh = stage.open("f", exclusive).await;
    stage.steady.close(fh);
    for lost in [FAIL, FAIL_AFTER] {
        lost(&stage, Call::Mkdir);
        assert_eq!(stage.steady.mkdir(&path("d"), 0o755).await, Err(Errno::EEXIST));
        lost(&stage, Call::Symlink);
        assert_eq!(stage.steady.symlink(b"x", &path("l")).await, Err(Errno::EEXIST));
        lost(&stage, Call::Open);
        let opened = stage.steady.open(&path("f"), exclusive).await;
        assert_eq!(opened.unwrap_err(), Errno::EEXIST);
        stage.faulty.clear();
    }
}

const FAIL: fn(&Stage, Call) = |stage, call| stage.faulty.fail(call, 1, Errno::EHOSTDOWN);
const FAIL_AFTER: fn(&Stage, Call) =
    |stage, call| stage.faulty.fail_after(call, 1, Errno::EHOSTDOWN);
