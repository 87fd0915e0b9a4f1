//! What is pushed and pulled back is what it was.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use base::{Name, RemotePath};
use transfer::tar::{
    Compress, Declined, Method, Pull, Push, ReusableLogin, Stage, StreamOutcome, Streamed,
    Streaming,
};
use transfer::{Options, Owners};

use super::shell::{LocalShell, streaming};
use super::trees::{allocated, kept, make};

pub fn pull_of(directory: &Path, name: Option<&str>, root: &Path, to: &str) -> Pull {
    use std::os::unix::ffi::OsStrExt;
    Pull {
        directory: directory.as_os_str().as_bytes().to_vec(),
        name: name.map(|name| Name::new(name.as_bytes()).unwrap()),
        root: root.to_owned(),
        target: RemotePath::root(),
        to: RemotePath::parse(to.as_bytes()).unwrap(),
        unless_directory: None,
    }
}

pub fn push_of(path: &Path, directory: &Path, name: &str) -> Push {
    use std::os::unix::ffi::OsStrExt;
    Push {
        path: path.to_owned(),
        directory: directory.as_os_str().as_bytes().to_vec(),
        may_make: false,
        name: Name::new(name.as_bytes()).unwrap(),
        to: RemotePath::parse(name.as_bytes()).unwrap(),
    }
}

#[track_caller]
pub fn whole(streamed: Streamed) -> StreamOutcome {
    match streamed {
        Streamed::Whole(done) => done,
        other => panic!("{other:?}"),
    }
}

fn all() -> Options {
    Options { owners: Owners::Numbers, sparse: true, ..Options::default() }
}

#[tokio::test]
async fn a_tree_goes_there_and_back() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    let original = kept(&dir.path().join("tree"));
    for compress in [Compress::Never, Compress::Auto, Compress::Always(Method::Gzip)] {
        let there = tempfile::tempdir().unwrap();
        let back = tempfile::tempdir().unwrap();
        let mut streaming = streaming(LocalShell::plain(), all());
        streaming.compress = compress;
        let push = push_of(&dir.path().join("tree"), there.path(), "copy");
        let pushed = whole(streaming.push(&push).await.unwrap());
        assert!(pushed.stage.is_none());
        assert_eq!(kept(&there.path().join("copy")), original);
        let pull = pull_of(there.path(), Some("copy"), back.path(), "again");
        let pulled = whole(streaming.pull(&pull).await.unwrap());
        assert_eq!(kept(&back.path().join("again")), original);
        assert!(allocated(&back.path().join("again/sparse")) < 1 << 20);
        assert!(allocated(&there.path().join("copy/sparse")) < 1 << 20);
        for done in [pushed, pulled] {
            assert_eq!(done.outcome.counts.entries, original.len() as u64);
            assert_eq!(done.outcome.counts.ended(), done.outcome.counts.entries);
            assert_eq!(done.outcome.counts.files_copied, 7);
            assert_eq!(done.outcome.counts.links_made, 3);
        }
        assert_eq!(fs::read_dir(there.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}

#[tokio::test]
async fn zstd_of_the_far_side_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    let mut streaming = streaming(LocalShell::plain(), all());
    streaming.compress = Compress::Always(Method::Zstd);
    let pull = pull_of(dir.path(), Some("tree"), dir.path(), "again");
    let done = whole(streaming.pull(&pull).await.unwrap());
    assert_eq!(kept(&dir.path().join("again")), kept(&dir.path().join("tree")));
    assert_eq!(done.method, Some(Method::Zstd));
}

#[tokio::test]
async fn the_content_of_a_directory_becomes_the_targets_own() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    fs::create_dir(dir.path().join("target")).unwrap();
    let streaming = streaming(LocalShell::plain(), all());
    let pull = pull_of(&dir.path().join("tree"), None, &dir.path().join("target"), "");
    whole(streaming.pull(&pull).await.unwrap());
    assert_eq!(kept(&dir.path().join("target")), kept(&dir.path().join("tree")));
}

