//! Extended attributes of all kinds of entries, by streams and by runs.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use base::{Errno, Remote, RemotePath};
use local::Local;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use testkit::{Call, FaultyRemote};
use transfer::tar::by_name::{ByName, StreamsByName};
use transfer::{Job, Options, Outcome, Owners, Run, Silent, Source, Tree, Xattrs, engine};

use super::plain::plain;
use super::round_trip::{pull_of, push_of, whole};
use super::shell::{LocalShell, streaming};

/// An attribute that a link may have.
const OF_ALL: &str = "trusted.note";

fn set(path: &Path, name: &str, value: &str) {
    lsetxattr(path, name, value.as_bytes(), XattrFlags::empty()).unwrap();
}

fn get(path: &Path, name: &str) -> Option<String> {
    let mut value = vec![0; 1 << 10];
    let len = lgetxattr(path, name, &mut value[..]).ok()?;
    Some(String::from_utf8_lossy(&value[..len]).into_owned())
}

/// Whether this test may set attributes that links may have.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn entries() -> Vec<&'static str> {
    match is_root() {
        true => vec!["", "d", "d/sub", "d/f", "d/large", "d/link", "d/pipe"],
        false => vec!["", "d", "d/sub", "d/f", "d/large"],
    }
}

/// A tree whose entries all have an attribute.
fn make(top: &Path) {
    fs::create_dir_all(top.join("d/sub")).unwrap();
    fs::write(top.join("d/f"), "content").unwrap();
    fs::write(top.join("d/large"), vec![7; 3 << 20]).unwrap();
    symlink("f", top.join("d/link")).unwrap();
    let pipe = top.join("d/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    for name in entries() {
        set(&top.join(name), attribute(name), name);
        if name == "d/f" {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(top.join(name), PermissionsExt::from_mode(0o444)).unwrap();
        }
    }
    File::open(top).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1_000)).unwrap();
}

fn attribute(name: &str) -> &'static str {
    match name {
        "d/link" | "d/pipe" => OF_ALL,
        // In an archive this name is escaped.
        "d/f" => "user.a=b%41",
        _ => "user.note",
    }
}

#[track_caller]
fn assert_same(to: &Path, outcome: &Outcome) {
    assert!(outcome.is_complete(), "{outcome:#?}");
    for name in entries() {
        let found = get(&to.join(name), attribute(name));
        assert_eq!(found.as_deref(), Some(name), "{name}: {outcome:#?}");
    }
}

fn options() -> Options {
    let xattrs = if is_root() { Xattrs::All } else { Xattrs::Users };
    Options { xattrs, specials: true, owners: Owners::Numbers, ..Options::default() }
}

fn local(dir: &Path) -> Tree {
    Tree::local(Arc::new(Local::open(dir).unwrap()), dir)
}

async fn run(from: Tree, to: Tree, by_name: StreamsByName) -> Outcome {
    run_with(options(), from, to, by_name).await
}

async fn run_with(options: Options, from: Tree, to: Tree, mut by_name: StreamsByName) -> Outcome {
    let sources = vec![Source { tree: from, to: RemotePath::root() }];
    let job = Job { sources, target: to, options };
    engine::check(&job, &by_name).unwrap();
    let run = Run::start(job, Arc::new(Silent)).await.unwrap();
    let outcome = engine::drive(run, &mut by_name).await;
    assert_eq!(outcome.counts.ended(), outcome.counts.entries, "{outcome:#?}");
    outcome
}

fn place(dir: &Path, shell: &Arc<LocalShell>) -> ByName {
    use std::os::unix::ffi::OsStrExt;
    let directory = dir.as_os_str().as_bytes().to_vec();
    ByName { streaming: streaming(shell.clone(), options()), directory, name: None }
}

async fn pull(from: &Path, to: &Path, shell: &Arc<LocalShell>) -> Outcome {
    let by_name = StreamsByName::pull(vec![Some(place(from, shell))]);
    run(Tree::remote(plain(from).await), local(to), by_name).await
}

