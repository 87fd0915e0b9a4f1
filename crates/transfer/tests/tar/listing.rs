//! A login that lists a tree before it serves SFTP: what it tells is what SFTP would, or nothing.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base::{Attr, Name, Remote, RemotePath, Timestamp};
use host::{ConnectError, Connection, Connector, Host, Role};
use local::Local;
use testkit::{Call, FaultyRemote};
use transfer::tar::listing::{self, Listing, SftpLogin};
use transfer::tar::{Declined, ReusableLogin, Streamed};
use transfer::{Job, Options, Outcome, Running, Shell, ShellError, Source, Tree};

use super::by_name::places;
use super::round_trip::push_of;
use super::shell::{LocalShell, streaming};

/// A shell that begins the commands in its own way.
struct Beginning {
    shell: Arc<LocalShell>,
    with: String,
}

#[async_trait]
impl Shell for Beginning {
    async fn start(&self, command: &[u8]) -> Result<Running, ShellError> {
        let rest = command.strip_prefix(b"exec /bin/sh").expect("so they begin");
        self.shell.start(&[self.with.as_bytes(), rest].concat()).await
    }
}

fn beginning(with: &str) -> Arc<dyn Shell> {
    Arc::new(Beginning { shell: LocalShell::plain(), with: with.to_owned() })
}

fn plain() -> Arc<dyn Shell> {
    LocalShell::plain()
}

/// With `script` in the place of `find`; `$real` is the path of the true one.
fn with_find(programs: &Path, script: &str) -> Arc<dyn Shell> {
    let fake = programs.join("find");
    sandbox::write_program(&fake, format!("#!/bin/sh\nreal=/usr/bin/find\n{script}\n")).unwrap();
    let programs = Some(programs.to_owned());
    Arc::new(LocalShell { programs, instead: None, umask: None })
}

/// One who is not root, for whom modes count: `games`, since the server wants an account.
fn ordinary() -> Arc<dyn Shell> {
    match rustix::process::geteuid().is_root() {
        true => beginning("cd /; exec setpriv --reuid 5 --regid 60 --clear-groups /bin/sh"),
        false => plain(),
    }
}

async fn log_in(shell: &Arc<dyn Shell>, top: &Path) -> Option<SftpLogin> {
    let directory = top.as_os_str().as_bytes();
    let left = listing::log_in(shell, directory, &RemotePath::root(), &Options::default()).await;
    left.expect("it lets everybody in")
}

type Directories = BTreeMap<RemotePath, Vec<(Name, Attr)>>;

/// Each directory that was told is told whole.
#[track_caller]
fn assert_told(told: Directories, all: &Directories) {
    for (path, entries) in told {
        assert_eq!(entries, all[&path], "{path:?}");
    }
}

fn directories(listing: &Listing) -> Directories {
    compared(listing.directories.iter().cloned().collect())
}

/// Without what listing itself changes.
fn compared(mut all: Directories) -> Directories {
    for (_, attr) in all.values_mut().flatten().filter(|(_, attr)| attr.is_dir()) {
        attr.atime = Timestamp::default();
    }
    all
}

/// All that is at `top`, in whole seconds.
async fn looked(top: &Path) -> Directories {
    let local = Local::open(top).unwrap();
    let mut all = Directories::new();
    let mut todo = vec![RemotePath::root()];
    while let Some(path) = todo.pop() {
        let dh = local.opendir(&path).await.unwrap();
        let mut entries = Vec::new();
        while let Some(batch) = local.readdir(dh).await.unwrap() {
            for entry in batch {
                let name = path.join(&entry.name);
                let attr = local.lstat(&name).await.unwrap();
                if attr.is_dir() {
                    todo.push(name);
                }
                let second = |time: Timestamp| Timestamp::from_secs(time.secs);
                let (mtime, atime) = (second(attr.mtime), second(attr.atime));
                entries.push((entry.name, Attr { mtime, atime, ..attr }));
            }
        }
        local.closedir(dh);
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.insert(path, entries);
    }
    compared(all)
}

/// Gives a session that is there to who asks first.
struct Once(Mutex<Option<Running>>);

