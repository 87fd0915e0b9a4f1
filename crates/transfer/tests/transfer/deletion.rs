//! Deleting: last, only after success, and never too much.

use std::sync::Arc;

use base::{AttrChange, Errno, Remote, Timestamp};
use testkit::tree::Limits;
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Action, Doing, Fault, Filter, Job, Options, Problem, Source, Tree};

use crate::kit::{Notes, copy_with, job, mem, names, read, run, watched};

fn delete() -> Options {
    Options { delete: true, ..Options::default() }
}

#[tokio::test]
async fn what_is_excluded_is_deleted_only_if_that_is_asked_for() {
    let source = mem(|remote| {
        remote.put_file("kept", "1");
        remote.put_file("secret/key", "2");
    });
    for delete_excluded in [false, true] {
        let target = mem(|remote| {
            remote.put_file("secret/key", "2");
            remote.put_file("gone/secret/key", "2");
        });
        let filter = Filter::builder().exclude("secret").build().unwrap();
        let options = Options { delete: true, delete_excluded, filter, ..Options::default() };
        let outcome = copy_with(&source, &target, options).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(target.exists("secret/key"), !delete_excluded);
        assert_eq!(target.exists("gone"), !delete_excluded);
        assert!(target.exists("kept"));
    }
}

#[tokio::test]
async fn what_the_source_lacks_goes_with_all_below_it() {
    let source = mem(|remote| remote.put_file("keep/f", "1"));
    let target = mem(|remote| {
        remote.put_file("keep/old", "");
        remote.put_file("gone/a/b/f", "");
        remote.put_symlink("link", "keep");
    });
    let outcome = copy_with(&source, &target, delete()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(outcome.counts.deleted, 6);
    assert_eq!(names(&*target).await, ["\"keep\"", "\"keep/f\""]);
    let times = |remote: Arc<testkit::MemRemote>| async move {
        remote.lstat(&path("keep")).await.unwrap().mtime.secs
    };
    assert_eq!(times(source).await, times(target).await);
}

#[tokio::test]
async fn nothing_is_deleted_after_a_failure() {
    for call in [Call::Write, Call::Opendir, Call::Mkdir] {
        let source = mem(|remote| remote.put_file("d/f", "content"));
        let target = mem(|remote| remote.put_file("old", "precious"));
        // The directory of the target is listed first.
        let nth = if call == Call::Opendir { 2 } else { 1 };
        let faulty = Arc::new(FaultyRemote::new(match call {
            Call::Opendir => source.clone(),
            _ => target.clone(),
        }));
        faulty.fail(call, nth, Errno::EACCES);
        let outcome = match call {
            Call::Opendir => copy_with(&faulty, &target, delete()).await,
            _ => copy_with(&source, &faulty, delete()).await,
        };
        assert_eq!(faulty.not_reached(), 0, "{call:?}");
        assert_eq!(outcome.deletions_withheld, 1, "{call:?}: {outcome:#?}");
        assert_eq!(outcome.counts.deleted, 0, "{call:?}");
        assert_eq!(read(&*target, &path("old")).await, b"precious");
    }
}

#[tokio::test]
async fn too_many_deletions_are_none() {
    let source = mem(|remote| remote.put_file("f", "content"));
    for (max, deleted, withheld) in [(2, 0, 3), (3, 3, 0)] {
        let target = mem(|remote| remote.put_file("a/b/old", ""));
        let options = Options { max_delete: Some(max), ..delete() };
        let outcome = copy_with(&source, &target, options).await;
        assert_eq!(outcome.counts.deleted, deleted);
        assert_eq!(outcome.deletions_withheld, withheld);
        assert_eq!(outcome.counts.files_copied, 1);
    }
}

#[tokio::test]
async fn what_is_excluded_is_not_deleted() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = mem(|remote| {
        remote.put_file("a/keep.o", "");
        remote.put_file("a/old", "");
        remote.put_file("keep.o", "");
    });
    let mut rules = Filter::builder();
    let filter = rules.exclude("*.o").build().unwrap();
    let outcome = copy_with(&source, &target, Options { filter, ..delete() }).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(outcome.counts.deleted, 1);
    assert_eq!(names(&*target).await, ["\"a\"", "\"a/keep.o\"", "\"f\"", "\"keep.o\""]);
}

