//! A pushed tree that a broken stream has left without its name, and what becomes of it.

use std::path::Path;
use std::sync::Arc;

use base::{Errno, Name};
use local::Local;
use testkit::faulty::Which;
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::strategy::operand::LocalOperand;
use transfer::strategy::{CopyRequest, Direction};
use transfer::tar::stage;
use transfer::{Fault, Options, Owners, Xattrs};

use super::super::shell::LocalShell;
use super::{CHANGED, Server, answers, large_content, request, run, run_well, stopped_at, tree};

fn name() -> Name {
    Name::new(b"tree").unwrap()
}

fn push(source: &Path) -> CopyRequest {
    push_with(source, Options::default())
}

fn push_with(source: &Path, options: Options) -> CopyRequest {
    request(Direction::Push, &source.join("tree"), (Path::new(""), None), options)
}

/// A target that has a stage with one file as it is to be, one that is not whole, and one that is
/// not of the source; and a shell that finds the stage, with this tar.
fn staged(tar: &str) -> (Arc<MemRemote>, Option<Arc<LocalShell>>) {
    staged_with(tar, &Options::default())
}

/// As [`staged`], by a copy with these options.
fn staged_with(tar: &str, options: &Options) -> (Arc<MemRemote>, Option<Arc<LocalShell>>) {
    let stage = stage(&name(), options).unwrap().to_string();
    let remote = Arc::new(MemRemote::new());
    remote.put_file(&format!("{stage}/one"), "content");
    remote.set_mtime(&format!("{stage}/one"), CHANGED as i64);
    remote.put_file(&format!("{stage}/sub/two"), "more");
    remote.put_file(&format!("{stage}/other"), "");
    let number = stage.rsplit('-').next().unwrap();
    (remote, answers(&format!("staged-{tar} stage={number}")))
}

fn assert_is_whole(remote: &MemRemote) {
    assert_eq!(remote.content("tree/one"), b"content");
    assert_eq!(remote.content("tree/sub/two"), b"more content");
    assert!(!remote.exists("tree/other"));
}

#[tokio::test]
async fn a_stage_is_completed_and_gets_its_name() {
    let source = tree();
    for tar in ["gnu", "bsd", "none"] {
        let (remote, shell) = staged(tar);
        let server = Server::new(remote.clone(), shell);
        let copied = run_well(push(source.path()), &server).await;
        assert_is_whole(&remote);
        assert_eq!(remote.names(""), ["tree"], "{tar}");
        assert_eq!((copied.engines, copied.outcome.counts.deleted), (vec!["sftp"], 1));
    }
}

/// Under the tree's own name there is nothing, or all of it; and a further copy completes it.
async fn sweep(fault: impl Fn(&FaultyRemote<MemRemote>, u64)) {
    let source = tree();
    for nth in 1.. {
        assert!(nth < 200, "the sweep does not end");
        let (remote, shell) = staged("gnu");
        let faulty = Arc::new(FaultyRemote::new(remote.clone()));
        fault(&faulty, nth);
        let server = Server::new(faulty.clone(), shell);
        let copied = run(push(source.path()), &server).await;
        let is_hit = faulty.not_reached() == 0;
        if remote.exists("tree") {
            assert_is_whole(&remote);
        }
        if copied.is_ok_and(|copied| copied.outcome.is_complete()) {
            assert_is_whole(&remote);
        }
        assert_eq!(remote.open_handles(), 0, "call {nth}");
        faulty.clear();
        // The shell finds what is there now.
        let stages = remote.names("").into_iter().find(|name| name.contains(".sshoal-new-"));
        let shell = match (remote.exists("tree"), stages) {
            (true, _) => answers("there"),
            (false, Some(stage)) => {
                answers(&format!("staged-gnu stage={}", stage.rsplit('-').next().unwrap()))
            }
            (false, None) => None,
        };
        run_well(push(source.path()), &Server::new(remote.clone(), shell)).await;
        assert_is_whole(&remote);
        if !is_hit {
            assert!(nth > 10, "only {nth} calls");
            return;
        }
    }
}

#[tokio::test]
async fn any_call_may_fail_while_a_stage_is_completed() {
    sweep(|faulty, nth| faulty.fail(Which::Any, nth, Errno::EIO)).await;
}

#[tokio::test]
async fn any_answer_may_be_lost_while_a_stage_is_completed() {
    sweep(|faulty, nth| faulty.fail_after(Which::Any, nth, Errno::EHOSTDOWN)).await;
}