#[async_trait]
impl Connector for Once {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let running = self.0.lock().unwrap().take();
        let Some(Running { stdin, stdout, exit }) = running else {
            return Err(ConnectError { message: "there is one".to_owned(), permanent: true });
        };
        let exit = Mutex::new(exit);
        let explain = move || {
            // What runs ends when this is dropped.
            let _kept = &exit;
            None
        };
        Ok(Connection::from_halves(stdout, stdin, Box::new(explain)))
    }
}

/// The remote that the login serves, with its calls counted.
async fn served(left: Running, base: &Path) -> Arc<FaultyRemote<Host>> {
    let base = base.as_os_str().as_bytes().to_vec();
    let config = host::Config { base, max_conns: 1, ..host::Config::default() };
    let host = Host::connect(Arc::new(Once(Mutex::new(Some(left)))), config).await.unwrap();
    Arc::new(FaultyRemote::new(Arc::new(host)))
}

#[tokio::test]
async fn every_shell_lists_what_sftp_would_and_serves_it_then() {
    let (tree, _) = places();
    std::os::unix::net::UnixListener::bind(tree.path().join("socket")).unwrap();
    let mut touch = std::process::Command::new("touch");
    let touched = touch.args(["-d", "@-5"]).arg(tree.path().join("sub")).status();
    assert!(touched.unwrap().success());
    let all = looked(tree.path()).await;
    let shells = ["exec /bin/sh", "exec bash", "exec dash", "exec busybox sh"];
    let present = shells.iter().filter(|shell| {
        let program = shell.split(' ').nth(1).unwrap();
        std::process::Command::new(program).args(["-c", ":"]).output().is_ok()
    });
    for shell in present {
        let left = log_in(&beginning(shell), tree.path()).await.expect("there is a server");
        assert_eq!(directories(&left.listing.unwrap()), all, "{shell}");
        let remote = served(left.running, tree.path()).await;
        assert!(remote.lstat(&RemotePath::root()).await.unwrap().is_dir(), "{shell}");
    }
}

#[tokio::test]
async fn what_is_no_directory_is_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::write(dir.path().join("real/x"), "x").unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
    let directory = dir.path().as_os_str().as_bytes();
    for (name, listed) in [("real", Some(1)), ("file", None), ("link", None), ("none", None)] {
        let top = RemotePath::parse(name.as_bytes()).unwrap();
        let left = listing::log_in(&plain(), directory, &top, &Options::default()).await;
        let left = left.unwrap().unwrap();
        let count = left.listing.map(|listing| listing.directories.len());
        assert_eq!(count, listed, "{name}");
        served(left.running, dir.path()).await;
    }
    // Where the directory is not there nothing is listed in its stead.
    let left = log_in(&plain(), &dir.path().join("none")).await.unwrap();
    assert!(left.listing.is_none());
}

#[tokio::test]
async fn what_find_cannot_tell_is_left_to_sftp() {
    let (tree, _) = places();
    let all = looked(tree.path()).await;
    let rest = "\"$@\"";
    let complaints = [
        // None, and busybox's, which knows no -printf.
        "echo 'find: not found' >&2; exit 127".to_owned(),
        "exec busybox find \"$@\"".to_owned(),
        // A complaint in the midst, whatever the status is.
        format!("$real {rest} | head -c 700; echo 'find: sub: denied' >&2; exit 0"),
        format!("echo 'find: sub: denied' >&2; $real {rest}; kill -9 $$"),
        format!("$real {rest}; exit 1"),
        // Something else.
        "printf 'f a\\0'".to_owned(),
    ];
    for script in complaints {
        let programs = tempfile::tempdir().unwrap();
        let left = log_in(&with_find(programs.path(), &script), tree.path()).await;
        let left = left.unwrap_or_else(|| panic!("{script}: the login is lost"));
        assert!(left.listing.is_none(), "{script}: {:?}", left.listing);
        served(left.running, tree.path()).await;
    }
    // One that hangs has told a part.
    let programs = tempfile::tempdir().unwrap();
    let script = format!("$real {rest} | head -c 1000; exec sleep 60");
    let left = log_in(&with_find(programs.path(), &script), tree.path()).await.unwrap();
    let told = directories(&left.listing.unwrap());
    assert!(!told.is_empty(), "1,000 bytes are more than one directory");
    assert_told(told, &all);
    served(left.running, tree.path()).await;
}