#[tokio::test]
async fn the_far_side_tells_whose_a_new_name_is() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    fs::write(dir.path().join("file"), "content").unwrap();
    std::os::unix::fs::symlink("tree", dir.path().join("link")).unwrap();
    let streaming = streaming(LocalShell::plain(), all());
    for name in ["file", "link", "tree"] {
        let here = tempfile::tempdir().unwrap();
        let new = RemotePath::parse(b"new").unwrap();
        let pull = pull_of(dir.path(), Some(name), here.path(), name);
        let pull = Pull { target: new.clone(), unless_directory: Some(new), ..pull };
        whole(streaming.pull(&pull).await.unwrap());
        let came = if name == "tree" { "new/tree" } else { "new" };
        assert_eq!(kept(&here.path().join(came)), kept(&dir.path().join(name)), "{name}");
    }
    // What is told is the place that cannot be made, and not the one above it, which is there.
    let new = RemotePath::parse(b"new").unwrap();
    let pull = pull_of(dir.path(), Some("tree"), Path::new("/proc"), "tree");
    let pull = Pull { target: new.clone(), unless_directory: Some(new), ..pull };
    let unable = streaming.pull(&pull).await.unwrap_err();
    assert_eq!(unable.place, Path::new("/proc/new"));
}

#[tokio::test]
async fn a_single_file_is_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("-file"), "content").unwrap();
    let streaming = streaming(LocalShell::plain(), all());
    let pull = pull_of(dir.path(), Some("-file"), dir.path(), "pulled");
    whole(streaming.pull(&pull).await.unwrap());
    let push = push_of(&dir.path().join("-file"), dir.path(), "-pushed");
    whole(streaming.push(&push).await.unwrap());
    for copy in ["pulled", "-pushed"] {
        assert_eq!(kept(&dir.path().join(copy)), kept(&dir.path().join("-file")));
    }
}

#[tokio::test]
async fn a_tree_that_libarchives_tar_unpacks_has_its_time() {
    let (dir, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_000_000_500);
    fs::File::open(&tree).unwrap().set_modified(time).unwrap();
    let exec = "exec $real \"$@\"";
    let Some(shell) = LocalShell::with_bsdtar(programs.path(), exec) else { return };
    whole(streaming(shell, all()).push(&push_of(&tree, dir.path(), "copy")).await.unwrap());
    assert_eq!(kept(&dir.path().join("copy")), kept(&tree));
}

#[tokio::test]
async fn names_of_one_file_stay_so_if_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/one"), "content").unwrap();
    fs::hard_link(dir.path().join("tree/one"), dir.path().join("tree/two")).unwrap();
    for hard_links in [true, false] {
        let (there, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let streaming = streaming(LocalShell::plain(), Options { hard_links, ..all() });
        let push = push_of(&dir.path().join("tree"), there.path(), "copy");
        let pushed = whole(streaming.push(&push).await.unwrap());
        let pull = pull_of(there.path(), Some("copy"), back.path(), "copy");
        whole(streaming.pull(&pull).await.unwrap());
        assert_eq!(pushed.outcome.counts.names_made, u64::from(hard_links));
        for copy in [there.path(), back.path()] {
            let number = |name| fs::metadata(copy.join("copy").join(name)).unwrap().ino();
            assert_eq!(number("one") == number("two"), hard_links, "{}", copy.display());
            assert_eq!(fs::read(copy.join("copy/two")).unwrap(), b"content");
        }
    }
}

