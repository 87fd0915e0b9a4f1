//! What a run needs comes by names, in a stream; what the stream does not bring, by the run.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::RemotePath;
use local::Local;
use transfer::tar::Declined;
use transfer::tar::by_name::{ByName, StreamsByName};
use transfer::unseen::ShellFind;
use transfer::{
    Job, Options, Outcome, Owners, Progress, Run, Silent, Source, Tree, Xattrs, engine,
};

use super::archive::{CHAR, DIR, FILE, HARD, LINK, Member, archive};
use super::plain::plain as plain_sftp;
use super::shell::{LocalShell, streaming};
use super::trees::{kept, make};

fn job(from: &Path, to: &Path, options: &Options) -> Job {
    let tree = |dir: &Path| Arc::new(Local::open(dir).unwrap());
    let source = Source { tree: Tree::remote(tree(from)), to: RemotePath::root() };
    Job { sources: vec![source], target: Tree::local(tree(to), to), options: options.clone() }
}

fn by_name(from: &Path, shell: Arc<LocalShell>, options: &Options, auto: bool) -> StreamsByName {
    use std::os::unix::ffi::OsStrExt;
    let mut streaming = streaming(shell, options.clone());
    streaming.only_if_fast = auto;
    let directory = from.as_os_str().as_bytes().to_vec();
    StreamsByName::pull(vec![Some(ByName { streaming, directory, name: None })])
}

/// Copies what is in `from` into `to`, by a stream where that can.
pub async fn copy(
    from: &Path,
    to: &Path,
    shell: Arc<LocalShell>,
    options: &Options,
) -> (Outcome, u64) {
    let source = Tree::remote(Arc::new(Local::open(from).unwrap()));
    copy_of(source, from, to, shell, options).await
}

/// As [`copy`], where the server shows `from` as this tree.
pub async fn copy_of(
    source: Tree,
    from: &Path,
    to: &Path,
    shell: Arc<LocalShell>,
    options: &Options,
) -> (Outcome, u64) {
    let mut by_name = by_name(from, shell, options, false);
    let sources = vec![Source { tree: source, to: RemotePath::root() }];
    let job = Job { sources, ..job(from, to, options) };
    let run = Run::start(job, Arc::new(Silent)).await.unwrap();
    let progress = run.progress();
    let outcome = engine::drive(run, &mut by_name).await;
    assert_eq!(outcome.counts.ended(), outcome.counts.entries, "{outcome:#?}");
    assert_no_more_than_planned(&progress);
    assert_eq!(progress.files_done.load(Relaxed), progress.files_planned.load(Relaxed));
    (outcome, by_name.entries())
}

/// Also of what was copied again.
fn assert_no_more_than_planned(progress: &Progress) {
    let (done, planned) = (progress.bytes_done.load(Relaxed), progress.bytes_planned.load(Relaxed));
    assert!(done <= planned, "{done} of {planned} bytes");
}

fn plain() -> Options {
    Options { owners: Owners::Numbers, ..Options::default() }
}

/// Two directories, the first with a bit of everything.
pub fn places() -> (tempfile::TempDir, tempfile::TempDir) {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(from.path());
    for odd in ["-C", "--null", "a\\nb", "\\101", "*", "a b", " ", "new\nline", "'"] {
        fs::write(from.path().join("sub").join(odd), odd).unwrap();
    }
    (from, to)
}

/// What both have that a run over SFTP keeps, too: times of directories to the second.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (kept(one), kept(other));
    let names = |tree: &std::collections::BTreeMap<Vec<u8>, _>| {
        tree.keys().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&one), names(&other));
    for (name, kept) in &one {
        assert!(kept.is_like(&other[name]), "{}: {kept:?}", name.escape_ascii());
    }
}

fn files(dir: &Path) -> u64 {
    kept(dir).values().filter(|kept| !kept.is_dir()).count() as u64
}