#[tokio::test]
async fn a_tree_that_is_too_large_is_listed_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let long = "n".repeat(200);
    for (below, files) in [("small/one", 3), ("large", 10_000), ("small/two", 3)] {
        let below = dir.path().join(below);
        fs::create_dir_all(&below).unwrap();
        for file in 0..files {
            fs::write(below.join(format!("{long}{file}")), "").unwrap();
        }
    }
    let all = looked(dir.path()).await;
    let mut filter = transfer::Filter::builder();
    filter.exclude("something");
    let options = Options { filter: filter.build().unwrap(), ..Options::default() };
    let directory = dir.path().as_os_str().as_bytes();
    let left = listing::log_in(&plain(), directory, &RemotePath::root(), &options).await;
    let left = left.unwrap().unwrap();
    let told = directories(&left.listing.unwrap());
    assert!(told.len() < all.len());
    assert_told(told, &all);
    served(left.running, dir.path()).await;
}

#[tokio::test]
async fn a_server_that_answers_otherwise_is_not_used() {
    let tree = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    let program = with_find(programs.path(), "cat /bin/sh");
    assert!(log_in(&program, tree.path()).await.is_none());
    for answer in [
        "sshoal-1 bare\\n",
        "sshoal-1 bare sftp\\nno end",
        "sshoal-1 bare sftp\\n\\000\\000whole\\nand more",
        "sshoal-1 bare sftp\\n\\000\\000a long word that is none\\n",
        "This service allows sftp connections only.\\n",
    ] {
        let shell: Arc<dyn Shell> = LocalShell::instead(&format!("printf '{answer}'"));
        assert!(log_in(&shell, tree.path()).await.is_none(), "{answer}");
    }
    let endless = LocalShell::instead("echo sshoal-1 bare sftp; exec cat /dev/zero");
    let shell: Arc<dyn Shell> = endless;
    assert!(log_in(&shell, tree.path()).await.is_none());
}

/// busybox's `timeout` leaves a watcher behind that keeps the answer open for a second.
#[tokio::test]
async fn a_timeout_that_is_not_gnus_is_not_used() {
    let (tree, _) = places();
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("timeout");
    sandbox::write_program(
        &program,
        "#!/bin/sh\n[ \"$1\" != --version ] || exit 1\nexec sleep 60\n",
    )
    .unwrap();
    let shell = with_find(programs.path(), "exec $real \"$@\"");
    let left = log_in(&shell, tree.path()).await.unwrap();
    assert!(left.listing.is_none());
    served(left.running, tree.path()).await;
}

#[tokio::test]
async fn a_push_that_finds_something_has_it_listed() {
    let (tree, there) = places();
    fs::create_dir_all(there.path().join("copy/sub dir")).unwrap();
    let push = push_of(tree.path(), there.path(), "copy");
    let mut streaming = streaming(LocalShell::plain(), Options::default());
    let reusable_login = ReusableLogin::with_listing();
    streaming.reusable_login = Some(reusable_login.clone());
    let told = streaming.push(&push).await.unwrap();
    assert!(matches!(told, Streamed::Declined(Declined::Occupied)), "{told:?}");
    let left = reusable_login.take().expect("there is a server");
    let all = looked(&there.path().join("copy")).await;
    assert_eq!(directories(&left.listing.unwrap()), all);
    served(left.running, there.path()).await;
    // Where there is nothing the stream goes on as ever.
    let fresh = push_of(tree.path(), there.path(), "fresh");
    let told = streaming.push(&fresh).await.unwrap();
    assert!(matches!(told, Streamed::Whole(_)), "{told:?}");
    assert!(reusable_login.take().is_none());
}

