//! How many round trips programs wait for: their sequences of calls, over a remote in which each
//! answer takes one tick of a paused clock. A call that takes no tick waits for no answer.

use std::time::Duration;

use base::{Access, AttrChange, Errno, FileKind, Timestamp};
use bytes::Bytes;
use testkit::{Call, MemRemote};
use tokio::time::Instant;
use vfs::{Config, Entry, Ino, LookupResult, OpenRequest, Vfs};

use super::stage::{Mount, Names, list, mounted};

/// The time of one answer.
const TRIP: Duration = Duration::from_millis(1);

const LONG_AGO: i64 = 1_000_000_000;

fn config() -> Config {
    Config { login: Some((0, 0)), ..Config::default() }
}

/// The number of answers that were waited for, one after the other.
async fn waits<T>(operation: impl Future<Output = T>) -> (T, u128) {
    let start = Instant::now();
    let result = operation.await;
    (result, start.elapsed().as_micros().div_ceil(TRIP.as_micros()))
}

fn put(remote: &MemRemote, path: &str, content: &str) {
    remote.put_file(path, content);
    remote.set_mtime(path, LONG_AGO);
}

async fn found(vfs: &Vfs, parent: Ino, name: &str) -> Entry {
    match vfs.lookup(parent, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{name} is absent"),
    }
}

async fn absent(vfs: &Vfs, parent: Ino, name: &str) -> bool {
    matches!(vfs.lookup(parent, name.as_bytes()).await.unwrap(), LookupResult::Absent(_))
}

/// Opens, reads and closes a file.
async fn read(vfs: &Vfs, ino: Ino) -> Vec<u8> {
    let opened = vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
    let data = vfs.read(opened.handle, 0, 1 << 17).await.unwrap().to_vec();
    vfs.flush(opened.handle).await.unwrap();
    vfs.release(opened.handle);
    data
}

/// The order in which a program visits a directory.
#[derive(Clone, Copy, Debug)]
enum Order {
    Listing,
    Name,
    Number,
}

const ORDERS: [Order; 3] = [Order::Listing, Order::Name, Order::Number];

/// As tar does, in any order: the whole directory, each file read, subdirectories entered at their
/// position.
async fn walk(vfs: &Vfs, dir: Ino, reads: bool, order: Order) -> usize {
    let mut entries = list(vfs, dir, true).await;
    match order {
        Order::Listing => {}
        Order::Name => entries.sort_by(|one, other| one.0.cmp(&other.0)),
        Order::Number => entries.sort_by_key(|entry| entry.2.unwrap().stat.number),
    }
    let mut files = 0;
    for (name, kind, entry) in entries {
        let name = String::from_utf8(name).unwrap();
        let entry = match entry {
            Some(entry) => entry,
            None => found(vfs, dir, &name).await,
        };
        if kind == FileKind::Directory {
            files += Box::pin(walk(vfs, entry.ino, reads, order)).await;
        } else {
            files += 1;
            if reads {
                assert_eq!(read(vfs, entry.ino).await, name.as_bytes(), "{name}");
            }
        }
    }
    files
}

