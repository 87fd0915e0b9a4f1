//! Directories that are renamed through this mount while calls for names below them are in flight.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno, RenameMode, Result};
use bytes::Bytes;
use testkit::dice::Dice;
use testkit::interleave::{Interleave, seeds};
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::sync::Mutex;
use tokio::time::timeout;
use vfs::{Config, Entry, Ino, LookupResult, OpenRequest, Vfs};

use crate::stage::{Mount, list, mounted};

const LONG_AGO: i64 = 1_000_000_000;

/// Longer than anything here takes on the paused clock.
const A_WHILE: Duration = Duration::from_millis(100);

/// A mount of the files `d/f` and `new/f`.
fn two_directories() -> Mount {
    let mount = mounted(Config { login: Some((0, 0)), ..Config::default() });
    for dir in ["d", "new"] {
        mount.remote.put_dir(dir);
        put(&mount.remote, &format!("{dir}/f"), &format!("of {dir}"));
    }
    mount.remote.put_symlink("d/l", "f");
    mount
}

fn put(remote: &MemRemote, path: &str, content: &str) {
    remote.put_file(path, content);
    remote.set_mtime(path, LONG_AGO);
}

async fn look(vfs: &Vfs, parent: Ino, name: &str) -> Entry {
    match vfs.lookup(parent, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{name} is absent"),
    }
}

async fn rename(vfs: &Vfs, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    vfs.rename(from, to, RenameMode::Replace).await
}

/// Whether `future` still waits when all other tasks are idle.
async fn waits<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    timeout(A_WHILE, future).await.is_err()
}

fn plain(access: Access) -> OpenRequest {
    OpenRequest::plain(access)
}

fn mode(perm: u32) -> AttrChange {
    AttrChange { perm: Some(perm), ..AttrChange::default() }
}

/// A change of a name in `d` that waits for something before its request changes the name in that
/// directory, and not in another one that gets the path of `d` meanwhile.
#[tokio::test(start_paused = true)]
async fn a_name_is_changed_in_its_own_directory() {
    for call in 0..3 {
        let Mount { remote, faulty, vfs } = two_directories();
        let (dir, _) = (look(&vfs, Ino::ROOT, "d").await, look(&vfs, Ino::ROOT, "new").await);
        let file = look(&vfs, dir.ino, "f").await;
        // The second open is deferred, and sent before the name changes.
        for _ in 0..2 {
            vfs.open(file.ino, plain(Access::Read)).await.map(|it| vfs.release(it.handle)).unwrap();
        }
        vfs.open(file.ino, plain(Access::Read)).await.unwrap();
        let gate = faulty.hold(Call::Open, 1);
        let mut change = Box::pin(async {
            match call {
                0 => vfs.unlink(dir.ino, b"f").await,
                1 => rename(&vfs, (dir.ino, "f"), (dir.ino, "g")).await,
                _ => {
                    let request = OpenRequest { truncate: true, ..plain(Access::Write) };
                    vfs.create(dir.ino, b"f", 0o644, false, request).await.map(drop)
                }
            }
        });
        tokio::select! {
            biased;
            _ = &mut change => panic!("it did not wait"),
            () = gate.arrived() => {}
        }
        let mut moves = Box::pin(async {
            rename(&vfs, (Ino::ROOT, "d"), (Ino::ROOT, "old")).await.unwrap();
            rename(&vfs, (Ino::ROOT, "new"), (Ino::ROOT, "d")).await.unwrap();
        });
        let moving = waits(moves.as_mut()).await;
        gate.release();
        change.await.unwrap();
        if moving {
            moves.await;
        }
        assert_eq!(remote.content("d/f"), b"of new", "call {call}");
        match call {
            0 => assert!(!remote.exists("old/f")),
            1 => assert_eq!(remote.content("old/g"), b"of d"),
            _ => assert_eq!(remote.content("old/f"), b""),
        }
    }
}