#[tokio::test]
async fn what_is_missing_in_a_place_comes_in_a_stream() {
    let (from, to) = places();
    let (outcome, entries) = copy(from.path(), to.path(), LocalShell::plain(), &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_same(from.path(), to.path());
    assert_eq!(entries, files(from.path()));
    // Some are gone, one is another.
    fs::remove_file(to.path().join("a")).unwrap();
    fs::remove_dir_all(to.path().join("sub/deep")).unwrap();
    fs::write(to.path().join("sub/b"), "changed").unwrap();
    let gone = files(&from.path().join("sub/deep"));
    let (outcome, entries) = copy(from.path(), to.path(), LocalShell::plain(), &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_same(from.path(), to.path());
    assert_eq!(entries, gone + 2);
    assert_eq!(outcome.counts.files_copied + outcome.counts.links_made, gone + 2);
    let (outcome, entries) = copy(from.path(), to.path(), LocalShell::plain(), &plain()).await;
    assert_eq!((outcome.counts.unchanged, entries), (outcome.counts.entries, 0));
}

#[tokio::test]
async fn libarchives_tar_takes_names_too() {
    let programs = tempfile::tempdir().unwrap();
    if !Path::new("/usr/bin/bsdtar").exists() {
        return;
    }
    std::os::unix::fs::symlink("/usr/bin/bsdtar", programs.path().join("tar")).unwrap();
    let shell = Arc::new(LocalShell {
        programs: Some(programs.path().to_owned()),
        instead: None,
        umask: None,
    });
    let (from, to) = places();
    let (outcome, entries) = copy(from.path(), to.path(), shell.clone(), &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_same(from.path(), to.path());
    assert_eq!(entries, files(from.path()));
}

#[tokio::test]
async fn patterns_decide_what_is_asked_for() {
    let (from, to) = places();
    let mut filter = transfer::Filter::builder();
    filter.exclude("deep/").exclude("/a");
    let options = Options { filter: filter.build().unwrap(), ..plain() };
    let (outcome, entries) = copy(from.path(), to.path(), LocalShell::plain(), &options).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    fs::remove_dir_all(from.path().join("sub/deep")).unwrap();
    fs::remove_file(from.path().join("a")).unwrap();
    let names = |dir: &Path| kept(dir).into_keys().collect::<Vec<_>>();
    assert_eq!(names(from.path()), names(to.path()));
    assert_eq!(entries, files(from.path()));
}

#[tokio::test]
async fn only_many_small_files_are_worth_a_stream_that_is_not_asked_for() {
    for (count, is_worth) in [(100, false), (2000, true)] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for number in 0..count {
            fs::write(from.path().join(format!("{number}")), format!("{number}")).unwrap();
        }
        fs::write(from.path().join("large"), vec![1; 3 << 20]).unwrap();
        let options = plain();
        let mut by_name = by_name(from.path(), LocalShell::plain(), &options, true);
        // It is there when the first file comes.
        if is_worth {
            by_name.call().await.unwrap();
        }
        let run = Run::start(job(from.path(), to.path(), &options), Arc::new(Silent));
        let outcome = engine::drive(run.await.unwrap(), &mut by_name).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(kept(from.path()).len(), kept(to.path()).len());
        assert_eq!(by_name.entries(), if is_worth { count } else { 0 });
    }
}

#[tokio::test]
async fn names_of_one_file_and_pipes_come_too() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("one"), "content").unwrap();
    fs::hard_link(from.path().join("one"), from.path().join("d/two")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(from.path().join("pipe")).status();
    assert!(pipe.unwrap().success());
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let made = std::process::Command::new("mknod")
            .arg(from.path().join("null"))
            .args(["c", "1", "3"])
            .status();
        assert!(made.unwrap().success());
    }
    let options = Options { hard_links: true, specials: true, ..plain() };
    let (outcome, _) = copy(from.path(), to.path(), LocalShell::plain(), &options).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    let number = |name| fs::metadata(to.path().join(name)).unwrap().ino();
    assert_eq!(number("one"), number("d/two"));
    assert_eq!(
        (outcome.counts.files_copied, outcome.counts.names_made),
        (2 + u64::from(is_root), 1)
    );
    assert!(fs::symlink_metadata(to.path().join("pipe")).unwrap().file_type().is_fifo());
    if is_root {
        let device = |dir: &Path| fs::symlink_metadata(dir.join("null")).unwrap().rdev();
        assert_eq!(device(from.path()), device(to.path()));
    }
    let (outcome, _) = copy(from.path(), to.path(), LocalShell::plain(), &options).await;
    assert_eq!(outcome.counts.unchanged, outcome.counts.entries, "{outcome:#?}");
}