async fn run(source: Tree, target: Tree, options: Options) -> Outcome {
    let source = Source { tree: source, to: RemotePath::root() };
    let job = Job { sources: vec![source], target, options };
    let run = transfer::Run::start(job, Arc::new(transfer::Silent)).await.unwrap();
    transfer::engine::drive(run, &mut Default::default()).await
}

/// The login's tree, with what it has listed.
async fn tree_of(left: SftpLogin, base: &Path) -> (Tree, Arc<FaultyRemote<Host>>) {
    let remote = served(left.running, base).await;
    let mut tree = Tree::remote(remote.clone());
    tree.ahead = left.listing.map(|listing| Arc::new(listing.ahead(&RemotePath::root())));
    (tree, remote)
}

/// `rsync`-like copy by this machine.
fn copied(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn what_is_unchanged_is_not_listed_over_sftp() {
    let (tree, near) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (peer, here) = (tree.path().join("tree"), near.path().join("tree"));
    for directory in 0..30 {
        let path = peer.join(format!("dir {directory}/sub"));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file\n"), "content").unwrap();
    }
    copied(&peer, &here);
    let local = |path: &Path| Tree::local(Arc::new(Local::open(path).unwrap()), path);
    for is_push in [false, true] {
        let left = log_in(&plain(), &peer).await.unwrap();
        let (there, remote) = tree_of(left, &peer).await;
        let options = Options { delete: true, ..Options::default() };
        let outcome = match is_push {
            true => run(local(&here), there, options).await,
            false => run(there, local(&here), options).await,
        };
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(outcome.counts.unchanged, 91, "{outcome:#?}");
        assert_eq!(remote.calls(Call::Opendir), 0, "push: {is_push}");
        assert!(remote.round_trips() < 5, "push: {is_push}, {}", remote.round_trips());
    }
    // What has changed is found by it all the same, and so are what is left of a copy and what is
    // to be deleted.
    fs::write(peer.join("dir 3/sub/new"), "new").unwrap();
    fs::remove_dir_all(peer.join("dir 4")).unwrap();
    let left = log_in(&plain(), &peer).await.unwrap();
    let (there, remote) = tree_of(left, &peer).await;
    let options = Options { delete: true, ..Options::default() };
    let outcome = run(there, local(&here), options).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((outcome.counts.files_copied, outcome.counts.deleted), (1, 3), "{outcome:#?}");
    assert_eq!(remote.calls(Call::Opendir), 0);
    assert_eq!(looked(&peer).await.keys().count(), looked(&here).await.keys().count());
}

#[tokio::test]
async fn what_cannot_be_read_there_is_deleted_nowhere() {
    let (tree, near) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::set_permissions(tree.path(), Permissions::from_mode(0o755)).unwrap();
    let (peer, here) = (tree.path().join("tree"), near.path().join("tree"));
    fs::create_dir_all(peer.join("locked")).unwrap();
    fs::write(peer.join("locked/kept"), "kept").unwrap();
    fs::write(peer.join("open"), "open").unwrap();
    copied(&peer, &here);
    fs::write(here.join("gone there"), "").unwrap();
    let locked = peer.join("locked");
    // Neither may names be read nor attributes be seen, or one of them. Where there are names
    // without attributes, OpenSSH's server lists nothing.
    for mode in [0o000, 0o111, 0o444] {
        fs::set_permissions(&locked, Permissions::from_mode(mode)).unwrap();
        let left = log_in(&ordinary(), &peer).await.expect("a login");
        assert!(left.listing.is_none(), "{mode:o}: {:?}", left.listing);
        let (there, _) = tree_of(left, &peer).await;
        let target = Tree::local(Arc::new(Local::open(&here).unwrap()), &here);
        let outcome = run(there, target, Options { delete: true, ..Options::default() }).await;
        fs::set_permissions(&locked, Permissions::from_mode(0o755)).unwrap();
        assert!(!outcome.is_complete() && outcome.counts.deleted == 0, "{outcome:#?}");
        assert_eq!(outcome.problems.len(), 1, "{outcome:#?}");
        assert_eq!(fs::read(here.join("locked/kept")).unwrap(), b"kept");
        assert!(here.join("gone there").exists());
    }
}