async fn push(from: &Path, to: &Path, shell: &Arc<LocalShell>) -> Outcome {
    let by_name = StreamsByName::push(1, &place(to, shell));
    run(local(from), Tree::remote(plain(to).await), by_name).await
}

#[tokio::test]
async fn a_stream_keeps_them() {
    let (dir, there, back) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(&dir.path().join("tree"));
    let streaming = streaming(LocalShell::plain(), options());
    let pushed = push_of(&dir.path().join("tree"), there.path(), "copy");
    let pushed = whole(streaming.push(&pushed).await.unwrap());
    assert_same(&there.path().join("copy"), &pushed.outcome);
    let pulled = pull_of(there.path(), Some("copy"), back.path(), "copy");
    let pulled = whole(streaming.pull(&pulled).await.unwrap());
    assert_same(&back.path().join("copy"), &pulled.outcome);
}

/// The server has nothing but SFTP and tar.
#[tokio::test]
async fn a_run_with_streams_by_names_keeps_them() {
    let (from, there, back) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(from.path());
    let shell = LocalShell::plain();
    assert_same(there.path(), &push(from.path(), there.path(), &shell).await);
    assert_same(back.path(), &pull(there.path(), back.path(), &shell).await);
    // A directory whose time differs is like a new one, and its mode is what it is to be.
    for (from, to, is_push) in
        [(from.path(), there.path(), true), (there.path(), back.path(), false)]
    {
        set(&from.join("d/sub"), "user.note", "changed");
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(from.join("d/sub")).unwrap().set_modified(time).unwrap();
        let outcome = match is_push {
            true => push(from, to, &shell).await,
            false => pull(from, to, &shell).await,
        };
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(get(&to.join("d/sub"), "user.note").as_deref(), Some("changed"));
        let kept = |top: &Path| fs::metadata(top.join("d/sub")).unwrap();
        assert_eq!(kept(to).permissions(), kept(from).permissions());
        assert_eq!(kept(to).modified().unwrap(), time);
    }
}

#[tokio::test]
async fn directories_whose_attributes_no_stream_brings_are_a_problem() {
    let programs = tempfile::tempdir().unwrap();
    for is_push in [false, true] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("d")).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(from.path().join("d")).unwrap().set_modified(time).unwrap();
        let shell = LocalShell::with_tar(programs.path(), "cat >/dev/null; exit 2");
        // A second run must not take the directory for one that is as it is to be.
        for _ in 0..2 {
            let outcome = match is_push {
                true => push(from.path(), to.path(), &shell).await,
                false => pull(from.path(), to.path(), &shell).await,
            };
            let problems: Vec<_> = outcome.problems.iter().map(|it| it.to_string()).collect();
            let words = "d: no stream has copied it, and SFTP carries no extended attributes";
            assert!(problems.iter().any(|it| it.starts_with(words)), "{problems:?}");
            assert!(to.path().join("d").is_dir(), "{outcome:#?}");
        }
    }
}

/// No stream pushes these files, since the server's tar is not trusted with the bits.
#[tokio::test]
async fn a_pushed_file_with_set_id_bits_is_a_problem_only_if_it_has_attributes() {
    use std::os::unix::fs::PermissionsExt;
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["bare", "marked"] {
        fs::write(from.path().join(name), name).unwrap();
        let mode = fs::Permissions::from_mode(0o4755);
        fs::set_permissions(from.path().join(name), mode).unwrap();
    }
    set(&from.path().join("marked"), "user.note", "kept");
    let by_name = StreamsByName::push(1, &place(to.path(), &LocalShell::plain()));
    let target = Tree::remote(plain(to.path()).await);
    let options = Options { set_ids: true, ..options() };
    let outcome = run_with(options, local(from.path()), target, by_name).await;
    let problems: Vec<_> = outcome.problems.iter().map(|it| it.to_string()).collect();
    let words = "marked: no stream has copied it, and SFTP carries no extended attributes";
    assert!(problems.len() == 1 && problems[0].starts_with(words), "{problems:?}");
    assert_eq!(fs::metadata(to.path().join("bare")).unwrap().permissions().mode() & 0o7777, 0o4755);
    assert!(!to.path().join("marked").exists());
}