#[tokio::test]
async fn a_full_directory_in_a_files_place_goes_with_delete_only() {
    let source = mem(|remote| remote.put_file("d", "file"));
    let target = mem(|remote| remote.put_file("d/f", "in it"));
    for dry_run in [true, false] {
        let outcome = copy_with(&source, &target, Options { dry_run, ..Options::default() }).await;
        assert_eq!((outcome.counts.failed, outcome.problems_total), (1, 1), "{outcome:#?}");
        assert_eq!(read(&*target, &path("d/f")).await, b"in it");
    }
    let outcome = copy_with(&source, &target, delete()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((outcome.counts.deleted, outcome.counts.files_copied), (2, 1));
    assert_eq!(read(&*target, &path("d")).await, b"file");
}

#[tokio::test]
async fn what_the_server_cannot_look_at_is_not_deleted() {
    for errno in [Errno::EIO, Errno::EACCES, Errno::ESTALE] {
        for dry_run in [true, false] {
            let source = mem(|remote| {
                remote.put_file("f", "content");
                remote.put_file("d/mnt/g", "content");
                remote.set_unseen("d/mnt", errno);
            });
            let target = mem(|remote| {
                remote.put_file("d/mnt/g", "precious");
                remote.put_file("old", "old");
            });
            let outcome = copy_with(&source, &target, Options { dry_run, ..delete() }).await;
            let (name, doing) = (path("d/mnt"), Doing::LookSource);
            assert_eq!(outcome.problems, [Fault::Failed { doing, errno }.of(&name)]);
            assert_eq!((outcome.deletions_withheld, outcome.counts.deleted), (2, 0));
            assert_eq!(read(&*target, &path("d/mnt/g")).await, b"precious");
            assert!(target.exists("old"));
        }
    }
}

#[tokio::test]
async fn what_came_to_the_source_meanwhile_is_not_deleted() {
    // Also where listings omit nothing: the helper's.
    for shows_inodes in [true, false] {
        let limits = Limits { shows_inodes, ..Limits::default() };
        let options = testkit::mem::Options { limits, ..Default::default() };
        let source = Arc::new(MemRemote::with(options));
        source.put_file("f", "content");
        let target = mem(|remote| remote.put_file("g", "precious"));
        let faulty = Arc::new(FaultyRemote::new(source.clone()));
        let gate = faulty.hold_answer(Call::Readdir, 1);
        let copying = {
            let (faulty, target) = (faulty.clone(), target.clone());
            tokio::spawn(async move { copy_with(&faulty, &target, delete()).await })
        };
        gate.arrived().await;
        source.put_file("g", "new");
        gate.release();
        let outcome = copying.await.unwrap();
        let unlisted = Fault::Unlisted.of(&path("g"));
        assert_eq!((outcome.problems, outcome.deletions_withheld), (vec![unlisted], 1));
        assert_eq!(read(&*target, &path("g")).await, b"precious");
    }
}

#[tokio::test]
async fn a_source_that_is_a_file_by_now_lacks_what_was_below_it() {
    let source = mem(|remote| remote.put_file("d/f", "content"));
    let target = mem(|remote| remote.put_file("d/old", "old"));
    let faulty = Arc::new(FaultyRemote::new(source.clone()));
    // The target, the source, and what is asked of `d/old` at the end.
    faulty.fail(Call::Lstat, 2, Errno::ENOTDIR);
    let outcome = copy_with(&faulty, &target, delete()).await;
    assert_eq!(faulty.not_reached(), 0);
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert!(!target.exists("d/old"));
}

#[tokio::test]
async fn a_limit_of_deletions_may_be_any_number() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = mem(|remote| remote.put_file("old", ""));
    let options = Options { max_delete: Some(u64::MAX), ..delete() };
    let outcome = copy_with(&source, &target, options).await;
    assert_eq!((outcome.counts.deleted, outcome.is_complete()), (1, true));
}

#[tokio::test]
async fn a_directory_that_cannot_be_counted_is_not_within_the_limit() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = mem(|remote| {
        for number in 0..9 {
            remote.put_file(&format!("old/{number}"), "");
        }
        remote.set_perm("old", 0o300);
    });
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    // Before that, the root is listed when it is compared, and when all is copied.
    faulty.fail(Call::Opendir, 3, Errno::EACCES);
    let options = Options { max_delete: Some(5), ..delete() };
    let outcome = copy_with(&source, &faulty, options).await;
    assert_eq!((outcome.counts.deleted, outcome.deletions_withheld), (0, 1), "{outcome:#?}");
    let (name, doing, errno) = (path("old"), Doing::ListTarget, Errno::EACCES);
    assert_eq!(outcome.problems, [Fault::Failed { doing, errno }.of(&name)]);
    assert_eq!(target.attr("old").perm, 0o300);
}

