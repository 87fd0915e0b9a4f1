//! Streams that deliver something else than the source has, under its size and time: a tar that
//! cannot read a file to its end fills it with zeros, and two names may be one at the target. Such
//! a file is copied again, or reported.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Errno;
use local::Local;
use testkit::{Call, FaultyRemote, path};
use transfer::strategy::{Copied, Direction};
use transfer::tar::Streamed;
use transfer::unseen::ShellFind;
use transfer::{Fault, Options, Problem, Tree, Xattrs};

use super::by_name;
use super::plain::plain;
use super::round_trip::push_of;
use super::shell::{LocalShell, streaming};
use super::strategy::{Server, request, run, run_well};

const BYTES: usize = 300_000;

fn aged(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn old() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_500_000_000)
}

/// Two directories `tree` with the same names, sizes and times: that of the source, and what its
/// tar sends of it. Of `good` all is sent, of `bad` the beginning, and of `torn` another version.
fn trees() -> (tempfile::TempDir, tempfile::TempDir) {
    let (from, sent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let now = SystemTime::now();
    for dir in [&from, &sent] {
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("good"), [vec![1; BYTES], vec![0; 9]].concat()).unwrap();
        fs::write(tree.join("bad"), vec![2; BYTES]).unwrap();
        fs::write(tree.join("torn"), vec![3; BYTES]).unwrap();
    }
    let sent_tree = sent.path().join("tree");
    fs::write(sent_tree.join("bad"), [vec![2; BYTES / 2], vec![0; BYTES / 2]].concat()).unwrap();
    fs::write(sent_tree.join("torn"), [vec![4; BYTES / 2], vec![3; BYTES / 2]].concat()).unwrap();
    for dir in [&from, &sent] {
        for (name, time) in [("good", old()), ("bad", old()), ("torn", now)] {
            aged(&dir.path().join("tree").join(name), time);
        }
    }
    (from, sent)
}

/// A tar that sends what is in `sent` instead, with `end` behind it.
fn sending(programs: &Path, sent: &Path, end: &str) -> Arc<LocalShell> {
    LocalShell::with_tar(programs, &format!("cd {} && $real \"$@\" {end}", sent.display()))
}

fn assert_same(from: &Path, to: &Path, how: &str) {
    for name in ["good", "bad", "torn"] {
        let (one, other) = (from.join("tree").join(name), to.join("tree").join(name));
        assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap(), "{name} {how}");
        let time = |path: &Path| fs::metadata(path).unwrap().mtime();
        assert_eq!(time(&one), time(&other), "{name} {how}");
    }
}

async fn pull(from: &Path, to: &Path, server: &Arc<Server>, options: &Options) -> Copied {
    let request = request(Direction::Pull, to, (from, Some("tree")), options.clone());
    run(request, server).await.unwrap()
}

#[tokio::test]
async fn a_tree_whose_tar_has_failed_is_compared_by_its_content_where_that_is_in_doubt() {
    for end in ["; exit 2", "; exit 1", "| head -c 904000; exit 0"] {
        let (from, sent) = trees();
        let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let shell = sending(programs.path(), sent.path(), end);
        let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), Some(shell));
        let copied = pull(from.path(), to.path(), &server, &Options::default()).await;
        assert!(copied.outcome.is_complete(), "{copied:#?}");
        assert_eq!(copied.engines, ["tar", "sftp"], "{end}");
        assert_same(from.path(), to.path(), end);
    }
}

/// The source cannot be read over SFTP either.
#[tokio::test]
async fn a_file_that_cannot_be_read_is_reported_by_each_run() {
    let (from, sent) = trees();
    let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shell = sending(programs.path(), sent.path(), "; exit 2");
    let faulty = Arc::new(FaultyRemote::new(Arc::new(Local::open(from.path()).unwrap())));
    faulty.fail_always(Call::Read, Errno::EIO);
    let server = Server::new(faulty, Some(shell));
    for _ in 0..2 {
        // `torn` is one of them.
        let copied = pull(from.path(), to.path(), &server, &Options::default()).await;
        let problems: Vec<_> = copied.outcome.problems.iter().map(|it| it.to_string()).collect();
        assert!(problems.iter().any(|it| it.starts_with("tree/bad: ")), "{problems:?}");
        assert_ne!(fs::metadata(to.path().join("tree/bad")).unwrap().mtime(), 1_500_000_000);
    }
}