/// A directory that the login may not change does not fail the stream.
#[tokio::test]
async fn a_directory_that_cannot_be_changed_costs_no_other_entry() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for top in [from.path(), to.path()] {
        fs::create_dir(top.join("d")).unwrap();
    }
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(from.path().join("d")).unwrap().set_modified(time).unwrap();
    fs::write(from.path().join("f"), "content").unwrap();
    let fixed = File::open(to.path().join("d")).unwrap();
    let flags = ioctl_getflags(&fixed).unwrap_or(IFlags::empty());
    if ioctl_setflags(&fixed, flags | IFlags::IMMUTABLE).is_err() {
        // Not permitted here.
        return;
    }
    let outcome = push(from.path(), to.path(), &LocalShell::plain()).await;
    ioctl_setflags(&fixed, flags).unwrap();
    let problems: Vec<_> = outcome.problems.iter().map(|it| it.to_string()).collect();
    assert!(problems.len() == 1 && problems[0].starts_with("d: "), "{problems:?}");
    assert_eq!(fs::read(to.path().join("f")).unwrap(), b"content");
}

/// It is not closed for the time of the stream to those whom it is open to.
#[tokio::test]
async fn a_directory_that_is_there_keeps_its_mode_during_a_stream() {
    use std::os::unix::fs::PermissionsExt;
    let programs = tempfile::tempdir().unwrap();
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for top in [from.path(), to.path()] {
        fs::create_dir(top.join("d")).unwrap();
        fs::set_permissions(top.join("d"), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(from.path().join("d")).unwrap().set_modified(time).unwrap();
    let (d, seen) = (to.path().join("d"), programs.path().join("seen"));
    let script = format!(
        "PATH=/usr/bin:/bin; tar \"$@\"; code=$?; stat -c %a {} >>{}; exit $code",
        d.display(),
        seen.display()
    );
    let shell = LocalShell::with_tar(programs.path(), &script);
    let outcome = push(from.path(), to.path(), &shell).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    let seen = fs::read_to_string(seen).unwrap();
    assert!(!seen.is_empty() && seen.lines().all(|mode| mode == "755"), "{seen}");
}

/// A change of size or owner takes capabilities away.
#[tokio::test]
async fn capabilities_of_sparse_files_are_kept() {
    if !is_root() {
        eprintln!("skipped: only root may set capabilities");
        return;
    }
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // cap_net_bind_service=ep
    let capability = "\u{1}\0\0\u{2}\0\u{4}\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (name, len) in [("small", 10_000), ("large", 3 << 20)] {
        let mut content = vec![0; len];
        content.extend(b"end");
        fs::write(from.path().join(name), content).unwrap();
        set(&from.path().join(name), "security.capability", capability);
    }
    let remote = |dir: &Path| Tree::remote(Arc::new(Local::open(dir).unwrap()));
    for owners in [Owners::Numbers, Owners::Leave] {
        for into_remote in [true, false] {
            let to = to.path().join(format!("{owners:?}-{into_remote}"));
            fs::create_dir(&to).unwrap();
            let target = if into_remote { remote(&to) } else { local(&to) };
            let owners = owners.clone();
            let options = Options { sparse: true, verify: true, owners, ..options() };
            let sources = vec![Source { tree: remote(from.path()), to: RemotePath::root() }];
            let job = Job { sources, target, options };
            let run = Run::start(job, Arc::new(Silent)).await.unwrap();
            let outcome = engine::drive(run, &mut StreamsByName::default()).await;
            assert!(outcome.is_complete(), "{outcome:#?}");
            for name in ["small", "large"] {
                let found = get(&to.join(name), "security.capability");
                assert_eq!(found.as_deref(), Some(capability), "{}/{name}", to.display());
            }
        }
    }
}

/// As with the helper at the server: a remote that has requests for them.
#[tokio::test]
async fn a_run_between_remotes_that_have_requests_for_them_needs_no_stream() {
    let (from, there, back) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(from.path());
    let helper = |dir: &Path| -> Tree {
        let remote: Arc<dyn Remote> = Arc::new(Local::open(dir).unwrap());
        Tree::remote(remote)
    };
    let none = StreamsByName::default;
    let pushed = run(local(from.path()), helper(there.path()), none()).await;
    assert_same(there.path(), &pushed);
    let pulled = run(helper(there.path()), local(back.path()), none()).await;
    assert_same(back.path(), &pulled);
    assert_eq!(pulled.counts.skipped, 0);
    let mode = |top: &Path| fs::metadata(top.join("d/f")).unwrap().permissions();
    assert_eq!(mode(back.path()), mode(from.path()));
    let again = run(helper(there.path()), local(back.path()), none()).await;
    assert_eq!(again.counts.unchanged, again.counts.entries, "{again:#?}");
}

#[tokio::test]
async fn devices_are_made_where_there_is_a_request_for_them() {
    use rustix::fs::{FileType, Mode, makedev, mknodat};
    use std::os::unix::fs::MetadataExt;
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (kind, perm) = (FileType::CharacterDevice, Mode::RUSR);
    let path = from.path().join("device");
    if mknodat(rustix::fs::CWD, &path, kind, perm, makedev(1, 5)).is_err() {
        // Not permitted here.
        return;
    }
    let target = Tree::remote(Arc::new(Local::open(to.path()).unwrap()));
    for copied in [1, 0] {
        let outcome = run(local(from.path()), target.clone(), StreamsByName::default()).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(outcome.counts.files_copied, copied);
        let made = fs::metadata(to.path().join("device")).unwrap();
        assert_eq!((made.rdev(), made.mode() & 0o7777), (makedev(1, 5), 0o400));
    }
}

/// A default access list would change the entries that come after its directory.
#[tokio::test]
async fn a_pushed_file_gets_no_rights_by_a_default_access_list() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/f"), "content").unwrap();
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [entry(1, 7, none), entry(2, 6, 12345), entry(4, 5, none), entry(16, 7, none)];
    let list = [&2_u32.to_le_bytes()[..], &list.concat(), &entry(32, 0, none)].concat();
    let name = "system.posix_acl_default";
    if !is_root() || lsetxattr(from.path().join("d"), name, &list, XattrFlags::empty()).is_err() {
        eprintln!("skipped: no access lists, or not root");
        return;
    }
    let outcome = push(from.path(), to.path(), &LocalShell::plain()).await;
    let problems: Vec<_> = outcome.problems.iter().map(|it| it.to_string()).collect();
    assert!(problems.len() == 1 && problems[0].starts_with("d: "), "{problems:?}");
    assert_eq!(get(&to.path().join("d/f"), "system.posix_acl_access"), None);
    assert_eq!(fs::read(to.path().join("d/f")).unwrap(), b"content");
}