/// The directory into which named sources are copied is the user's own.
#[tokio::test]
async fn the_mode_of_the_target_is_left() {
    let source = mem(|remote| remote.put_file("dir/file", "content"));
    let target = mem(|remote| {
        remote.put_dir("target");
        remote.set_perm("target", 0o550);
    });
    let tree = Tree::remote(source).at(path("dir"));
    let sources = vec![Source { tree, to: path("dir") }];
    let into = Tree::remote(target.clone()).at(path("target"));
    let outcome = run(Job { sources, target: into, options: Options::default() }).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(target.content("target/dir/file"), b"content");
    assert_eq!(target.attr("target").perm, 0o550);
}

/// A target that finds names whatever their case.
fn folding(fill: impl FnOnce(&MemRemote)) -> Arc<MemRemote> {
    folding_by(|name| name.to_ascii_lowercase(), fill)
}

/// A target that takes a dash for an underscore, which no program foresees.
fn folding_oddly(fill: impl FnOnce(&MemRemote)) -> Arc<MemRemote> {
    folding_by(|name| name.iter().map(|it| if *it == b'_' { b'-' } else { *it }).collect(), fill)
}

fn folding_by(folds: fn(&[u8]) -> Vec<u8>, fill: impl FnOnce(&MemRemote)) -> Arc<MemRemote> {
    let limits = testkit::tree::Limits { folds: Some(folds), ..testkit::tree::Limits::default() };
    let options = testkit::mem::Options { limits, ..testkit::mem::Options::default() };
    let remote = MemRemote::with(options);
    fill(&remote);
    Arc::new(remote)
}

#[tokio::test]
async fn a_name_of_another_case_is_the_copy_where_the_target_folds_case() {
    for delete in [true, false] {
        let source = mem(|remote| {
            remote.put_file("readme", "new content");
            remote.put_file("dir/file", "new content");
        });
        let target = folding(|remote| {
            remote.put_file("README", "old");
            remote.put_file("Dir/File", "old");
            remote.put_file("Dir/Surplus", "old");
        });
        for copied in [2, 0] {
            let outcome = copy_with(&source, &target, Options { delete, ..self::delete() }).await;
            assert!(outcome.is_complete(), "{outcome:#?}");
            assert_eq!(outcome.counts.files_copied, copied, "{outcome:#?}");
            assert_eq!(read(&*target, &path("readme")).await, b"new content");
            assert_eq!(read(&*target, &path("dir/file")).await, b"new content");
            assert_eq!(target.exists("dir/surplus"), !delete);
        }
    }
}

/// As when the directory has been listed in the meantime.
#[tokio::test]
async fn a_name_of_another_case_is_the_copy_although_it_was_read_since() {
    for nth in 1..=4 {
        let source = mem(|remote| remote.put_file("dir/file", "new content"));
        let target = folding(|remote| remote.put_file("Dir/File", "old"));
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        let gate = faulty.hold(Call::Lstat, nth);
        let read_since = async {
            gate.arrived().await;
            let atime = Some(Timestamp::from_secs(2_000_000_000));
            let change = AttrChange { atime, ..AttrChange::default() };
            target.setattr(&path("Dir"), change).await.unwrap();
            gate.release();
            std::future::pending::<()>().await;
        };
        let outcome = tokio::select! {
            outcome = copy_with(&source, &faulty, delete()) => outcome,
            () = read_since => unreachable!(),
        };
        assert!(outcome.is_complete(), "{nth}: {outcome:#?}");
        assert!(target.exists("dir/file"), "{nth}: {outcome:#?}");
    }
}

/// The copy has the name that is to be deleted, also if it is equal to what was there.
#[tokio::test]
async fn the_copy_is_not_deleted_under_another_name_that_the_target_takes_for_the_same() {
    for (source, target) in [("new_file", "new-file"), ("new_dir/file", "new-dir/file")] {
        let fill = |remote: &MemRemote, name: &str, content: &str| {
            remote.put_file(name, content);
            remote.set_mtime(name, 1000);
            remote.put_file("surplus_of_target", "");
        };
        let from = mem(|remote| fill(remote, source, "content"));
        from.remove("surplus_of_target");
        for before in ["content", "another"] {
            let to = folding_oddly(|remote| fill(remote, target, before));
            for _ in 0..2 {
                let outcome = copy_with(&from, &to, delete()).await;
                assert_eq!(to.content(target), b"content", "{outcome:#?}");
                let name = path(source.split('/').next().unwrap());
                assert_eq!(outcome.problems, [Fault::NameCollision.of(&name)]);
                assert!(to.exists("surplus_of_target"), "nothing is deleted after a problem");
            }
        }
    }
}