#[tokio::test]
async fn a_server_without_tar_costs_nothing_but_the_stream() {
    let (from, to) = places();
    let shell = LocalShell::instead("echo no >&2; exit 1");
    let mut by_name = by_name(from.path(), shell, &plain(), false);
    let run = Run::start(job(from.path(), to.path(), &plain()), Arc::new(Silent)).await.unwrap();
    let outcome = engine::drive(run, &mut by_name).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(by_name.declined(), Some(&Declined::NoShell("no".to_owned())));
    assert_eq!(by_name.entries(), 0);
}

/// Copies what is in `from` into `to`, which is on the other side now.
pub async fn push(
    from: &Path,
    to: &Path,
    shell: Arc<LocalShell>,
    options: &Options,
) -> (Outcome, u64) {
    use std::os::unix::ffi::OsStrExt;
    let streaming = streaming(shell, options.clone());
    let directory = to.as_os_str().as_bytes().to_vec();
    let mut by_name = StreamsByName::push(1, &ByName { streaming, directory, name: None });
    let tree = |dir: &Path| Arc::new(Local::open(dir).unwrap());
    let source = Source { tree: Tree::local(tree(from), from), to: RemotePath::root() };
    let target = Tree::remote(tree(to));
    let job = Job { sources: vec![source], target, options: options.clone() };
    let run = Run::start(job, Arc::new(Silent)).await.unwrap();
    let progress = run.progress();
    let outcome = engine::drive(run, &mut by_name).await;
    assert_no_more_than_planned(&progress);
    assert_eq!(outcome.counts.ended(), outcome.counts.entries, "{outcome:#?}");
    (outcome, by_name.entries())
}

#[track_caller]
fn assert_no_temporaries(dir: &Path) {
    for name in kept(dir).keys() {
        assert!(!name.windows(8).any(|part| part == b".sshoal-"), "{}", name.escape_ascii());
    }
}

#[tokio::test]
async fn what_is_missing_there_goes_in_a_stream() {
    for bsd in [false, true] {
        let programs = tempfile::tempdir().unwrap();
        if bsd {
            if !Path::new("/usr/bin/bsdtar").exists() {
                continue;
            }
            std::os::unix::fs::symlink("/usr/bin/bsdtar", programs.path().join("tar")).unwrap();
        }
        let programs = Some(programs.path().to_owned());
        let shell = Arc::new(LocalShell { programs, instead: None, umask: None });
        let (from, to) = places();
        fs::create_dir(to.path().join("sub")).unwrap();
        fs::write(to.path().join("sub/b"), "another").unwrap();
        let (outcome, entries) = push(from.path(), to.path(), shell.clone(), &plain()).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_same(from.path(), to.path());
        assert_eq!(entries, files(from.path()));
        let (outcome, entries) = push(from.path(), to.path(), shell, &plain()).await;
        assert_eq!((outcome.counts.unchanged, entries), (outcome.counts.entries, 0));
    }
}