/// A tree of 1,000 files in 10 directories, some below others.
fn tree(remote: &MemRemote) {
    for index in 0..1000 {
        let dir = index % 10;
        let dir = if dir % 3 == 2 { format!("d{}/d{dir}", dir - 1) } else { format!("d{dir}") };
        put(remote, &format!("t/{dir}/f{index}"), &format!("f{index}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_read_with_few_waits() {
    for order in ORDERS {
        let Mount { remote, vfs, .. } = mounted(config());
        tree(&remote);
        remote.set_latency(Some(TRIP));
        let top = found(&vfs, Ino::ROOT, "t").await;
        let (files, waits) = waits(walk(&vfs, top.ino, true, order)).await;
        assert_eq!(files, 1000);
        // One by one they would be at least 2,020.
        assert!(waits <= 120, "{order:?}: {waits}");
        assert!(remote.calls(Call::Open) <= 1020, "{order:?}: {}", remote.calls(Call::Open));
        vfs.end_background();
        assert_eq!((vfs.handles(), remote.open_handles()), (0, 0));
    }
}

/// Reads a tree slowly: in the order of the listing, with directories in place, as tar does, or by
/// name, with directories after the files beside them, as rsync does.
async fn read_slowly(vfs: &Vfs, dir: Ino, files_first: bool, pause: Duration) -> u32 {
    let mut entries = list(vfs, dir, true).await;
    if files_first {
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        entries.sort_by_key(|(_, kind, _)| *kind == FileKind::Directory);
    }
    let mut files = 0;
    for (name, kind, entry) in entries {
        let ino = entry.unwrap().ino;
        if kind == FileKind::Directory {
            files += Box::pin(read_slowly(vfs, ino, files_first, pause)).await;
        } else {
            files += 1;
            assert_eq!(read(vfs, ino).await, name);
            tokio::time::sleep(pause).await;
        }
    }
    files
}

/// The next files are predicted where files and directories are mixed, too: no prefetched file
/// expires before it is read.
#[tokio::test(start_paused = true)]
async fn files_beside_directories_are_read_with_few_waits() {
    for files_first in [false, true] {
        let Mount { remote, vfs, .. } = mounted(config());
        for index in 0..100 {
            put(&remote, &format!("t/{index:03}"), &format!("{index:03}"));
            for below in 0..9 {
                let name = format!("f{index}-{below}");
                put(&remote, &format!("t/{index:03}d/{name}"), &name);
                put(&remote, &format!("t/{index:03}d/m/{name}"), &name);
            }
        }
        remote.set_latency(Some(TRIP));
        let top = found(&vfs, Ino::ROOT, "t").await;
        let pause = Duration::from_millis(10);
        let begun = Instant::now();
        let files = read_slowly(&vfs, top.ino, files_first, pause).await;
        assert_eq!(files, 1900);
        let waited = (begun.elapsed() - pause * files).as_millis() as u64;
        let opens = remote.calls(Call::Open);
        assert!(waited <= 500 && opens <= 1910, "{files_first}: {waited} ms, {opens} opens");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_listed_with_few_waits() {
    for order in ORDERS {
        let Mount { remote, vfs, .. } = mounted(config());
        for index in 0..400 {
            let (one, two, three) = (index % 5, index / 5 % 8, index);
            put(&remote, &format!("t/a{one}/b{two}/c{three}/f"), "f");
        }
        remote.set_latency(Some(TRIP));
        let top = found(&vfs, Ino::ROOT, "t").await;
        let (files, waits) = waits(walk(&vfs, top.ino, false, order)).await;
        assert_eq!(files, 400);
        // 446 directories, each listed in three waits: 1,338.
        assert!(waits <= 150, "{order:?}: {waits}");
        assert!(remote.calls(Call::Opendir) <= 460, "{}", remote.calls(Call::Opendir));
    }
}

/// As tar unpacks an archive.
#[tokio::test(start_paused = true)]
async fn what_is_made_is_waited_for_once() {
    let Mount { remote, vfs, .. } = mounted(config());
    remote.set_latency(Some(TRIP));
    let (made, trips) = waits(vfs.mkdir(Ino::ROOT, b"d", 0o755)).await;
    let dir = made.unwrap();
    assert_eq!((dir.stat.attr.perm, trips), (0o755, 1));
    let (made, trips) = waits(vfs.symlink(dir.ino, b"link", b"target")).await;
    assert_eq!((made.unwrap().stat.attr.size, trips), (6, 1));
    for index in 0..50 {
        let name = format!("f{index}").into_bytes();
        let ((), trips) = waits(async {
            assert!(matches!(vfs.lookup(dir.ino, &name).await.unwrap(), LookupResult::Absent(_)));
            let request = OpenRequest::plain(Access::Write);
            let (entry, opened) = vfs.create(dir.ino, &name, 0o600, true, request).await.unwrap();
            vfs.write(opened.handle, 0, Bytes::from_static(b"content")).await.unwrap();
            let time = Some(Timestamp::from_secs(LONG_AGO));
            let times = AttrChange { atime: time, mtime: time, ..AttrChange::default() };
            vfs.setattr(entry.ino, times, Some(opened.handle)).await.unwrap();
            let owner = AttrChange { uid: Some(1000), gid: Some(1000), ..AttrChange::default() };
            vfs.setattr(entry.ino, owner, None).await.unwrap();
            let mode = AttrChange { perm: Some(0o644), ..AttrChange::default() };
            vfs.setattr(entry.ino, mode, Some(opened.handle)).await.unwrap();
            vfs.flush(opened.handle).await.unwrap();
            vfs.release(opened.handle);
        })
        .await;
        assert_eq!(trips, 2, "made, and closed");
    }
}

/// As tar does with the directories that it has filled.
#[tokio::test(start_paused = true)]
async fn a_change_of_attributes_is_waited_for_once() {
    let Mount { remote, vfs, .. } = mounted(config());
    remote.set_latency(Some(TRIP));
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o700).await.unwrap();
    let atime = dir.stat.attr.atime.secs;
    vfs.mkdir(dir.ino, b"sub", 0o700).await.unwrap();
    let mode = AttrChange { perm: Some(0o755), ..AttrChange::default() };
    let times = AttrChange { mtime: Some(Timestamp::from_secs(LONG_AGO)), ..AttrChange::default() };
    let owner = AttrChange { uid: Some(7), ..AttrChange::default() };
    let other = AttrChange { perm: Some(0o750), gid: Some(8), ..AttrChange::default() };
    for change in [mode, times, owner, other] {
        let (changed, trips) = waits(vfs.setattr(dir.ino, change, None)).await;
        assert_eq!(trips, 1, "{change:?}");
        let (stat, trips) = waits(vfs.getattr(dir.ino)).await;
        assert_eq!((changed, trips), (stat, 0));
    }
    // As `cp -a` does, after it has set the times.
    let same = AttrChange { uid: Some(7), gid: Some(8), ..AttrChange::default() };
    let (changed, trips) = waits(vfs.setattr(dir.ino, same, None)).await;
    assert_eq!((changed.unwrap().attr.uid, trips), (7, 0));
    let attr = vfs.getattr(dir.ino).await.unwrap().attr;
    assert_eq!((attr.perm, attr.uid, attr.gid), (0o750, 7, 8));
    assert_eq!((attr.atime.secs, attr.mtime.secs), (atime, LONG_AGO));
}

/// Prefetched listings are used by slow programs, too.
#[tokio::test(start_paused = true)]
async fn an_old_tree_is_listed_once_for_a_slow_walk() {
    let Mount { remote, vfs, .. } = mounted(config());
    let paths: Vec<_> = (0..30).map(|index| format!("t/a/b{index:02}")).collect();
    for path in &paths {
        put(&remote, &format!("{path}/c/f"), "f");
        remote.set_mtime(&format!("{path}/c"), LONG_AGO);
        remote.set_mtime(path, LONG_AGO);
    }
    for path in ["t", "t/a"] {
        remote.set_mtime(path, LONG_AGO);
    }
    remote.set_latency(Some(TRIP));
    let top = found(&vfs, Ino::ROOT, "t").await;
    list(&vfs, top.ino, true).await;
    let above = found(&vfs, top.ino, "a").await;
    list(&vfs, above.ino, true).await;
    for index in 0..30 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        let dir = found(&vfs, above.ino, &format!("b{index:02}")).await;
        assert_eq!(list(&vfs, dir.ino, true).await.len(), 1);
        let below = found(&vfs, dir.ino, "c").await;
        assert_eq!(list(&vfs, below.ino, true).await.len(), 1);
    }
    assert!(remote.calls(Call::Opendir) <= 66, "{}", remote.calls(Call::Opendir));
    vfs.end_background();
}

/// As rm does: removed directories are not listed any more.
#[tokio::test(start_paused = true)]
async fn a_tree_that_is_removed_is_listed_once() {
    let Mount { remote, vfs, .. } = mounted(config());
    for index in 0..400 {
        let (one, two, three) = (index % 5, index / 5 % 8, index);
        put(&remote, &format!("t/a{one}/b{two}/c{three}/f"), "f");
    }
    remote.set_latency(Some(TRIP));
    let top = found(&vfs, Ino::ROOT, "t").await;
    let ((), waits) = waits(remove(&vfs, top.ino)).await;
    assert!(list(&vfs, top.ino, true).await.is_empty());
    // Of 846 names each is waited for, of 446 listings few.
    assert!(waits <= 846 + 150, "{waits}");
    assert!(remote.calls(Call::Opendir) <= 460, "{}", remote.calls(Call::Opendir));
}

async fn remove(vfs: &Vfs, dir: Ino) {
    for (name, kind, entry) in list(vfs, dir, true).await {
        let ino = entry.unwrap().ino;
        if kind == FileKind::Directory {
            Box::pin(remove(vfs, ino)).await;
            vfs.rmdir(dir, &name).await.unwrap();
        } else {
            vfs.unlink(dir, &name).await.unwrap();
        }
        vfs.forget(ino, 1);
    }
}

/// C4: attributes that have not changed for long are valid for a while.
#[tokio::test(start_paused = true)]
async fn c4_an_old_tree_is_listed_again_without_asking() {
    let Mount { remote, vfs, .. } = mounted(config());
    for index in 0..40 {
        put(&remote, &format!("t/d{}/f{index}", index % 8), "content");
    }
    for dir in (0..8).map(|index| format!("t/d{index}")).chain(["t".to_owned()]) {
        remote.set_mtime(&dir, LONG_AGO);
    }
    let top = found(&vfs, Ino::ROOT, "t").await;
    walk(&vfs, top.ino, false, Order::Listing).await;
    let start = Instant::now();
    let made_later = [19, 1].map(Duration::from_secs);
    remote.set_latency(Some(TRIP));
    remote.reset_calls();
    put(&remote, "t/d3/new", "content");
    for (pause, (new, asks)) in made_later.into_iter().zip([(0, false), (1, true)]) {
        tokio::time::advance(pause).await;
        let files = walk(&vfs, top.ino, false, Order::Listing).await;
        assert_eq!(files, 40 + new, "after {:?}", start.elapsed());
        assert_eq!(remote.round_trips() > 0, asks, "after {:?}", start.elapsed());
    }
    // The listing of a directory with a new entry is not valid for longer.
    tokio::time::advance(Duration::from_secs(1)).await;
    remote.remove("t/d3/new");
    assert_eq!(walk(&vfs, top.ino, false, Order::Listing).await, 40);
    vfs.end_background();
}

#[tokio::test(start_paused = true)]
async fn what_a_listing_tells_needs_no_question() {
    let Mount { remote, vfs, .. } = mounted(config());
    for index in 0..10 {
        put(&remote, &format!("d/f{index}"), "content");
    }
    let dir = found(&vfs, Ino::ROOT, "d").await;
    list(&vfs, dir.ino, true).await;
    proven(&vfs, dir.ino).await;
    remote.reset_calls();
    for index in 0..10 {
        assert_eq!(found(&vfs, dir.ino, &format!("f{index}")).await.stat.attr.size, 7);
        assert!(absent(&vfs, dir.ino, &format!("g{index}")).await);
    }
    assert_eq!((remote.round_trips(), remote.calls(Call::Close)), (0, 0));
}

/// Looks up names that a listing does not contain, after which others are taken to be absent.
async fn proven(vfs: &Vfs, dir: Ino) {
    for index in 0..8 {
        assert!(absent(vfs, dir, &format!("no such name {index}")).await);
    }
}

/// C5: a name that is not listed may exist nevertheless.
#[tokio::test(start_paused = true)]
async fn c5_what_a_listing_hides_is_found_by_its_name() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "d/f", "content");
    let dir = found(&vfs, Ino::ROOT, "d").await;
    list(&vfs, dir.ino, true).await;
    // As with an automounter: it exists if it is looked up, and is in no listing.
    put(&remote, "d/hidden", "content");
    assert!(!absent(&vfs, dir.ino, "hidden").await);
    proven(&vfs, dir.ino).await;
    remote.reset_calls();
    assert!(absent(&vfs, dir.ino, "g").await);
    assert_eq!(remote.round_trips(), 1, "its listings are not believed any longer");
}

/// C5, for names that are not in a listing.
#[tokio::test(start_paused = true)]
async fn c5_absence_from_a_listing_counts_no_longer_than_that_of_a_name() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "d/f", "content");
    let dir = found(&vfs, Ino::ROOT, "d").await;
    list(&vfs, dir.ino, true).await;
    proven(&vfs, dir.ino).await;
    tokio::time::advance(Duration::from_millis(400)).await;
    let LookupResult::Absent(ttl) = vfs.lookup(dir.ino, b"g").await.unwrap() else {
        panic!("there")
    };
    assert_eq!(ttl, Duration::from_millis(600), "and the kernel gets no longer one");
    put(&remote, "d/g", "new");
    assert!(absent(&vfs, dir.ino, "g").await);
    tokio::time::advance(ttl).await;
    assert!(!absent(&vfs, dir.ino, "g").await);
}