#[tokio::test]
async fn a_run_that_is_ended_within_a_stream_leaves_nothing_that_the_next_one_trusts() {
    let (from, sent) = trees();
    let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // All is there, and the end does not come.
    let ready = programs.path().join("ready");
    let end = format!("; exec >/dev/null; touch {}; exec sleep 60", ready.display());
    let shell = sending(programs.path(), sent.path(), &end);
    let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), Some(shell));
    let options = Options::default();
    tokio::select! {
        copied = pull(from.path(), to.path(), &server, &options) => panic!("{copied:?}"),
        () = async {
            while !ready.exists() || !to.path().join("tree/torn").exists() {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), None);
    let request = request(Direction::Pull, to.path(), (from.path(), Some("tree")), options);
    run_well(request, &server).await;
    assert_same(from.path(), to.path(), "after the next run");
}

#[tokio::test]
async fn files_by_name_whose_tar_has_failed_are_compared_by_their_content_where_that_is_in_doubt() {
    let with = |hard_links, xattrs| Options { hard_links, xattrs, ..Options::default() };
    for options in [with(false, Xattrs::None), with(true, Xattrs::None)] {
        let (from, sent) = trees();
        let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let shell = sending(programs.path(), sent.path(), "; exit 2");
        let (outcome, entries) = by_name::copy(from.path(), to.path(), shell, &options).await;
        // What came in another way is not known to have other names.
        assert_eq!((&outcome.problems[..], outcome.links_unknown), (&[][..], options.hard_links));
        assert_eq!((outcome.counts.files_copied, entries), (3, 3));
        assert_same(from.path(), to.path(), "by name");
    }
    // What only a stream carries is not copied in another way.
    let (from, sent) = trees();
    let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shell = sending(programs.path(), sent.path(), "; exit 2");
    let source = Tree::remote(plain(from.path()).await);
    let options = with(false, Xattrs::Users);
    let (outcome, _) = by_name::copy_of(source, from.path(), to.path(), shell, &options).await;
    let mut problems: Vec<_> = outcome.problems.iter().map(|it| it.name.to_string()).collect();
    problems.sort();
    assert_eq!(problems, ["tree/bad", "tree/torn"], "{outcome:#?}");
}

#[tokio::test]
async fn files_in_doubt_have_their_times_when_tar_has_succeeded() {
    let (from, _) = trees();
    for is_tree in [true, false] {
        let to = tempfile::tempdir().unwrap();
        if is_tree {
            let remote = Arc::new(Local::open(from.path()).unwrap());
            let server = Server::new(remote, Some(LocalShell::plain()));
            let copied = pull(from.path(), to.path(), &server, &Options::default()).await;
            assert_eq!(copied.engines, ["tar"], "{copied:#?}");
        } else {
            let shell = LocalShell::plain();
            let options = Options::default();
            let (outcome, entries) = by_name::copy(from.path(), to.path(), shell, &options).await;
            assert!(outcome.is_complete() && entries == 3, "{outcome:#?}");
        }
        assert_same(from.path(), to.path(), "after success");
    }
}

/// libarchive's tar succeeds also if a file shrank or changed while it was read. The server's clock,
/// which sets the times of such files, may be behind.
#[tokio::test]
async fn a_file_that_changed_under_libarchives_tar_is_copied_again() {
    for (is_tree, behind_secs) in [(true, 0), (false, 0), (true, 3600), (false, 3600)] {
        let (from, sent) = trees();
        let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let clock = SystemTime::now() - Duration::from_secs(behind_secs);
        for dir in [&from, &sent] {
            aged(&dir.path().join("tree/torn"), clock);
        }
        let clock = clock.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let date = format!("#!/bin/sh\necho {clock}\n");
        sandbox::write_program(programs.path().join("date"), date).unwrap();
        let (source, sent) = (from.path().display(), sent.path().display());
        let tar = format!("cd {sent} && $real \"$@\" && printf short >{source}/tree/bad");
        let Some(shell) = LocalShell::with_bsdtar(programs.path(), &tar) else { return };
        if is_tree {
            let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), Some(shell));
            let copied = pull(from.path(), to.path(), &server, &Options::default()).await;
            assert!(copied.outcome.is_complete(), "{copied:#?}");
            assert_eq!(copied.engines, ["tar", "sftp"]);
        } else {
            let options = Options::default();
            let (outcome, entries) = by_name::copy(from.path(), to.path(), shell, &options).await;
            assert!(outcome.is_complete(), "{outcome:#?}");
            assert_eq!((outcome.counts.files_copied, entries), (3, 3));
        }
        assert_same(from.path(), to.path(), "after libarchive's tar");
    }
}