#[tokio::test]
async fn names_of_one_file_and_pipes_go_too() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("one"), "content").unwrap();
    fs::hard_link(from.path().join("one"), from.path().join("two")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(from.path().join("pipe")).status();
    assert!(pipe.unwrap().success());
    let options = Options { hard_links: true, specials: true, ..plain() };
    let (outcome, _) = push(from.path(), to.path(), LocalShell::plain(), &options).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    let number = |name| fs::metadata(to.path().join(name)).unwrap().ino();
    assert_eq!(number("one"), number("two"));
    assert!(fs::symlink_metadata(to.path().join("pipe")).unwrap().file_type().is_fifo());
    assert_no_temporaries(to.path());
}

/// Whatever tar does not take, the run brings; and what tar has begun is not left.
#[tokio::test]
async fn what_a_stream_does_not_bring_there_goes_all_the_same() {
    let programs = tempfile::tempdir().unwrap();
    for tar in [
        "head -c 70000 | $real \"$@\"",
        "exit 0",
        "exit 2",
        "$real \"$@\"; exit 2",
        "head -c 70000 | $real \"$@\"; cat >/dev/null; exit 1",
        // It says that all is well, and has done nothing.
        "cat >/dev/null",
    ] {
        let (from, to) = places();
        let shell = LocalShell::with_tar(programs.path(), tar);
        let (outcome, _) = push(from.path(), to.path(), shell, &plain()).await;
        assert!(outcome.is_complete(), "{tar}: {outcome:#?}");
        assert_same_to_the_second(from.path(), to.path());
        assert_no_temporaries(to.path());
        assert_eq!(outcome.counts.files_copied + outcome.counts.links_made, files(from.path()));
    }
}

/// Neither the stream nor the run can copy the file.
#[tokio::test]
async fn a_file_that_fails_leaves_nothing_there() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = from.path().join("file");
    fs::write(&file, "content").unwrap();
    let programs = tempfile::tempdir().unwrap();
    let tar = format!(
        "$real \"$@\"; rm '{}'; for f in .*.sshoal-*; do \
         printf 'tar: ./%s: Cannot write: No space left on device\\n' \"$f\" >&2; done; \
         echo 'tar: Exiting with failure status due to previous errors' >&2; exit 2",
        file.display()
    );
    let shell = LocalShell::with_tar(programs.path(), &tar);
    let (outcome, _) = push(from.path(), to.path(), shell, &plain()).await;
    assert_eq!(outcome.counts.failed, 1, "{outcome:#?}");
    assert_no_temporaries(to.path());
}

/// GNU tar reports each file for which the disk had no room.
#[tokio::test]
async fn a_file_that_is_truncated_there_is_pushed_again_whatever_its_name() {
    for name in ["plain", "a\\x2db", "a: Cannot time stamp b"] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in [name, "other"] {
            fs::write(from.path().join(name), name).unwrap();
        }
        let programs = tempfile::tempdir().unwrap();
        let tar = "$real \"$@\"; for f in .*.sshoal-*; do case $f in .other.*) continue; esac; \
            : >\"$f\"; printf 'tar: ./%s: Wrote only 512 of 10240 bytes\\n' \"$f\" >&2; done; \
            echo 'tar: Exiting with failure status due to previous errors' >&2; exit 2";
        let shell = LocalShell::with_tar(programs.path(), tar);
        let (outcome, _) = push(from.path(), to.path(), shell, &plain()).await;
        assert!(outcome.is_complete(), "{name}: {outcome:#?}");
        assert_same_to_the_second(from.path(), to.path());
        assert_eq!(fs::read_to_string(to.path().join(name)).unwrap(), name);
    }
}