/// A file system that lists the name of the last rename.
#[tokio::test]
async fn a_name_that_is_no_longer_listed_is_not_deleted() {
    let source = mem(|remote| remote.put_file("new_file", "content"));
    let target = folding_oddly(|remote| remote.put_file("new-file", "old"));
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    // After the copy, the second listing of the directory.
    let gate = faulty.hold(Call::Opendir, 2);
    let (outcome, ()) = tokio::join!(copy_with(&source, &faulty, delete()), async {
        gate.arrived().await;
        target.move_to("new-file", "elsewhere");
        target.move_to("elsewhere", "new_file");
        gate.release();
    });
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(names(&*target).await, ["\"new_file\""]);
    assert_eq!(target.content("new_file"), b"content");
}

#[tokio::test]
async fn two_names_of_the_source_that_the_target_takes_for_one_are_a_problem() {
    for is_dir in [false, true] {
        let below = if is_dir { "/file" } else { "" };
        let source = mem(|remote| {
            remote.put_file(&format!("dir/Name{below}"), "one");
            remote.put_file(&format!("dir/name{below}"), "other");
            remote.put_file("dir/further", "");
        });
        let target = folding(|_| {});
        for options in [Options::default(), delete()] {
            let outcome = copy_with(&source, &target, options).await;
            let [Problem { name, fault: Fault::NameCollision }] = &outcome.problems[..] else {
                panic!("{outcome:#?}")
            };
            assert!([path("dir/Name"), path("dir/name")].contains(name), "{name}");
            assert_eq!(target.names("dir").len(), 2);
        }
        // Where they are two, there is no problem.
        let outcome = copy_with(&source, &mem(|_| {}), delete()).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
    }
}

#[tokio::test]
async fn two_sources_that_the_target_takes_for_one_are_a_problem() {
    let source = mem(|remote| remote.put_file("file", "content"));
    let target = folding(|_| {});
    let sources = ["Name", "name"].map(|to| {
        let tree = Tree::remote(source.clone()).at(path("file"));
        Source { tree, to: path(to) }
    });
    let into = Tree::remote(target.clone());
    let job = Job { sources: sources.to_vec(), target: into, options: Options::default() };
    let outcome = run(job).await;
    assert!(
        matches!(outcome.problems[..], [Problem { fault: Fault::NameCollision, .. }]),
        "{outcome:#?}"
    );
}