#[tokio::test]
async fn a_stage_that_another_copy_has_completed_is_compared() {
    let source = tree();
    let (remote, shell) = staged("gnu");
    let stage = remote.names("").pop().unwrap();
    remote.move_to(&stage, "tree");
    let copied = run_well(push(source.path()), &Server::new(remote.clone(), shell)).await;
    assert_eq!(remote.content("tree/sub/two"), b"more content");
    // It is no longer this copy's, so nothing in it is deleted.
    assert!(remote.exists("tree/other"));
    assert_eq!(copied.outcome.counts.deleted, 0);
}

/// The other copy gives its own tree the name while this one completes the stage.
#[tokio::test]
async fn a_name_that_another_copy_takes_meanwhile_is_left_to_it() {
    let source = tree();
    let (remote, shell) = staged("gnu");
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    // To the stage of this copy, and after the file that was not whole, to the name.
    let gate = faulty.hold(Call::Rename, 3);
    let server = Server::new(faulty, shell);
    let (copied, ()) = tokio::join!(run_well(push(source.path()), &server), async {
        gate.arrived().await;
        remote.put_file("tree/one", "content");
        remote.put_file("tree/kept", "theirs");
        gate.release();
    });
    assert_eq!(remote.content("tree/sub/two"), b"more content");
    assert_eq!(remote.content("tree/kept"), b"theirs");
    assert_eq!(copied.outcome.counts.failed, 0);
}