#[tokio::test]
async fn access_lists_are_preserved_with_all_extended_attributes() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const ACCESS: &str = "system.posix_acl_access";
    // Version 2: the owner, user 1234, the group, the mask, others.
    let entries = [(1u16, 6u16, u32::MAX), (2, 4, 1234), (4, 4, u32::MAX), (16, 4, u32::MAX)];
    let entries = entries.into_iter().chain([(32, 0, u32::MAX)]);
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), "content").unwrap();
    if setxattr(dir.path().join("tree/file"), ACCESS, &list, XattrFlags::empty()).is_err() {
        return;
    }
    for xattrs in [transfer::Xattrs::All, transfer::Xattrs::Users] {
        let (there, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let streaming = streaming(LocalShell::plain(), Options { xattrs, ..all() });
        let push = push_of(&dir.path().join("tree"), there.path(), "copy");
        whole(streaming.push(&push).await.unwrap());
        let pull = pull_of(there.path(), Some("copy"), back.path(), "copy");
        whole(streaming.pull(&pull).await.unwrap());
        for copy in [there.path(), back.path()] {
            let mut value = vec![0; 1 << 10];
            let len = getxattr(copy.join("copy/file"), ACCESS, &mut value[..]).unwrap_or(0);
            let wanted = if xattrs == transfer::Xattrs::All { &list[..] } else { &[] };
            assert_eq!(&value[..len], wanted, "{}", copy.display());
        }
    }
}

#[tokio::test]
async fn what_is_left_out_of_a_push_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    let mut filter = transfer::Filter::builder();
    filter.exclude("deep/").exclude("/copy/a");
    let options = Options { filter: filter.build().unwrap(), ..all() };
    let push = push_of(&dir.path().join("tree"), dir.path(), "copy");
    whole(streaming(LocalShell::plain(), options).push(&push).await.unwrap());
    let mut expected = kept(&dir.path().join("tree"));
    expected.retain(|name, _| name != b"a" && !name.starts_with(b"sub/deep"));
    assert_eq!(kept(&dir.path().join("copy")), expected);
}

#[tokio::test]
async fn a_target_that_is_taken_is_declined() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    fs::create_dir(dir.path().join("taken")).unwrap();
    let stage = ".begun.sshoal-new-0123456789ab";
    fs::create_dir(dir.path().join(stage)).unwrap();
    // A mark, and what only begins alike.
    fs::write(dir.path().join(".new.sshoal-new-0123456789ab.end"), "").unwrap();
    fs::write(dir.path().join(".new.sshoal-new-"), "").unwrap();
    let name = |name: &str| base::Name::new(name.as_bytes()).unwrap();
    let (name, stage) = (name("begun"), name(stage));
    let begun = Stage { name, stage, is_own: false, in_doubt: false, cut: None };
    let streaming = streaming(LocalShell::plain(), all());
    for (name, into, why) in [
        ("taken", dir.path().to_owned(), Declined::Occupied),
        ("begun", dir.path().to_owned(), Declined::Staged(Box::new(begun))),
        ("new", dir.path().join("missing"), Declined::Absent),
    ] {
        let push = push_of(&dir.path().join("tree"), &into, name);
        match streaming.push(&push).await.unwrap() {
            Streamed::Declined(told) => assert_eq!(told, why),
            other => panic!("{name}: {other:?}"),
        }
    }
    let pull = pull_of(dir.path(), Some("missing"), dir.path(), "x");
    let told = streaming.pull(&pull).await.unwrap();
    assert!(matches!(told, Streamed::Declined(Declined::Absent)), "{told:?}");
}