/// Whatever tar does not bring, the run does.
#[tokio::test]
async fn what_a_stream_leaves_out_comes_all_the_same() {
    let programs = tempfile::tempdir().unwrap();
    for tar in [
        // The connection breaks after some of it.
        "$real \"$@\" | head -c 70000; exit 0",
        "exit 0",
        "$real \"$@\" | head -c 1; exit 0",
        // All of it, and then something is wrong.
        "$real \"$@\"; exit 2",
        // The names end too early.
        "head -c 20 | $real \"$@\"",
        "echo this is no archive",
    ] {
        let (from, to) = places();
        let shell = LocalShell::with_tar(programs.path(), tar);
        let (outcome, _) = copy(from.path(), to.path(), shell, &plain()).await;
        assert!(outcome.is_complete(), "{tar}: {outcome:#?}");
        assert_same_to_the_second(from.path(), to.path());
        assert_eq!(outcome.counts.files_copied + outcome.counts.links_made, files(from.path()));
    }
}

#[tokio::test]
async fn hard_links_that_nothing_reports_are_noted() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("one"), "content").unwrap();
    fs::hard_link(from.path().join("one"), from.path().join("two")).unwrap();
    let options = Options { hard_links: true, ..plain() };
    let programs = tempfile::tempdir().unwrap();
    let without = LocalShell::with_tar(programs.path(), "exit 1");
    let other = "#!/bin/sh\necho 'tar (some other)'\n";
    sandbox::write_program(programs.path().join("tar"), other).unwrap();
    for (shell, is_unknown) in [(LocalShell::plain(), false), (without, true)] {
        let (outcome, _) = copy(from.path(), to.path(), shell, &options).await;
        assert_eq!(outcome.problems, []);
        assert_eq!((outcome.links_unknown, outcome.is_complete()), (is_unknown, !is_unknown));
        assert_eq!(fs::read(to.path().join("two")).unwrap(), b"content");
        let ino = |name| fs::metadata(to.path().join(name)).unwrap().ino();
        assert_eq!(ino("one") != ino("two"), is_unknown);
        for name in ["one", "two"] {
            fs::remove_file(to.path().join(name)).unwrap();
        }
    }
}

/// As after a stream that broke: one name is there.
#[tokio::test]
async fn a_name_of_a_file_that_is_there_is_linked_or_noted() {
    for finds in [true, false] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("d")).unwrap();
        fs::write(from.path().join("d/one"), "content").unwrap();
        for name in ["two", "d/three"] {
            fs::hard_link(from.path().join("d/one"), from.path().join(name)).unwrap();
        }
        let options = Options { hard_links: true, ..plain() };
        let root = from.path().to_str().unwrap().as_bytes().to_vec();
        let programs = tempfile::tempdir().unwrap();
        let shell = match finds {
            true => LocalShell::plain(),
            false => {
                let shell = LocalShell::with_tar(programs.path(), "exec $real \"$@\"");
                // As busybox's.
                let other =
                    "#!/bin/sh\ncase $* in *-printf*) exit 1; esac; exec /usr/bin/find \"$@\"\n";
                sandbox::write_program(programs.path().join("find"), other).unwrap();
                shell
            }
        };
        let mut source = Tree::remote(plain_sftp(from.path()).await);
        source.unseen = Some(Arc::new(ShellFind::new(shell.clone(), root, false)));
        let copy = || copy_of(source.clone(), from.path(), to.path(), shell.clone(), &options);
        let (outcome, _) = copy().await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        fs::remove_file(to.path().join("d/three")).unwrap();
        let (outcome, _) = copy().await;
        let ino = |name| fs::metadata(to.path().join(name)).unwrap().ino();
        assert_eq!(ino("d/one"), ino("two"));
        assert_eq!(ino("d/one") == ino("d/three"), finds);
        assert_eq!((outcome.links_unknown, outcome.is_complete()), (!finds, finds), "{outcome:#?}");
    }
}