/// As a pool of gateways, of which one has no helper.
#[tokio::test]
async fn a_server_that_cannot_report_attributes_is_a_problem() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a", "b"] {
        fs::write(from.path().join(name), "content").unwrap();
        set(&from.path().join(name), "user.note", name);
    }
    let source = FaultyRemote::new(Arc::new(Local::open(from.path()).unwrap()));
    source.fail(Call::Listxattr, 1, Errno::EOPNOTSUPP);
    let outcome = run(Tree::remote(Arc::new(source)), local(to.path()), StreamsByName::default());
    let outcome = outcome.await;
    assert!(outcome.problems.len() == 1 && !outcome.is_complete(), "{outcome:#?}");
    assert_eq!(outcome.counts.files_copied, 1);
}

/// As FUSE file systems of a server with the helper, which does not identify their files.
#[tokio::test]
async fn a_file_system_without_attributes_is_no_problem() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a", "b"] {
        fs::write(from.path().join(name), "content").unwrap();
    }
    let source = FaultyRemote::new(Arc::new(Local::open(from.path()).unwrap()));
    source.set_reads_files(true);
    source.fail_always(Call::Listxattr, Errno::EOPNOTSUPP);
    let source = Arc::new(source);
    let outcome = run(Tree::remote(source.clone()), local(to.path()), StreamsByName::default());
    let outcome = outcome.await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(outcome.counts.files_copied, 2);
    assert!(source.calls(Call::Listxattr) >= 2);
}