#[tokio::test]
async fn the_directory_of_the_target_is_made_if_that_is_wanted_and_the_one_above_is_not() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    let streaming = streaming(LocalShell::with_umask("027"), all());
    let push = |into: &str| transfer::tar::Push {
        may_make: true,
        ..push_of(&dir.path().join("tree"), &dir.path().join(into), "copy")
    };
    let told = streaming.push(&push("not/there")).await.unwrap();
    assert!(matches!(told, Streamed::Declined(Declined::Absent)), "{told:?}");
    assert!(!dir.path().join("not").exists());
    whole(streaming.push(&push("new")).await.unwrap());
    assert_eq!(kept(&dir.path().join("new/copy")), kept(&dir.path().join("tree")));
    let mode = fs::metadata(dir.path().join("new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750, "{mode:o}");
}

#[tokio::test]
async fn a_far_side_without_commands_or_tar_declines() {
    let dir = tempfile::tempdir().unwrap();
    let no_tar = tempfile::tempdir().unwrap();
    let fake = no_tar.path().join("tar");
    sandbox::write_program(&fake, "#!/bin/sh\necho 'tar (some other)'\n").unwrap();
    let without_tar =
        LocalShell { programs: Some(no_tar.path().to_owned()), instead: None, umask: None };
    let nologin = "echo 'This account is not available.' >&2; exit 1";
    let pull = pull_of(Path::new("/usr"), Some("include"), dir.path(), "x");
    for (shell, why) in [
        (Arc::new(without_tar), Declined::NoTar),
        (LocalShell::instead(nologin), Declined::NoShell("This account is not available.".into())),
        // It waits for requests, and ends at the first bytes that are none.
        (
            LocalShell::instead("exec /usr/lib/openssh/sftp-server"),
            Declined::NoShell("its shell ended with 11".into()),
        ),
    ] {
        let told = streaming(shell, all()).pull(&pull).await.unwrap();
        match told {
            Streamed::Declined(told) => assert_eq!(told, why),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_missed_and_the_rest_comes() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Root reads everything, but not what is gone between listing and opening.
    let programs = tempfile::tempdir().unwrap();
    let fake = programs.path().join("tar");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] || { /usr/bin/tar \"$@\"; exit 2; }\n\
                  exec /usr/bin/tar \"$@\"\n";
    sandbox::write_program(&fake, script).unwrap();
    let shell = Arc::new(LocalShell {
        programs: Some(programs.path().to_owned()),
        instead: None,
        umask: None,
    });
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    let pull = pull_of(dir.path(), Some("tree"), dir.path(), "copy");
    let told = streaming(shell.clone(), all()).pull(&pull).await.unwrap();
    assert!(matches!(told, Streamed::Partly(_)), "{told:?}");
    let [copy, tree] = ["copy", "tree"].map(|name| kept(&dir.path().join(name)));
    for (name, kept) in &tree {
        // It ends with zeros, which may be those of a tar that has failed: a run compares it.
        let in_doubt = name == b"sparse";
        assert_eq!(copy[name] == *kept, !in_doubt, "{}", name.escape_ascii());
        assert!(copy[name].has_content_of(kept), "{}", name.escape_ascii());
    }
    assert_eq!(copy.len(), tree.len());
    // A push that did not end well keeps the name of what is not whole.
    let push = push_of(&dir.path().join("tree"), dir.path(), "pushed");
    match streaming(shell, all()).push(&push).await.unwrap() {
        Streamed::Partly(done) => assert!(done.stage.is_some()),
        other => panic!("{other:?}"),
    }
    assert!(!dir.path().join("pushed").exists());
    assert_eq!(stages(dir.path()).len(), 1);
}

/// The stages in a directory.
fn stages(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|it| it.to_string_lossy().contains(".sshoal-new-")).collect()
}

#[tokio::test]
async fn a_stage_that_another_run_has_taken_does_not_get_the_name() {
    // tar itself finds nothing wrong: what it makes after that is a whole archive to it.
    for again in ["", "mkdir \"$s\" && touch \"$s/late\";"] {
        let programs = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("tree"));
        let script = format!(
            "$real \"$@\"; for s in .pushed.sshoal-new-????????????; do mv \"$s\" taken; {again} done; exit 0"
        );
        let shell = LocalShell::with_tar(programs.path(), &script);
        let push = push_of(&dir.path().join("tree"), dir.path(), "pushed");
        match streaming(shell, all()).push(&push).await.unwrap() {
            Streamed::Partly(done) => assert!(done.stage.is_some()),
            other => panic!("{other:?}"),
        }
        assert!(!dir.path().join("pushed").exists());
        assert_eq!(kept(&dir.path().join("taken")), kept(&dir.path().join("tree")));
        assert_eq!(
            stages(dir.path()),
            [""; 0].map(std::path::PathBuf::from),
            "what came later stays"
        );
    }
}

/// Checks that a push gives no tree the name when this `tar`, found in `programs`, has lost the stage.
async fn pushes_no_tree(programs: &Path, tar: &str) {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    for compress in [Compress::Never, Compress::Always(Method::Gzip)] {
        let mut streaming = streaming(LocalShell::with_tar(programs, tar), all());
        streaming.compress = compress;
        let push = push_of(&dir.path().join("tree"), dir.path(), "pushed");
        match streaming.push(&push).await.unwrap() {
            Streamed::Partly(done) => assert!(done.stage.is_some()),
            other => panic!("{other:?}"),
        }
        assert!(!dir.path().join("pushed").exists());
        assert!(stages(dir.path()).is_empty());
    }
}

#[tokio::test]
async fn a_stage_that_another_run_has_removed_is_not_taken_for_the_one_that_comes_after() {
    let programs = tempfile::tempdir().unwrap();
    // Many file systems give the new directory the inode number of the removed one, if it is free.
    let tar = "$real \"$@\"; for s in .pushed.sshoal-new-????????????; do rm -rf \"$s\"/*; \
        rmdir \"$s\"; mkdir \"$s\"; touch \"$s/late\"; done; exit 0";
    pushes_no_tree(programs.path(), tar).await;
}

#[tokio::test]
async fn a_stage_that_another_run_has_removed_is_not_created_again() {
    let programs = tempfile::tempdir().unwrap();
    // As on a file system that gives a new entry the inode number of the removed one.
    let ls = "#!/bin/sh\nfor last; do :; done; [ -e \"$last\" ] && echo 1\n";
    sandbox::write_program(programs.path().join("ls"), ls).unwrap();
    let tar = "$real \"$@\"; rm -rf .pushed.sshoal-new-????????????; exit 0";
    pushes_no_tree(programs.path(), tar).await;
}

#[tokio::test]
async fn a_name_that_is_taken_at_the_last_moment_keeps_what_it_has() {
    let programs = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    // Another push has given its tree the name since this one has looked.
    let script = "#!/bin/sh\nmkdir -p pushed && touch pushed/another\nexec /bin/mv \"$@\"\n";
    let mv = programs.path().join("mv");
    sandbox::write_program(&mv, script).unwrap();
    let shell =
        LocalShell { programs: Some(programs.path().to_owned()), instead: None, umask: None };
    let push = push_of(&dir.path().join("tree"), dir.path(), "pushed");
    match streaming(Arc::new(shell), all()).push(&push).await.unwrap() {
        Streamed::Partly(done) => assert!(done.stage.is_some()),
        other => panic!("{other:?}"),
    }
    let names = fs::read_dir(dir.path().join("pushed")).unwrap();
    assert_eq!(names.map(|it| it.unwrap().file_name()).collect::<Vec<_>>(), ["another"]);
    let [stage] = &stages(dir.path())[..] else { panic!("{:?}", stages(dir.path())) };
    assert_eq!(kept(stage), kept(&dir.path().join("tree")));
}

#[test]
fn a_stage_is_gone_on_with_only_for_the_same_kind_of_copy() {
    let name = base::Name::new(b"tree").unwrap();
    let stage = |options: &Options| transfer::tar::stage(&name, options).unwrap();
    let plain = Options::default();
    assert_ne!(stage(&plain), stage(&plain));
    let suits = |options: &Options| transfer::tar::suits(&stage(&plain), &name, options);
    assert!(suits(&Options { checksum: true, no_partial: true, ..plain.clone() }));
    assert!(!suits(&Options { hard_links: true, ..plain.clone() }));
    assert!(!suits(&Options { owners: transfer::Owners::Numbers, ..plain.clone() }));
    assert!(!suits(&Options { one_file_system: true, ..plain.clone() }));
}

/// The tar of macOS keeps in files `._NAME` what the system keeps beside `NAME`.
#[tokio::test]
async fn files_of_macos_are_files_as_any_others() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("name"), "content").unwrap();
    fs::write(tree.join("._name"), b"\0\x05\x16\x07\0\x02\0\0").unwrap();
    let programs = tempfile::tempdir().unwrap();
    // As on macOS, where it is the default.
    let tar = "case $* in *-xf*) exec $real --options mac-ext \"$@\"; esac\n\
        case $* in *--no-mac-metadata*) ;; *) touch tree/._new; esac\nexec $real \"$@\"";
    let Some(shell) = LocalShell::with_bsdtar(programs.path(), tar) else { return };
    let streaming = streaming(shell, all());
    let there = tempfile::tempdir().unwrap();
    whole(streaming.push(&push_of(&tree, there.path(), "tree")).await.unwrap());
    assert_eq!(kept(&there.path().join("tree")), kept(&tree));
    let back = tempfile::tempdir().unwrap();
    let pulled = streaming.pull(&pull_of(there.path(), Some("tree"), back.path(), "tree")).await;
    assert!(matches!(pulled, Ok(Streamed::Partly(_))), "{pulled:?}");
    assert_eq!(kept(&back.path().join("tree")).len(), kept(&tree).len());
}