/// C6: names that are changed locally are known at once, whatever an earlier listing contained.
#[tokio::test(start_paused = true)]
async fn c6_a_listing_is_no_excuse() {
    let Mount { remote, vfs, .. } = mounted(config());
    for index in 0..5 {
        put(&remote, &format!("d/f{index}"), "content");
    }
    let dir = found(&vfs, Ino::ROOT, "d").await;
    list(&vfs, dir.ino, true).await;
    proven(&vfs, dir.ino).await;
    vfs.unlink(dir.ino, b"f0").await.unwrap();
    vfs.rename((dir.ino, b"f1"), (dir.ino, b"g1"), base::RenameMode::Replace).await.unwrap();
    vfs.mkdir(dir.ino, b"sub", 0o755).await.unwrap();
    assert!(absent(&vfs, dir.ino, "f0").await && absent(&vfs, dir.ino, "f1").await);
    assert!(!absent(&vfs, dir.ino, "g1").await && !absent(&vfs, dir.ino, "sub").await);
    remote.reset_calls();
    assert!(!absent(&vfs, dir.ino, "f2").await, "and the others are known still");
    assert!(absent(&vfs, dir.ino, "h").await);
    assert_eq!(remote.round_trips(), 0);
    let mut names: Vec<_> =
        list(&vfs, dir.ino, true).await.into_iter().map(|entry| entry.0).collect();
    names.sort();
    assert_eq!(names, [&b"f2"[..], b"f3", b"f4", b"g1", b"sub"]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_made_here_is_known_to_be_empty() {
    let Mount { remote, vfs, .. } = mounted(config());
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    remote.reset_calls();
    for index in 0..100 {
        assert!(absent(&vfs, dir.ino, &format!("f{index}")).await);
        let name = format!("f{index}").into_bytes();
        let request = OpenRequest::plain(Access::Write);
        let (entry, opened) = vfs.create(dir.ino, &name, 0o644, true, request).await.unwrap();
        vfs.release(opened.handle);
        vfs.forget(entry.ino, 1);
    }
    assert_eq!((remote.calls(Call::Lstat), remote.calls(Call::Open)), (0, 100));
}

/// C5: this holds while the directory is being filled, and no longer.
#[tokio::test(start_paused = true)]
async fn c5_a_directory_made_here_is_known_while_it_is_filled() {
    let Mount { remote, vfs, .. } = mounted(config());
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    remote.reset_calls();
    for index in 0..100 {
        tokio::time::advance(Duration::from_millis(100)).await;
        let name = format!("f{index}");
        assert!(absent(&vfs, dir.ino, &name).await);
        let request = OpenRequest::plain(Access::Write);
        let made = vfs.create(dir.ino, name.as_bytes(), 0o644, true, request).await;
        vfs.release(made.unwrap().1.handle);
    }
    let asked = (remote.calls(Call::Lstat), remote.calls(Call::Opendir));
    assert_eq!((asked, remote.calls(Call::Open)), ((0, 0), 100));
    put(&remote, "d/new", "content");
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(!absent(&vfs, dir.ino, "new").await);
}

/// C5: each change may take longer than the directory is known without one.
#[tokio::test(start_paused = true)]
async fn c5_a_directory_made_here_is_known_while_it_is_filled_slowly() {
    let Mount { remote, vfs, .. } = mounted(config());
    remote.set_latency(Some(Duration::from_millis(300)));
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    remote.reset_calls();
    for index in 0..10 {
        let name = format!("f{index}");
        assert!(absent(&vfs, dir.ino, &name).await);
        let request = OpenRequest::plain(Access::Write);
        let made = vfs.create(dir.ino, name.as_bytes(), 0o644, true, request).await;
        vfs.release(made.unwrap().1.handle);
    }
    assert_eq!((remote.calls(Call::Lstat), remote.calls(Call::Opendir)), (0, 0));
}

/// C5: after a pause, in which another machine may have created names in it, a change made here
/// does not make it known again.
#[tokio::test(start_paused = true)]
async fn c5_a_directory_made_here_is_not_known_again_after_a_pause() {
    let Mount { remote, vfs, .. } = mounted(config());
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    put(&remote, "d/out", "content");
    tokio::time::advance(Duration::from_secs(1)).await;
    let request = OpenRequest::plain(Access::Write);
    let made = vfs.create(dir.ino, b"stamp", 0o644, true, request).await;
    vfs.release(made.unwrap().1.handle);
    assert!(!absent(&vfs, dir.ino, "out").await);
}

/// A search of include paths that takes longer than absent names are valid waits for the first few
/// only.
#[tokio::test(start_paused = true)]
async fn c5_absent_names_of_a_search_path_are_listed_again_before_they_are_asked_for() {
    let Mount { remote, faulty, vfs, .. } = mounted(config());
    for index in 0..50 {
        put(&remote, &format!("d/f{index}"), "content");
    }
    let dir = found(&vfs, Ino::ROOT, "d").await;
    list(&vfs, dir.ino, true).await;
    proven(&vfs, dir.ino).await;
    faulty.reset_calls();
    remote.set_latency(Some(TRIP));
    const STEPS: u32 = 100;
    let ((), waited) = waits(async {
        for index in 0..STEPS {
            assert!(absent(&vfs, dir.ino, &format!("g{index}")).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let waited = waited - u128::from(STEPS) * 100;
    // Eight listings later the server must confirm a few names again.
    assert!(waited <= 10, "{waited} waits");
    assert!(faulty.calls(Call::Opendir) <= 14, "{} listings", faulty.calls(Call::Opendir));
    // A file created by another machine is visible as soon as before.
    put(&remote, "d/new", "content");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!absent(&vfs, dir.ino, "new").await);
    // After a pause the server must confirm a few names first.
    tokio::time::sleep(Duration::from_secs(30)).await;
    list(&vfs, dir.ino, true).await;
    faulty.reset_calls();
    assert!(absent(&vfs, dir.ino, "h").await);
    assert_eq!(faulty.calls(Call::Lstat), 1);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_looked_up_piecemeal_is_listed() {
    let Mount { remote, vfs, .. } = mounted(config());
    for index in 0..300 {
        put(&remote, &format!("d/f{index}"), "content");
    }
    remote.set_latency(Some(TRIP));
    let dir = found(&vfs, Ino::ROOT, "d").await;
    let looking = async {
        for index in 0..300 {
            found(&vfs, dir.ino, &format!("f{index}")).await;
            assert!(absent(&vfs, dir.ino, &format!("g{index}")).await);
        }
    };
    let ((), waits) = waits(looking).await;
    assert!(waits <= 20, "{waits}");
    assert_eq!(remote.calls(Call::Opendir), 1);
}

#[tokio::test(start_paused = true)]
async fn a_few_look_ups_of_a_large_directory_do_not_list_it() {
    let Mount { remote, vfs, .. } = mounted(config());
    for index in 0..5000 {
        put(&remote, &format!("d/f{index}"), "");
    }
    remote.set_latency(Some(TRIP));
    let dir = found(&vfs, Ino::ROOT, "d").await;
    for index in 0..12 {
        found(&vfs, dir.ino, &format!("f{index}")).await;
    }
    tokio::time::sleep(TRIP * 100).await;
    assert!(remote.calls(Call::Readdir) <= 24, "{}", remote.calls(Call::Readdir));
}

/// A read of a file that is being prefetched succeeds even if the fetch fails, or hangs.
#[tokio::test(start_paused = true)]
async fn a_fetch_that_fails_or_hangs_is_nobodys_error() {
    for nth in 1..40 {
        for hangs in [false, true] {
            for call in [Call::Open, Call::Read, Call::Opendir, Call::Readdir] {
                let Mount { remote, faulty, vfs } = mounted(config());
                for index in 0..8 {
                    put(&remote, &format!("t/d/f{index}"), &format!("f{index}"));
                    put(&remote, &format!("t/e{index}/g"), "g");
                }
                let top = found(&vfs, Ino::ROOT, "t").await;
                remote.set_latency(Some(TRIP));
                let gate = hangs.then(|| faulty.hold(call, nth));
                if !hangs {
                    faulty.fail(call, nth, Errno::EIO);
                }
                let walking = tokio::time::timeout(Duration::from_secs(5), tolerant(&vfs, top.ino));
                let errors = walking.await;
                drop(gate);
                // A fault may hit a requested call: its error goes to the caller, once.
                match errors {
                    Ok(errors) => assert!(errors <= 1, "{call:?} {nth}"),
                    Err(_) => assert!(hangs, "{call:?} {nth}"),
                }
                vfs.end_background();
            }
        }
    }
}

/// The same walk, counting errors.
async fn tolerant(vfs: &Vfs, dir: Ino) -> usize {
    let Ok(handle) = vfs.opendir(dir).await else { return 1 };
    let mut names = Names::default();
    loop {
        let before = names.next;
        if vfs.readdir(handle, before, true, &mut names).await.is_err() {
            vfs.releasedir(handle);
            return 1;
        }
        if names.next == before {
            break;
        }
    }
    vfs.releasedir(handle);
    let mut errors = 0;
    for (_, kind, entry) in names.entries {
        let Some(entry) = entry else { continue };
        if kind == FileKind::Directory {
            errors += Box::pin(tolerant(vfs, entry.ino)).await;
            continue;
        }
        let Ok(opened) = vfs.open(entry.ino, OpenRequest::plain(Access::Read)).await else {
            errors += 1;
            continue;
        };
        match vfs.read(opened.handle, 0, 100).await {
            Ok(data) => assert_eq!(data.len() as u64, entry.stat.attr.size),
            Err(_) => errors += 1,
        }
        vfs.release(opened.handle);
    }
    errors
}

#[tokio::test(start_paused = true)]
async fn what_umount_asks_is_not_waited_for_long() {
    const SILENCE: Duration = Duration::from_secs(5);
    let mount = mounted(config());
    let silent = mount.faulty.hold(Call::Statvfs, 1);
    let start = Instant::now();
    assert_eq!(mount.vfs.statfs(Ino::ROOT).await, Err(Errno::ETIMEDOUT), "nothing is known");
    assert_eq!(start.elapsed(), SILENCE);
    drop(silent);
    let told = mount.vfs.statfs(Ino::ROOT).await;
    assert!(told.is_ok());
    let root = mount.vfs.getattr(Ino::ROOT).await.unwrap();
    // A new entry changes its times, so they are requested.
    mount.vfs.mkdir(Ino::ROOT, b"made", 0o755).await.unwrap();

    let _silent = [Call::Statvfs, Call::Lstat].map(|call| mount.faulty.hold(call, 1));
    let start = Instant::now();
    assert_eq!(mount.vfs.statfs(Ino::ROOT).await, told);
    assert_eq!(start.elapsed(), SILENCE);
    let last = mount.vfs.getattr(Ino::ROOT).await.unwrap();
    assert_eq!(
        (last.number, last.attr.perm, last.ttl),
        (root.number, root.attr.perm, Duration::ZERO)
    );
    assert_eq!(start.elapsed(), 2 * SILENCE);
    assert_eq!(mount.faulty.not_reached(), 0);
}