#[track_caller]
fn assert_same_to_the_second(one: &Path, other: &Path) {
    let (one, other) = (kept(one), kept(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, kept) in &one {
        assert!(kept.is_like_to_the_second(&other[name]), "{}", name.escape_ascii());
    }
}

#[tokio::test]
async fn a_file_that_changed_under_tar_is_copied_again_and_counted_once() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["one", "two", "three"] {
        fs::write(from.path().join(name), name).unwrap();
    }
    let programs = tempfile::tempdir().unwrap();
    let tar = "$real \"$@\"; echo something new > two; exit 1";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let (outcome, entries) = copy(from.path(), to.path(), shell, &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(fs::read(to.path().join("two")).unwrap(), b"something new\n");
    assert_eq!((outcome.counts.files_copied, entries), (3, 3));
    assert_eq!(outcome.counts.bytes_copied, 3 + 14 + 5);
}

#[tokio::test]
async fn a_file_that_changed_before_tar_read_it_is_looked_at_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["one", "two", "three"] {
        fs::write(from.path().join(name), name).unwrap();
    }
    let programs = tempfile::tempdir().unwrap();
    // What tar reads is not what was listed, nor what is there in the end.
    let tar = "echo half > two; $real \"$@\"; echo something new > two; exit 0";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let (outcome, entries) = copy(from.path(), to.path(), shell, &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(fs::read(to.path().join("two")).unwrap(), b"something new\n");
    assert_eq!((outcome.counts.files_copied, entries), (3, 3));
}

#[tokio::test]
async fn a_file_that_looks_the_same_and_changed_just_now_is_copied_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["one", "two"] {
        fs::write(from.path().join(name), name).unwrap();
    }
    let programs = tempfile::tempdir().unwrap();
    let tar = "$real \"$@\"; printf owt > two; touch -r one two; exit 1";
    let shell = LocalShell::with_tar(programs.path(), tar);
    let (outcome, _) = copy(from.path(), to.path(), shell, &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(fs::read(to.path().join("two")).unwrap(), b"owt");
    assert_eq!(outcome.counts.files_copied, 2);
}

#[tokio::test]
async fn a_large_file_in_which_a_stream_breaks_leaves_nothing_beside_it() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("large"), vec![1; 12 << 20]).unwrap();
    let programs = tempfile::tempdir().unwrap();
    let shell = LocalShell::with_tar(programs.path(), "$real \"$@\" | head -c 10485760; exit 0");
    let (outcome, _) = copy(from.path(), to.path(), shell, &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_no_temporaries(to.path());
}