/// A message of SFTP, without its length: its kind, what comes before its string, and that.
fn message(kind: u8, before: &[u8], string: &[u8]) -> Vec<u8> {
    let length = (string.len() as u32).to_be_bytes();
    [&[kind], before, &length, string].concat()
}

#[tokio::test]
async fn a_login_that_is_not_needed_for_a_stream_serves_sftp() {
    use std::os::unix::fs::PermissionsExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("tree"));
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let reusable_login = ReusableLogin::default();
    let mut streaming = streaming(LocalShell::with_umask("027"), all());
    streaming.reusable_login = Some(reusable_login.clone());
    let push = push_of(&dir.path().join("tree"), dir.path(), "taken");
    let told = streaming.push(&push).await.unwrap();
    assert!(matches!(told, Streamed::Declined(Declined::Occupied)), "{told:?}");
    let left = reusable_login.take().expect("there is an SFTP server");
    assert!(left.listing.is_none(), "nobody wanted one");
    let mut session = left.running;
    assert!(reusable_login.take().is_none());

    let made = taken.join("made");
    let made_bytes = made.as_os_str().as_encoded_bytes();
    // The version; the directory that relative names count from; a directory with no attributes.
    let init = [&[1], &3u32.to_be_bytes()[..]].concat();
    let realpath = message(16, &7u32.to_be_bytes(), b".");
    let mkdir = [message(14, &8u32.to_be_bytes(), made_bytes), vec![0; 4]].concat();
    let mut answers = Vec::new();
    for asked in [init, realpath, mkdir] {
        let packet = [&(asked.len() as u32).to_be_bytes()[..], &asked].concat();
        session.stdin.write_all(&packet).await.unwrap();
        let mut answer = vec![0; session.stdout.read_u32().await.unwrap() as usize];
        session.stdout.read_exact(&mut answer).await.unwrap();
        answers.push(answer);
    }
    assert_eq!(answers[0][..5], [2, 0, 0, 0, 3]);
    // Where the shell began, whatever it has looked at since.
    let begun = std::env::current_dir().unwrap();
    let named = message(104, &[0, 0, 0, 7, 0, 0, 0, 1], begun.as_os_str().as_encoded_bytes());
    assert!(answers[1].starts_with(&named), "{}", answers[1].escape_ascii());
    // No narrower than the login makes it, since a run sets what it wants.
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o750);
    drop(session.stdin);
    assert_eq!(session.exit.await.unwrap().status, Some(0));
}