const NOTE: &str = "user.note";

/// Files with an attribute, and one in a directory that is at the target already.
fn few(from: &Path, to: &Path) {
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::create_dir(from.join("d")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    for name in ["a", "b", "d/x"] {
        fs::write(from.join(name), name).unwrap();
        set(&from.join(name), NOTE, name);
    }
    for dir in [from.join("d"), to.join("d")] {
        File::open(dir).unwrap().set_modified(time).unwrap();
    }
}

fn names_with_notes(dir: &Path) -> Vec<&'static str> {
    let has_note = |name: &&str| get(&dir.join(name), NOTE).as_deref() == Some(*name);
    ["a", "b", "d/x"].into_iter().filter(has_note).collect()
}

fn with_users_attributes(delete: bool) -> Options {
    Options { xattrs: Xattrs::Users, delete, owners: Owners::Leave, ..Options::default() }
}

async fn push_few(from: &Path, to: &Path, shell: &Arc<LocalShell>, delete: bool) -> Outcome {
    let options = with_users_attributes(delete);
    let mut place = place(to, shell);
    place.streaming.options = options.clone();
    let by_name = StreamsByName::push(1, &place);
    run_with(options, local(from), Tree::remote(plain(to).await), by_name).await
}

/// Only what tar names has failed, with tar's reason. The rest has been copied.
#[tokio::test]
async fn one_entry_that_tar_refuses_does_not_keep_out_the_others() {
    let (from, to, programs) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    few(from.path(), to.path());
    let shell = LocalShell::with_tar(programs.path(), "rmdir d && touch d; exec $real \"$@\"");
    let outcome = push_few(from.path(), to.path(), &shell, false).await;
    assert_eq!(names_with_notes(to.path()), ["a", "b"], "{outcome:#?}");
    let problems: Vec<String> = outcome.problems.iter().map(ToString::to_string).collect();
    let reason = "d/x: not copied by the server's tar: Cannot open: Not a directory";
    assert!(problems.iter().any(|problem| problem == reason), "{problems:?}");
    assert_eq!(outcome.counts.files_copied, 2);
    for entry in fs::read_dir(to.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains(".sshoal-"), "{name}");
    }
}

/// A stream brings the file, since it may have attributes; then it cannot get its name.
#[tokio::test]
async fn a_file_with_a_full_directory_in_the_way_leaves_nothing_there() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("name"), "content").unwrap();
    fs::create_dir_all(to.path().join("name/in")).unwrap();
    let outcome = push_few(from.path(), to.path(), &LocalShell::plain(), false).await;
    assert_eq!(outcome.counts.failed, 1, "{outcome:#?}");
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
}

/// A directory where the source has a file that only a stream copies.
#[tokio::test]
async fn a_directory_in_the_way_is_replaced() {
    for (pushes, is_empty) in [(true, true), (true, false), (false, true), (false, false)] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        few(from.path(), to.path());
        fs::create_dir(to.path().join("a")).unwrap();
        if !is_empty {
            fs::write(to.path().join("a/z"), "").unwrap();
        }
        let shell = LocalShell::plain();
        let outcome = match pushes {
            true => push_few(from.path(), to.path(), &shell, !is_empty).await,
            false => {
                let options = with_users_attributes(!is_empty);
                let mut place = place(from.path(), &shell);
                place.streaming.options = options.clone();
                let by_name = StreamsByName::pull(vec![Some(place)]);
                let source = Tree::remote(plain(from.path()).await);
                run_with(options, source, local(to.path()), by_name).await
            }
        };
        let what = format!("pushes: {pushes}, empty: {is_empty}, {outcome:#?}");
        assert!(outcome.is_complete(), "{what}");
        assert_eq!(names_with_notes(to.path()), ["a", "b", "d/x"], "{what}");
    }
}