/// A run compares no extended attributes, so the stream reports them itself.
#[tokio::test]
async fn extended_attributes_that_are_refused_here_are_a_problem() {
    let (from, _) = trees();
    let (to, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tar = "exec $real --pax-option='SCHILY.xattr.unknown.name:=value' \"$@\"";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), Some(shell));
    let options = Options { xattrs: Xattrs::All, ..Options::default() };
    let copied = pull(from.path(), to.path(), &server, &options).await;
    // tar sends them of what has times within a second.
    let problems: Vec<_> = copied.outcome.problems.iter().map(|it| it.to_string()).collect();
    assert!(!problems.is_empty() && !copied.outcome.is_complete(), "{copied:#?}");
    let words = ": 1 extended attributes were refused by the file system of the target";
    assert!(problems.iter().all(|it| it.ends_with(words)), "{problems:?}");
    assert_same(from.path(), to.path(), "with attributes");
}

/// A source shrinks while it is packed, and has its size and time again when it is compared.
#[tokio::test]
async fn a_pushed_file_that_shrinks_while_it_is_read_is_copied_again() {
    for tar in ["/bin/tar", "/usr/bin/bsdtar"] {
        if !Path::new(tar).exists() {
            continue;
        }
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let programs = tempfile::tempdir().unwrap();
        let tree = from.path().join("tree");
        fs::create_dir(&tree).unwrap();
        // More than pipe and buffer hold.
        let content = vec![7; 8 << 20];
        fs::write(tree.join("large"), &content).unwrap();
        fs::write(tree.join("small"), "small").unwrap();
        aged(&tree.join("large"), old());
        let saved = from.path().join("saved");
        fs::copy(tree.join("large"), &saved).unwrap();
        aged(&saved, old());
        let large = tree.join("large");
        let (large, saved) = (large.display(), saved.display());
        // Truncated when it is being read: before that, the copy would be one of what it is then.
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && exec {tar} --version\n\
             dd bs=64k count=4 iflag=fullblock status=none >{saved}.begun\n\
             truncate -s 100000 {large}; cat {saved}.begun - | {tar} \"$@\"; t=$?\n\
             cp -p {saved} {large}; exit $t\n"
        );
        let fake = programs.path().join("tar");
        sandbox::write_program(&fake, script).unwrap();
        let shell =
            LocalShell { programs: Some(programs.path().to_owned()), instead: None, umask: None };
        let remote = Arc::new(Local::open(to.path()).unwrap());
        let server = Server::new(remote, Some(Arc::new(shell)));
        let request = request(Direction::Push, &tree, (to.path(), None), Options::default());
        let copied = run_well(request, &server).await;
        assert!(copied.engines.contains(&"tar"), "{copied:#?}");
        assert!(fs::read(to.path().join("tree/large")).unwrap() == content, "{tar}");
        let time = fs::metadata(to.path().join("tree/large")).unwrap().mtime();
        assert_eq!((time, fs::read_dir(to.path()).unwrap().count()), (1_500_000_000, 1), "{tar}");
    }
}

/// A tree of two names that some file systems take for one, with one size and time.
fn alike() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    for (name, content) in [("Name", "one"), ("name", "two")] {
        fs::write(dir.path().join("tree").join(name), content).unwrap();
        aged(&dir.path().join("tree").join(name), old());
    }
    dir
}

#[tokio::test]
async fn a_pulled_file_replaces_none_that_has_just_come() {
    let (from, to) = (alike(), tempfile::tempdir().unwrap());
    let programs = tempfile::tempdir().unwrap();
    // As this machine sees it, if it takes both names for one.
    let shell = LocalShell::with_tar(
        programs.path(),
        "exec $real --sort=name --transform 's,/name$,/Name,' \"$@\"",
    );
    let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), Some(shell));
    let copied = pull(from.path(), to.path(), &server, &Options::default()).await;
    assert!(copied.outcome.is_complete(), "{copied:#?}");
    assert_eq!(copied.engines, ["tar", "sftp"]);
    for (name, content) in [("Name", "one"), ("name", "two")] {
        assert_eq!(fs::read_to_string(to.path().join("tree").join(name)).unwrap(), content);
    }
}