/// The shell behind a round trip of 12 ms.
struct FarAway(Arc<LocalShell>);

#[async_trait::async_trait]
impl transfer::Shell for FarAway {
    async fn start(&self, command: &[u8]) -> Result<transfer::Running, transfer::ShellError> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let running = self.0.start(command).await?;
        let (mut stdout, (peer, mut near)) = (running.stdout, tokio::io::duplex(1 << 16));
        tokio::spawn(async move {
            let mut block = vec![0; 1 << 16];
            while let Ok(len @ 1..) = stdout.read(&mut block).await {
                tokio::time::sleep(std::time::Duration::from_millis(12)).await;
                if near.write_all(&block[..len]).await.is_err() {
                    return;
                }
            }
        });
        Ok(transfer::Running { stdout: Box::new(peer), ..running })
    }
}

#[tokio::test]
async fn a_large_file_does_not_wait_for_the_window_of_one_stream() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("small"), "small").unwrap();
    let mut streaming = streaming(LocalShell::plain(), all());
    streaming.shell = Arc::new(FarAway(LocalShell::plain()));
    streaming.only_if_fast = true;
    whole(streaming.push(&push_of(&tree, there.path(), "one")).await.unwrap());
    fs::File::create(tree.join("large")).unwrap().set_len(17 << 20).unwrap();
    let told = streaming.push(&push_of(&tree, there.path(), "two")).await.unwrap();
    assert!(matches!(told, Streamed::Declined(Declined::Slower(_))), "{told:?}");
    assert_eq!(fs::read_dir(there.path()).unwrap().count(), 1, "nothing was begun");
    // With a short round trip one stream is as fast, and a stream that is requested is used.
    streaming.only_if_fast = false;
    whole(streaming.push(&push_of(&tree, there.path(), "two")).await.unwrap());
    streaming.only_if_fast = true;
    streaming.shell = LocalShell::plain();
    // On a busy machine a short round trip may be measured as a long one.
    for _ in 0..100 {
        let told = streaming.push(&push_of(&tree, there.path(), "three")).await.unwrap();
        if !matches!(told, Streamed::Declined(Declined::Slower(_))) {
            whole(told);
            return;
        }
    }
    panic!("a stream with a short round trip is declined");
}