#[tokio::test]
async fn a_stage_of_other_options_is_removed() {
    let (source, target) = (tree(), tempfile::tempdir().unwrap());
    let other = Options { owners: Owners::Numbers, ..Options::default() };
    let stage = target.path().join(stage(&name(), &other).unwrap().to_string());
    std::fs::create_dir(&stage).unwrap();
    std::fs::write(stage.join("one"), "of another copy").unwrap();
    let server =
        Server::new(Arc::new(Local::open(target.path()).unwrap()), Some(LocalShell::plain()));
    let local = source.path().join("tree");
    let to = (target.path(), None);
    run_well(request(Direction::Push, &local, to, Options::default()), &server).await;
    assert!(!stage.exists());
    assert_eq!(std::fs::read(target.path().join("tree/one")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_stage_keeps_its_name_if_a_file_in_it_fails() {
    let source = tree();
    let (remote, shell) = staged("gnu");
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    faulty.fail_always(Call::Write, Errno::EACCES);
    let copied = run(push(source.path()), &Server::new(faulty, shell)).await.unwrap();
    let [unnamed, write] = &copied.outcome.problems[..] else { panic!("{copied:#?}") };
    assert_eq!((&write.name, copied.outcome.problems_total), (&path("tree/sub/two"), 2));
    // Neither deleted nor named: what is left out may be of a run that fails.
    assert!(!remote.exists("tree"));
    let stage = path(&remote.names("")[0]);
    assert_eq!(*unnamed, Fault::Unnamed { stage }.of(&path("tree")));
    // The user has not asked for any deletion.
    assert_eq!(copied.outcome.deletions_withheld, 0);
}

#[tokio::test]
async fn nothing_is_deleted_in_another_source_if_a_stage_is_not_whole() {
    let source = tree();
    std::fs::create_dir(source.path().join("second")).unwrap();
    let (remote, shell) = staged("gnu");
    remote.put_file("second/surplus", "");
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    faulty.fail_always(Call::Write, Errno::EACCES);
    let options = Options { delete: true, ..Options::default() };
    let mut request = push_with(source.path(), options);
    request.local.push(LocalOperand::of(source.path().join("second").as_os_str()));
    let copied = run(request, &Server::new(faulty, shell)).await.unwrap();
    assert!(remote.exists("second/surplus"));
    assert_eq!(copied.outcome.deletions_withheld, 1, "{copied:#?}");
}

/// As an interruption while the rest of the file is sent over SFTP.
#[tokio::test]
async fn a_large_file_is_continued_after_its_stream_and_its_completion_have_ended() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (programs, content) = (tempfile::tempdir().unwrap(), large_content());
    std::fs::write(source.path().join("large"), &content).unwrap();
    let remote = Arc::new(FaultyRemote::new(Arc::new(Local::open(target.path()).unwrap())));
    remote.set_write_verifier("a run of this machine");
    let push = || {
        let to = (target.path(), Some("large"));
        request(Direction::Push, &source.path().join("large"), to, Options::default())
    };
    let shell = LocalShell::with_tar(programs.path(), "head -c 10485760 | $real \"$@\"");
    let gate = remote.hold(Call::Write, 1);
    stopped_at(push(), &Server::new(remote.clone(), Some(shell)), &gate).await;
    gate.release();
    let server = Server::new(remote, Some(LocalShell::plain()));
    let copied = run_well(push(), &server).await;
    assert!(copied.outcome.counts.bytes_resumed > 8 << 20, "{copied:#?}");
    assert!(std::fs::read(target.path().join("large")).unwrap() == content);
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
}

/// What is left of a small file is not worth a check.
#[tokio::test]
async fn a_stage_that_is_a_file_does_not_stay() {
    let source = tree();
    let name = Name::new(b"one").unwrap();
    let stage = stage(&name, &Options::default()).unwrap().to_string();
    let remote = Arc::new(MemRemote::new());
    remote.put_file(&stage, "cont");
    let shell = answers(&format!("staged-gnu stage={}", stage.rsplit('-').next().unwrap()));
    let file = source.path().join("tree/one");
    let request = request(Direction::Push, &file, (Path::new(""), None), Options::default());
    run_well(request, &Server::new(remote.clone(), shell)).await;
    assert_eq!(
        (remote.content("one"), remote.names("")),
        (b"content".to_vec(), vec!["one".into()])
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_does_not_delay_the_end_while_a_stage_is_completed() {
    let source = tree();
    // To the stage of this copy, and to the name.
    for nth in [1, 3] {
        let (remote, shell) = staged("gnu");
        let faulty = Arc::new(FaultyRemote::new(remote));
        let gate = faulty.hold(Call::Rename, nth);
        stopped_at(push(source.path()), &Server::new(faulty, shell), &gate).await;
    }
}

/// Their content is complete.
#[tokio::test]
async fn entries_whose_attributes_are_refused_stay_in_a_stage() {
    for marked in ["sub/two", "sub"] {
        let source = tree();
        let flags = rustix::fs::XattrFlags::empty();
        let place = source.path().join("tree").join(marked);
        rustix::fs::setxattr(place, "user.note", b"x", flags).unwrap();
        let options = Options { xattrs: Xattrs::Users, ..Options::default() };
        let (remote, shell) = staged_with("gnu", &options);
        let stage = remote.names("").pop().unwrap();
        // Nothing has to be deleted.
        remote.remove(&format!("{stage}/other"));
        remote.set_mtime(&format!("{stage}/sub"), 5);
        let faulty = Arc::new(FaultyRemote::new(remote.clone()));
        faulty.fail_always(Call::Setxattr, Errno::EOPNOTSUPP);
        let request = push_with(source.path(), options);
        let copied = run(request, &Server::new(faulty, shell)).await.unwrap();
        let name = path(&format!("tree/{marked}"));
        assert_eq!(copied.outcome.problems, [Fault::RefusedXattrs { count: 1 }.of(&name)]);
        assert_is_whole(&remote);
    }
}

/// As a stage on a network file system. Nothing is mounted in it.
#[tokio::test]
async fn a_stage_is_completed_where_file_systems_are_not_known() {
    let source = tree();
    let options = Options { one_file_system: true, delete: true, ..Options::default() };
    let (remote, shell) = staged_with("gnu", &options);
    remote.set_mount("", 0);
    run_well(push_with(source.path(), options), &Server::new(remote.clone(), shell)).await;
    assert_is_whole(&remote);
}

/// As on a full disk.
#[tokio::test]
async fn what_has_not_arrived_is_not_counted_and_is_named_as_the_user_names_it() {
    let source = tree();
    let (target, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tar = "$real \"$@\"; rm -f .tree.sshoal-new-*/sub/two; exit 2";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let remote = Arc::new(Local::open(target.path()).unwrap());
    let faulty = Arc::new(FaultyRemote::new(remote));
    faulty.fail_always(Call::Write, Errno::ENOSPC);
    let request = request(
        Direction::Push,
        &source.path().join("tree"),
        (target.path(), None),
        Options::default(),
    );
    let copied = run(request, &Server::new(faulty, Some(shell))).await.unwrap();
    let counts = copied.outcome.counts;
    assert_eq!((counts.files_copied, counts.bytes_copied, counts.failed), (1, 7, 1), "{copied:#?}");
    let problems: Vec<_> = copied.outcome.problems.iter().map(|it| it.to_string()).collect();
    assert!(problems[0].starts_with("tree/sub/two: cannot write: No space left"), "{problems:?}");
}