#[tokio::test]
async fn a_name_of_another_case_is_another_file_else() {
    let source = mem(|remote| remote.put_file("readme", "content"));
    let target = mem(|remote| remote.put_file("README", "content"));
    let outcome = copy_with(&source, &target, delete()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(names(&*target).await, ["\"readme\""]);
}

#[tokio::test]
async fn a_source_that_folds_case_has_no_name_of_another_case() {
    let source = folding(|remote| remote.put_file("readme", "content"));
    let target = mem(|remote| remote.put_file("README", "content"));
    let outcome = copy_with(&source, &target, delete()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(names(&*target).await, ["\"readme\""]);
}

#[tokio::test]
async fn a_directory_that_keeps_its_owner_out_is_emptied_and_as_it_was_if_it_stays() {
    // Excluded: the directory stays. Else it goes.
    for excluded in [true, false] {
        let source = mem(|remote| remote.put_file("f", "content"));
        let target = mem(|remote| {
            remote.put_file("gone/keep.o", "");
            remote.put_file("gone/old", "");
            remote.set_perm("gone", 0o550);
        });
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        faulty.fail(Call::Unlink, 1, Errno::EACCES);
        let mut rules = Filter::builder();
        let pattern = if excluded { "*.o" } else { "nothing" };
        let filter = rules.exclude(pattern).build().unwrap();
        let outcome = copy_with(&source, &faulty, Options { filter, ..delete() }).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert!(!target.exists("gone/old"));
        assert_eq!(target.exists("gone"), excluded);
        if excluded {
            assert_eq!(target.attr("gone").perm, 0o550);
        }
    }
}

#[tokio::test]
async fn rights_that_do_not_help_are_not_touched() {
    for name in ["old", "gone/old"] {
        let source = mem(|remote| remote.put_file("f", "content"));
        let target = mem(|remote| {
            remote.put_file(name, "");
            remote.set_perm("", 0o755);
        });
        source.set_perm("", 0o755);
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        faulty.fail_always(Call::Unlink, Errno::EACCES);
        let outcome = copy_with(&source, &faulty, delete()).await;
        let (name, doing, errno) = (path(name), Doing::Delete, Errno::EACCES);
        assert_eq!(outcome.problems, [Fault::Failed { doing, errno }.of(&name)]);
        let parent = if name == path("old") { "" } else { "gone" };
        assert_eq!(target.attr(parent).perm, 0o755);
        // The root's own times.
        let before = faulty.calls(Call::Setattr);
        assert!(before <= 1, "{before} changes of attributes");
    }
}

/// Two runs at once: the other one is faster.
#[tokio::test]
async fn a_directory_that_another_run_has_made_in_place_of_a_file_is_used() {
    let source = mem(|remote| remote.put_file("d/f", "content"));
    let target = mem(|remote| remote.put_file("d", "in the way"));
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    let gate = faulty.hold(Call::Unlink, 1);
    let copying = {
        let (source, faulty) = (source.clone(), faulty.clone());
        tokio::spawn(async move { copy_with(&source, &faulty, delete()).await })
    };
    gate.arrived().await;
    target.remove("d");
    target.put_dir("d");
    gate.release();
    let outcome = copying.await.unwrap();
    assert_eq!(outcome.problems, []);
    assert_eq!(read(&*target, &path("d/f")).await, b"content");
}

/// As with rsync.
#[tokio::test]
async fn what_is_mounted_in_the_target_is_kept_on_request() {
    let source = mem(|remote| remote.put_file("both/new", "content"));
    for dry_run in [true, false] {
        let target = mem(|remote| {
            remote.put_file("both/below/f", "of another disk");
            remote.put_file("both/f", "of another disk");
            remote.put_file("old/disk/f", "of another disk");
            remote.put_file("old/f", "");
            remote.put_file("surplus", "");
            remote.set_mount("both", 2);
            remote.set_mount("old/disk", 3);
        });
        let notes = Arc::new(Notes::default());
        // What is kept is not counted.
        let max_delete = Some(3);
        let options = Options { one_file_system: true, max_delete, dry_run, ..delete() };
        let outcome = watched(job(source.clone(), target.clone(), options), notes.clone()).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        let deleted = notes.changes().into_iter().filter(|(_, action)| *action == Action::Delete);
        let deleted: Vec<_> = deleted.map(|(name, _)| name).collect();
        assert_eq!(deleted, ["old/f", "surplus"]);
        assert_eq!(target.exists("surplus"), dry_run);
        for kept in ["both/below/f", "both/f", "old/disk/f"] {
            assert_eq!(target.content(kept), b"of another disk");
        }
    }
}

#[tokio::test]
async fn what_is_mounted_in_a_files_place_is_kept_on_request() {
    let source = mem(|remote| remote.put_file("disk", "content"));
    let target = mem(|remote| {
        remote.put_file("disk/f", "of another disk");
        remote.set_mount("disk", 2);
    });
    let options = Options { one_file_system: true, ..delete() };
    let outcome = copy_with(&source, &target, options).await;
    assert_eq!((outcome.problems_total, outcome.counts.failed), (1, 1), "{outcome:#?}");
    assert_eq!(target.content("disk/f"), b"of another disk");
}

/// As a server without `statvfs@openssh.com`.
#[tokio::test]
async fn nothing_is_deleted_on_request_where_file_systems_are_not_known() {
    for is_unknown in [true, false] {
        let source = mem(|remote| remote.put_file("f", "content"));
        let target = mem(|remote| remote.put_file("old/f", ""));
        if is_unknown {
            target.set_mount("", 0);
        }
        let options = Options { one_file_system: true, ..delete() };
        let outcome = copy_with(&source, &target, options).await;
        let problem = Fault::TargetFileSystems.of(&path(""));
        let problems = if is_unknown { vec![problem] } else { Vec::new() };
        assert_eq!(outcome.problems, problems);
        assert_eq!((target.exists("f"), target.exists("old/f")), (true, is_unknown));
        // Without deletions it does not matter.
        let options = Options { one_file_system: true, ..Options::default() };
        assert!(copy_with(&source, &target, options).await.is_complete());
    }
}