/// A tree with a file that has the bits, and its mode at the target after `copy`.
fn with_set_ids() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("tree/shared")).unwrap();
    fs::write(dir.path().join("tree/program"), "program").unwrap();
    for (name, mode) in [("tree/program", 0o6755), ("tree/shared", 0o2775)] {
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    dir
}

fn modes(tree: &Path) -> [u32; 2] {
    ["program", "shared"].map(|name| fs::metadata(tree.join(name)).unwrap().mode() & 0o7777)
}

#[tokio::test]
async fn cve_a_stream_brings_set_id_bits_only_where_they_are_asked_for() {
    let from = with_set_ids();
    for set_ids in [false, true] {
        let options = Options { set_ids, ..all() };
        let to = tempfile::tempdir().unwrap();
        let pull = pull_of(from.path(), Some("tree"), to.path(), "tree");
        whole(streaming(LocalShell::plain(), options.clone()).pull(&pull).await.unwrap());
        let wanted = if set_ids { 0o6755 } else { 0o755 };
        assert_eq!(modes(&to.path().join("tree")), [wanted, 0o2775]);
    }
    // The server's tar is not trusted with them.
    let to = tempfile::tempdir().unwrap();
    let push = push_of(&from.path().join("tree"), to.path(), "tree");
    whole(streaming(LocalShell::plain(), all()).push(&push).await.unwrap());
    assert_eq!(modes(&to.path().join("tree")), [0o755, 0o2775]);
    let kept = Options { set_ids: true, ..Options::default() };
    assert_eq!(Streaming::unsuited(&kept, true, true), Some("--keep-setid"));
}

#[tokio::test]
async fn cve_streams_by_names_bring_set_id_bits_only_where_they_are_asked_for() {
    let from = with_set_ids();
    for set_ids in [false, true] {
        let options = Options { set_ids, ..all() };
        let wanted = if set_ids { 0o6755 } else { 0o755 };
        for is_push in [true, false] {
            let (to, tree) = (tempfile::tempdir().unwrap(), from.path().join("tree"));
            let shell = LocalShell::plain();
            let (outcome, _) = match is_push {
                true => super::by_name::push(&tree, to.path(), shell, &options).await,
                false => super::by_name::copy(&tree, to.path(), shell, &options).await,
            };
            assert!(outcome.is_complete(), "{outcome:#?}");
            assert_eq!(modes(to.path()), [wanted, 0o2775], "{is_push} {set_ids}");
        }
    }
}