/// While the rename of a directory is in flight, its path leads nowhere, or elsewhere. Calls for
/// names below it succeed as they would before or after the rename, and nothing is taken to be
/// absent.
#[tokio::test(start_paused = true)]
async fn names_below_a_directory_that_is_being_renamed_are_found() {
    for call in 0..12 {
        let Mount { remote, faulty, vfs } = two_directories();
        let (dir, _) = (look(&vfs, Ino::ROOT, "d").await, look(&vfs, Ino::ROOT, "new").await);
        let (file, link) = (look(&vfs, dir.ino, "f").await, look(&vfs, dir.ino, "l").await);
        let listing = vfs.opendir(dir.ino).await.unwrap();
        let known = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
        vfs.release(known.handle);
        let opened = vfs.open(file.ino, plain(Access::Read)).await.unwrap();
        if call != 8 {
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        let gate = faulty.hold_answer(Call::Rename, 1);
        let mut renaming = Box::pin(rename(&vfs, (Ino::ROOT, "d"), (Ino::ROOT, "e")));
        tokio::select! {
            biased;
            _ = &mut renaming => panic!("it did not wait"),
            () = gate.arrived() => {}
        }
        let mut result = Box::pin(async {
            match call {
                0 => drop(look(&vfs, dir.ino, "f").await),
                1 => drop(vfs.getattr(file.ino).await?),
                2 => drop(vfs.setattr(file.ino, mode(0o600), None).await?),
                3 => drop(vfs.open(file.ino, plain(Access::Write)).await?),
                4 => assert_eq!(list(&vfs, dir.ino, false).await.len(), 2),
                5 => assert_eq!(vfs.readlink(link.ino).await?, b"f"),
                6 => vfs.unlink(dir.ino, b"l").await?,
                7 => rename(&vfs, (dir.ino, "l"), (dir.ino, "m")).await?,
                8 => assert_eq!(vfs.read(opened.handle, 0, 100).await?.to_vec(), b"of d"),
                9 => drop(vfs.link(file.ino, Ino::ROOT, b"second").await?),
                10 => drop(vfs.create(dir.ino, b"n", 0o644, true, plain(Access::Write)).await?),
                _ => {
                    let mut names = crate::stage::Names::default();
                    vfs.readdir(listing, 0, false, &mut names).await?;
                    assert_eq!(names.entries.len(), 2);
                }
            }
            Ok::<(), Errno>(())
        });
        let waiting = waits(result.as_mut()).await;
        gate.release();
        renaming.await.unwrap();
        if waiting {
            result.await.unwrap_or_else(|error| panic!("call {call}: {error}"));
        }
        assert_eq!(remote.exists("e/l"), !matches!(call, 6 | 7), "call {call}");
        assert_eq!(look(&vfs, dir.ino, "f").await.ino, file.ino, "call {call}");
    }
}

/// A6: an open that is overtaken by renames of directories gets its own file, although size and
/// mtime of the file that has its path now are the same.
#[tokio::test(start_paused = true)]
async fn a6_a_file_is_opened_in_its_own_directory() {
    let Mount { remote, faulty, vfs } = two_directories();
    put(&remote, "new/f", "OF D");
    let (dir, _) = (look(&vfs, Ino::ROOT, "d").await, look(&vfs, Ino::ROOT, "new").await);
    let file = look(&vfs, dir.ino, "f").await;
    let gate = faulty.hold(Call::Open, 1);
    let mut opening = Box::pin(vfs.open(file.ino, plain(Access::Read)));
    assert!(waits(opening.as_mut()).await);
    rename(&vfs, (Ino::ROOT, "d"), (Ino::ROOT, "old")).await.unwrap();
    rename(&vfs, (Ino::ROOT, "new"), (Ino::ROOT, "d")).await.unwrap();
    gate.release();
    let opened = opening.await.unwrap();
    assert_eq!(vfs.read(opened.handle, 0, 100).await.unwrap().to_vec(), b"of d");
}

/// A rename of a directory waits for the changes of names below it, also if it is given up.
#[tokio::test(start_paused = true)]
async fn a_rename_of_a_directory_waits_for_changes_below_it() {
    let Mount { remote, faulty, vfs } = two_directories();
    let dir = look(&vfs, Ino::ROOT, "d").await;
    let gate = faulty.hold_answer(Call::Mkdir, 1);
    let mut change = Box::pin(vfs.mkdir(dir.ino, b"sub", 0o755));
    assert!(waits(change.as_mut()).await);
    let mut renaming = Box::pin(rename(&vfs, (Ino::ROOT, "d"), (Ino::ROOT, "e")));
    assert!(waits(renaming.as_mut()).await);
    assert_eq!(faulty.calls(Call::Rename), 0);
    // A later change below it waits for the rename, so that the rename is not put off for ever.
    let mut later = Box::pin(vfs.create(dir.ino, b"n", 0o644, true, plain(Access::Write)));
    assert!(waits(later.as_mut()).await);
    // Elsewhere nothing waits.
    vfs.mkdir(Ino::ROOT, b"x", 0o755).await.unwrap();
    drop(renaming);
    let (_, opened) = later.await.unwrap();
    vfs.write(opened.handle, 0, Bytes::from_static(b"content")).await.unwrap();
    vfs.flush(opened.handle).await.unwrap();
    assert_eq!(remote.content("d/n"), b"content");
    let mut renaming = Box::pin(rename(&vfs, (Ino::ROOT, "d"), (Ino::ROOT, "e")));
    assert!(waits(renaming.as_mut()).await);
    gate.release();
    change.await.unwrap();
    renaming.await.unwrap();
    assert!(remote.exists("e/sub"));
}

/// Files of a directory, as its programs know them. Locked by each call, as in the kernel, which
/// does not lock the directories above.
type Files = Mutex<BTreeMap<&'static str, String>>;

const STEPS: usize = 12;

/// Two directories swap their names: fewer renames in all than a call has attempts.
async fn swap(vfs: &Vfs, dice: &mut Dice) {
    for _ in 0..2 {
        for (from, to) in [("one", "t"), ("two", "one"), ("t", "two")] {
            rename(vfs, (Ino::ROOT, from), (Ino::ROOT, to)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(dice.below(2000))).await;
    }
}

/// A program that uses the files of one directory.
async fn program(vfs: &Vfs, dir: Ino, files: &Files, dice: &mut Dice) {
    for step in 0..STEPS {
        let (name, other) = dice.pick(&[("a", "b"), ("b", "a")]);
        let mut files = files.lock().await;
        let mut looked_up = vfs.lookup(dir, name.as_bytes()).await;
        if looked_up == Err(Errno::ESTALE) {
            // The kernel walks the path again.
            looked_up = vfs.lookup(dir, name.as_bytes()).await;
        }
        let found = match looked_up {
            Ok(LookupResult::Found(entry)) => Some(entry.ino),
            Ok(LookupResult::Absent(_)) | Err(Errno::ENOENT) => None,
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(found.is_some(), files.contains_key(name), "{name}");
        match (found, dice.below(6)) {
            (None, _) => {
                let content = format!("{dir:?} {step} {}", dice.any());
                let request = plain(Access::Write);
                let made = vfs.create(dir, name.as_bytes(), 0o644, true, request).await;
                let (_, opened) = made.unwrap();
                vfs.write(opened.handle, 0, Bytes::from(content.clone())).await.unwrap();
                vfs.flush(opened.handle).await.unwrap();
                vfs.release(opened.handle);
                files.insert(name, content);
            }
            (_, 0) => {
                vfs.unlink(dir, name.as_bytes()).await.unwrap();
                files.remove(name);
            }
            (_, 1) => {
                rename(vfs, (dir, name), (dir, other)).await.unwrap();
                let content = files.remove(name).unwrap();
                files.insert(other, content);
            }
            (Some(file), 2) => {
                let size = AttrChange { size: Some(3), ..mode(0o600) };
                vfs.setattr(file, size, None).await.unwrap();
                files.get_mut(name).unwrap().truncate(3);
            }
            (_, 3) => {
                let listed = list(vfs, dir, false).await;
                assert_eq!(listed.len(), files.len() + 1);
            }
            (Some(file), _) => {
                let opened = vfs.open(file, plain(Access::Read)).await.unwrap();
                let read = vfs.read(opened.handle, 0, 1000).await.unwrap().to_vec();
                assert_eq!(read, files[name].as_bytes());
                vfs.release(opened.handle);
            }
        }
    }
}

/// In any order of requests and answers, each call uses the file of its own directory, and none
/// waits for ever.
#[tokio::test(start_paused = true)]
async fn files_stay_in_their_directories_in_any_order_of_calls() {
    for seed in seeds(60, 3000) {
        let remote = Arc::new(MemRemote::new());
        for dir in ["one", "two"] {
            remote.put_dir(dir);
            remote.put_file(&format!("{dir}/mark"), dir);
        }
        let link = Arc::new(FaultyRemote::new(remote.clone()));
        let mut play = Interleave::new(seed);
        play.client("mount", [link.clone()], async move {
            let vfs = Vfs::new(link, Config { login: Some((0, 0)), ..Config::default() });
            let dirs = (look(&vfs, Ino::ROOT, "one").await, look(&vfs, Ino::ROOT, "two").await);
            let (one, two) = Default::default();
            let dice = |number| Dice::of_part(seed, "moves", number);
            let (mut first, mut second, mut third, mut fourth) =
                (dice(0), dice(1), dice(2), dice(3));
            tokio::join!(
                swap(&vfs, &mut first),
                program(&vfs, dirs.0.ino, &one, &mut second),
                program(&vfs, dirs.0.ino, &one, &mut third),
                program(&vfs, dirs.1.ino, &two, &mut fourth),
            );
            [("one", one.into_inner()), ("two", two.into_inner())]
        });
        let files = play.run(|_| {}).await.remove(0).expect("it was not killed");
        for (dir, files) in files {
            let at = ["one", "two"]
                .into_iter()
                .find(|at| remote.content(&format!("{at}/mark")) == dir.as_bytes());
            let at = at.expect("it has one of the names");
            assert_eq!(remote.names(at).len(), files.len() + 1, "seed {seed}, {dir}");
            for (name, content) in files {
                assert_eq!(remote.content(&format!("{at}/{name}")), content.as_bytes());
            }
        }
    }
}