#[tokio::test]
async fn a_pulled_hard_link_replaces_no_file_that_has_just_come() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = from.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "one").unwrap();
    fs::write(tree.join("x"), "two").unwrap();
    fs::hard_link(tree.join("x"), tree.join("y")).unwrap();
    let programs = tempfile::tempdir().unwrap();
    // As this machine sees it, if it takes `a` and `y` for one name.
    let tar = "exec $real --sort=name --transform 's,/y$,/a,' \"$@\"";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let server = Server::new(Arc::new(Local::open(from.path()).unwrap()), Some(shell));
    let options = Options { hard_links: true, ..Options::default() };
    let copied = pull(from.path(), to.path(), &server, &options).await;
    assert!(copied.outcome.is_complete(), "{copied:#?}");
    for (name, content) in [("a", "one"), ("x", "two"), ("y", "two")] {
        assert_eq!(fs::read_to_string(to.path().join("tree").join(name)).unwrap(), content);
    }
}

#[tokio::test]
async fn a_pushed_tree_of_such_names_is_compared_where_the_server_does_not_distinguish_them() {
    let from = alike();
    fs::create_dir(from.path().join("other")).unwrap();
    let programs = tempfile::tempdir().unwrap();
    // The mark is found under its other name.
    let script = "$real \"$@\"; for m in .*.end; do cp -p \"$m\" \"${m%end}END\"; done; exit 0";
    let folding = LocalShell::with_tar(programs.path(), script);
    let runs = [
        ("tree", &folding, true),
        ("other", &folding, false),
        ("tree", &LocalShell::plain(), false),
    ];
    for (name, shell, is_kept) in runs {
        let to = tempfile::tempdir().unwrap();
        let push = push_of(&from.path().join(name), to.path(), name);
        let streamed = streaming(shell.clone(), Options::default()).push(&push).await.unwrap();
        match streamed {
            Streamed::Partly(done) => assert!(is_kept && done.stage.is_some(), "{name}: {done:?}"),
            other => assert!(!is_kept && matches!(other, Streamed::Whole(_)), "{name}: {other:?}"),
        }
        assert_eq!(to.path().join(name).exists(), !is_kept);
    }
}

/// Its content is there, and is in doubt as that of any other file.
#[tokio::test]
async fn a_file_by_name_whose_attributes_are_refused_is_checked_and_gets_its_further_names() {
    for end in ["exit 0", "exit 2"] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, two) = (from.path().join("one"), from.path().join("two"));
        fs::write(&one, "content\0").unwrap();
        // tar sends attributes of what has times within a second.
        aged(&one, old() + Duration::from_millis(500));
        fs::hard_link(&one, &two).unwrap();
        let programs = tempfile::tempdir().unwrap();
        let tar = format!("$real --pax-option='SCHILY.xattr.unknown.name:=value' \"$@\"; {end}");
        let shell = LocalShell::with_tar(programs.path(), &tar);
        let mut source = Tree::remote(plain(from.path()).await);
        let root = from.path().to_str().unwrap().as_bytes().to_vec();
        source.unseen = Some(Arc::new(ShellFind::new(LocalShell::plain(), root, false)));
        let options = Options { hard_links: true, xattrs: Xattrs::All, ..Options::default() };
        let (outcome, _) = by_name::copy_of(source, from.path(), to.path(), shell, &options).await;
        let is_refusal = |it: &Problem| matches!(it.fault, Fault::RefusedXattrs { .. });
        assert!(outcome.problems.iter().all(is_refusal), "{outcome:#?}");
        assert!(outcome.problems.iter().any(|it| it.name == path("one")), "{outcome:#?}");
        let [one, two] = ["one", "two"].map(|name| fs::metadata(to.path().join(name)).unwrap());
        assert_eq!((one.mtime(), one.ino()), (1_500_000_000, two.ino()), "{end}");
    }
}

#[tokio::test]
async fn a_file_by_name_that_is_copied_again_has_one_problem_at_most() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let programs = tempfile::tempdir().unwrap();
    let tar = "$real --pax-option='SCHILY.xattr.unknown.name:=value' \"$@\"; \
        echo something new > file; exit 1";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let options = Options { xattrs: Xattrs::All, ..Options::default() };
    let here = Tree::remote(Arc::new(local::Local::open(from.path()).unwrap()));
    // Only for one of them the run copies what the stream has not.
    for (source, problems) in [(Tree::remote(plain(from.path()).await), 1), (here, 0)] {
        fs::write(from.path().join("file"), "content").unwrap();
        aged(&from.path().join("file"), old() + Duration::from_millis(500));
        let copy = by_name::copy_of(source, from.path(), to.path(), shell.clone(), &options);
        let (outcome, _) = copy.await;
        assert_eq!(outcome.problems.len(), problems, "{outcome:#?}");
        assert_eq!(
            (outcome.problems_total, outcome.counts.failed),
            (problems as u64, problems as u64)
        );
        fs::remove_file(to.path().join("file")).unwrap();
    }
}