/// What is left of a stream by names goes with the next one.
#[tokio::test]
async fn what_an_interrupted_stream_has_left_there_is_replaced() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("f"), "content").unwrap();
    let programs = tempfile::tempdir().unwrap();
    // The first leaves what was cut off, and the run does not see the names that tar has made.
    let kept = programs.path().join("kept");
    let tar = format!("tee {} >/dev/null; exit 0", kept.display());
    let shell = LocalShell::with_tar(programs.path(), &tar);
    let (outcome, _) = push(from.path(), to.path(), shell, &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    fs::remove_file(to.path().join("f")).unwrap();
    let mut tar = std::process::Command::new("tar");
    assert!(tar.arg("-xf").arg(&kept).current_dir(&to).status().unwrap().success());
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
    let (outcome, entries) = push(from.path(), to.path(), LocalShell::plain(), &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(entries, 1);
    assert_no_temporaries(to.path());
}

/// What is kept for the run is no hindrance where only a stream can bring the file.
#[tokio::test]
async fn what_an_interrupted_copy_has_left_does_not_keep_a_file_from_the_stream() {
    for (xattrs, hard_links) in [(true, false), (false, true), (false, false)] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("f"), vec![1; 3 << 20]).unwrap();
        if hard_links {
            fs::hard_link(from.path().join("f"), from.path().join("g")).unwrap();
        }
        for (span, bytes) in [("14", 2 << 20), ("00", 5), ("ff", 5)] {
            use std::os::unix::fs::PermissionsExt;
            let left = to.path().join(format!(".f.sshoal-0123456789ab{span}000000000000000001"));
            fs::write(&left, vec![2; bytes]).unwrap();
            fs::set_permissions(&left, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let xattrs = if xattrs { Xattrs::Users } else { Xattrs::None };
        let options = Options { xattrs, hard_links, ..plain() };
        let source = Tree::remote(plain_sftp(from.path()).await);
        let shell = LocalShell::plain();
        let (outcome, entries) = copy_of(source, from.path(), to.path(), shell, &options).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_no_temporaries(to.path());
        if hard_links {
            let number = |name| fs::metadata(to.path().join(name)).unwrap().ino();
            assert_eq!(number("f"), number("g"));
        }
        let is_streamed = xattrs.any() || hard_links;
        assert_eq!(entries > 0, is_streamed);
    }
}

/// A shell that answers with these members, whatever names it is given.
fn answering(dir: &Path, members: &[Member<'_>]) -> Arc<LocalShell> {
    let file = dir.join("archive");
    fs::write(&file, archive(members)).unwrap();
    let script = "read -r hello; echo 'sshoal-1 gnu'; read -r go; cat '{}'; cat >/dev/null";
    LocalShell::instead(&script.replace("{}", file.to_str().unwrap()))
}

#[tokio::test]
async fn cve_2019_6111_2022_29154_nothing_that_was_not_asked_for_is_put_anywhere() {
    let cases: &[&[Member<'_>]] = &[
        &[("../x", FILE, ""), ("./../x", FILE, ""), ("/x", FILE, ""), ("./x", FILE, "")],
        // A link in the place of a directory, and something through it.
        &[("./d", LINK, ".."), ("./d/x", FILE, ""), ("./d/f", FILE, "")],
        &[("./f", LINK, "../secret"), ("./f", FILE, ""), ("./d/f", HARD, "../secret")],
        &[("./f", HARD, "./../secret"), ("./d/f", HARD, "./f")],
        &[("./f", DIR, ""), ("./f/x", FILE, ""), ("./d/f", CHAR, ""), ("./dev", CHAR, "")],
    ];
    for members in cases {
        for hard_links in [false, true] {
            let (from, around) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let apart = tempfile::tempdir().unwrap();
            fs::create_dir(from.path().join("d")).unwrap();
            fs::write(from.path().join("f"), "right").unwrap();
            fs::write(from.path().join("d/f"), "right, too").unwrap();
            let to = around.path().join("target");
            fs::create_dir(&to).unwrap();
            fs::write(around.path().join("secret"), "secret").unwrap();
            let shell = answering(apart.path(), members);
            let options = Options { hard_links, specials: true, ..plain() };
            let (outcome, _) = copy(from.path(), &to, shell, &options).await;
            // What came in another way is not known to have other names.
            assert_eq!(outcome.problems, [], "{members:?}: {outcome:#?}");
            let names: Vec<_> = kept(&to).into_keys().collect();
            assert_eq!(names, [&b""[..], b"d", b"d/f", b"f"], "{members:?}");
            assert_eq!(fs::read(around.path().join("secret")).unwrap(), b"secret");
            assert_eq!(fs::read_dir(around.path()).unwrap().count(), 2, "{members:?}");
            assert!(fs::symlink_metadata(to.join("f")).unwrap().is_file());
        }
    }
}

#[tokio::test]
async fn a_stream_that_stalls_does_not_hold_up_who_ends_the_run() {
    let (from, to) = places();
    let script = "read -r hello; echo 'sshoal-1 gnu'; read -r go; exec sleep 1000";
    let mut by_name = by_name(from.path(), LocalShell::instead(script), &plain(), false);
    by_name.call().await.unwrap();
    let run = Run::start(job(from.path(), to.path(), &plain()), Arc::new(Silent)).await.unwrap();
    let stopper = run.stopper();
    let progress = run.progress();
    let stop = async {
        // The names are out, and nothing comes.
        while !progress.planned.load(Relaxed) {
            tokio::task::yield_now().await;
        }
        stopper.stop();
    };
    let (outcome, ()) = tokio::join!(engine::drive(run, &mut by_name), stop);
    assert_eq!(outcome.stopped, Some(transfer::Stop::Asked));
}

/// They were copied before without `-H`.
#[tokio::test]
async fn names_that_are_separate_copies_become_names_of_one_file() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("a"), "content").unwrap();
    let options = Options { hard_links: true, ..plain() };
    for name in ["b", "c"] {
        fs::hard_link(from.path().join("a"), from.path().join(name)).unwrap();
    }
    let (outcome, _) = copy(from.path(), to.path(), LocalShell::plain(), &plain()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    let inodes = || {
        let inode = |name| fs::metadata(to.path().join(name)).unwrap().ino();
        std::collections::HashSet::from(["a", "b", "c"].map(inode)).len()
    };
    assert_eq!(inodes(), 3);
    let root = from.path().to_str().unwrap().as_bytes().to_vec();
    for names_made in [2, 0] {
        let mut source = Tree::remote(plain_sftp(from.path()).await);
        source.unseen = Some(Arc::new(ShellFind::new(LocalShell::plain(), root.clone(), false)));
        let shell = LocalShell::plain();
        let (outcome, _) = copy_of(source, from.path(), to.path(), shell, &options).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!((inodes(), outcome.counts.names_made), (1, names_made), "{outcome:#?}");
    }
}

/// GNU tar has unpacked it, and the server cannot remove it.
#[tokio::test]
async fn a_pipe_with_a_newline_in_its_name_is_not_left() {
    let (from, to, programs) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pipe = std::process::Command::new("mkfifo").arg(from.path().join("n\nl")).status();
    assert!(pipe.unwrap().success());
    let shell = LocalShell::with_tar(programs.path(), "$real \"$@\"; exit 2");
    let options = Options { specials: true, ..plain() };
    use std::os::unix::ffi::OsStrExt;
    let streaming = streaming(shell, options.clone());
    let directory = to.path().as_os_str().as_bytes().to_vec();
    let mut by_name = StreamsByName::push(1, &ByName { streaming, directory, name: None });
    let tree = Arc::new(Local::open(from.path()).unwrap());
    let source = Source { tree: Tree::local(tree, from.path()), to: RemotePath::root() };
    let target = Tree::remote(plain_sftp(to.path()).await);
    let job = Job { sources: vec![source], target, options };
    let run = Run::start(job, Arc::new(Silent)).await.unwrap();
    let outcome = engine::drive(run, &mut by_name).await;
    assert_eq!(outcome.problems.len(), 1, "{outcome:#?}");
    assert_no_temporaries(to.path());
}

/// A server's `find` reaches entries whose path it cannot look at as a whole.
#[tokio::test]
async fn entries_with_too_long_a_path_are_reported() {
    use transfer::unseen::Unseen;
    let from = tempfile::tempdir().unwrap();
    let at = from.path().canonicalize().unwrap();
    let name = "d".repeat(200);
    let mut dir = rustix::fs::openat(
        rustix::fs::CWD,
        &at,
        rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for _ in 0..25 {
        rustix::fs::mkdirat(&dir, &*name, rustix::fs::Mode::RWXU).unwrap();
        let (flags, mode) = (rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty());
        dir = rustix::fs::openat(&dir, &*name, flags, mode).unwrap();
    }
    let root = at.to_str().unwrap().as_bytes().to_vec();
    let find = ShellFind::new(LocalShell::plain(), root, false);
    let complaints = find.below(&RemotePath::root()).await.unwrap();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert_eq!(complaints[0].words, "File name too long");
    let path = complaints[0].path.clone().unwrap();
    let bytes = at.as_os_str().len() + 1 + path.as_bytes().len();
    assert!((4096..4096 + 201).contains(&bytes), "{bytes}");
}
