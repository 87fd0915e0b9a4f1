//! Changes made here are seen here, regardless of the gateways' caches.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Attr, AttrChange, Create, Errno, Fh, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use replicas::{Mode, Replicas};
use testkit::{Call, FaultyRemote, Lagging, ManualClock, MemRemote, mem::Options, path};

use super::pool::{self, LAG};

/// With this many requests, each gateway would get one.
const OFTEN: usize = 30;

struct Behind {
    pool: Replicas,
    gateways: Vec<Arc<FaultyRemote<Lagging>>>,
    server: Arc<MemRemote>,
}

impl Behind {
    fn new(mode: Mode) -> Behind {
        Behind::of(mode, MemRemote::new())
    }

    fn of(mode: Mode, server: MemRemote) -> Behind {
        let server = Arc::new(server);
        let gateway = || Arc::new(FaultyRemote::new(Arc::new(Lagging::new(server.clone(), LAG))));
        let gateways: Vec<_> = (0..3).map(|_| gateway()).collect();
        let pool = pool::of(mode, gateways.iter().map(|gateway| gateway.clone() as Arc<_>));
        Behind { pool, gateways, server }
    }

    /// As [`Behind::within_a_second`], with a file open through the first gateway, which is then
    /// unreachable. Another gateway shows a version of the same second.
    async fn with_a_lost_handle() -> (Behind, Fh) {
        let it = Behind::within_a_second();
        let at = path("file");
        it.put("file", b"content").await;
        assert_eq!(it.pool.lstat(&at).await.unwrap().size, 7);
        let lost = it.pool.open(&at, OpenFlags::existing(Access::Read)).await.unwrap().fh;
        it.server.put_file("file", b"x");
        it.gateways[0].cut();
        (it, lost)
    }

    /// The first gateway is preferred, and all mtimes are equal.
    fn within_a_second() -> Behind {
        let clock = ManualClock::at(1_000_000_000).into();
        Behind::of(Mode::Failover, MemRemote::with(Options { clock, ..Options::default() }))
    }

    /// Makes each gateway read and cache these paths.
    async fn all_see(&self, paths: &[&str]) {
        for gateway in &self.gateways {
            for at in paths {
                let _ = gateway.lstat(&path(at)).await;
                if let Ok(dh) = gateway.opendir(&path(at)).await {
                    gateway.closedir(dh);
                }
                if let Ok(opened) = gateway.open(&path(at), OpenFlags::existing(Access::Read)).await
                {
                    gateway.read(opened.fh, 0, 100).await.unwrap();
                    gateway.close(opened.fh);
                }
            }
        }
    }

    /// Opens `old`, and then makes `new`, which no gateway but one shows yet.
    async fn open_beside_new(&self, old: &str, new: &str) -> Fh {
        self.server.put_file(old, b"old");
        self.all_see(&["d", new]).await;
        let read = OpenFlags::existing(Access::Read);
        let fh = self.pool.open(&path(old), read).await.unwrap().fh;
        self.put(new, b"new").await;
        fh
    }

    /// How many of the gateways themselves show that the path exists.
    async fn that_see(&self, at: &str) -> usize {
        let mut see = 0;
        for gateway in &self.gateways {
            see += usize::from(gateway.lstat(&path(at)).await.is_ok());
        }
        see
    }

    async fn names(&self, at: &str) -> Vec<String> {
        let dh = self.pool.opendir(&path(at)).await.unwrap();
        let mut names = Vec::new();
        while let Some(batch) = self.pool.readdir(dh).await.unwrap() {
            names.extend(batch.iter().map(|entry| entry.name.to_string()));
        }
        self.pool.closedir(dh);
        names.sort();
        names
    }

    /// The attributes of the first entry of a listing.
    async fn listed_attr(&self, at: &str) -> Option<Attr> {
        let dh = self.pool.opendir(&path(at)).await.unwrap();
        let entries = self.pool.readdir(dh).await.unwrap().unwrap();
        self.pool.closedir(dh);
        entries[0].attr
    }

    async fn content(&self, at: &str) -> Vec<u8> {
        let opened = self.pool.open(&path(at), OpenFlags::existing(Access::Read)).await.unwrap();
        let data = self.pool.read(opened.fh, 0, 1000).await.unwrap().to_vec();
        assert_eq!(opened.attr.size, data.len() as u64);
        self.pool.close(opened.fh);
        data
    }

    async fn put(&self, at: &str, content: &'static [u8]) {
        let flags = OpenFlags {
            create: Create::IfAbsent(0o644),
            truncate: true,
            ..OpenFlags::existing(Access::Write)
        };
        let fh = self.pool.open(&path(at), flags).await.unwrap().fh;
        self.pool.write(fh, 0, Bytes::from_static(content)).await.unwrap();
        self.pool.close(fh);
    }
}

const MODES: [Mode; 3] = [Mode::Balance, Mode::Hash, Mode::Failover];

#[tokio::test(start_paused = true)]
async fn an_open_shows_the_file_closed_before() {
    for mode in MODES {
        let it = Behind::new(mode);
        it.server.put_file("d/file", b"old");
        it.all_see(&["d", "d/file"]).await;
        it.put("d/file", b"newer content").await;
        let mut old = 0;
        for gateway in &it.gateways {
            old += usize::from(gateway.lstat(&path("d/file")).await.unwrap().size == 3);
        }
        assert_eq!(old, 2, "the others show the old one, or this shows nothing");
        for _ in 0..OFTEN {
            assert_eq!(it.pool.lstat(&path("d/file")).await.unwrap().size, 13, "{mode:?}");
            assert_eq!(it.content("d/file").await, b"newer content", "{mode:?}");
            tokio::time::advance(LAG / 10).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_being_written_uses_one_gateway() {
    for mode in MODES {
        let it = Behind::new(mode);
        it.server.put_file("file", b"old");
        let reader = it.pool.open(&path("file"), OpenFlags::existing(Access::Read)).await.unwrap();
        it.all_see(&["", "file"]).await;
        let flags = OpenFlags::existing(Access::Write);
        let writer = it.pool.open(&path("file"), flags).await.unwrap().fh;
        for round in 1..=10u64 {
            it.pool.write(writer, 3 * round, Bytes::from_static(b"new")).await.unwrap();
            let size = 3 + 3 * round;
            for _ in 0..3 {
                assert_eq!(it.pool.fstat(reader.fh).await.unwrap().size, size);
                assert_eq!(it.pool.lstat(&path("file")).await.unwrap().size, size);
                assert_eq!(it.content("file").await.len() as u64, size);
            }
            let data = it.pool.read(reader.fh, 3 * round, 100).await.unwrap();
            assert_eq!(data.to_vec(), b"new", "{mode:?}");
        }
        it.pool.close(writer);
        it.pool.close(reader.fh);
        assert_eq!(it.server.open_handles(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_seen_as_they_were_changed() {
    for mode in MODES {
        let it = Behind::new(mode);
        it.server.put_file("d/gone", b"x");
        it.server.put_file("d/from/deep/file", b"deep");
        it.all_see(&["", "d", "d/gone", "d/new", "d/made", "d/made/in", "d/to", "d/link"]).await;
        it.all_see(&["d/to/deep", "d/to/deep/file", "d/from", "d/from/deep/file"]).await;
        it.put("d/new", b"here").await;
        it.pool.unlink(&path("d/gone")).await.unwrap();
        it.pool.mkdir(&path("d/made"), 0o755).await.unwrap();
        it.put("d/made/in", b"in").await;
        it.pool.symlink(b"new", &path("d/link")).await.unwrap();
        it.pool.rename(&path("d/from"), &path("d/to"), RenameMode::Replace).await.unwrap();
        assert!(it.that_see("d/new").await < 3, "nobody lags behind here");
        for _ in 0..OFTEN {
            assert_eq!(it.names("d").await, ["link", "made", "new", "to"], "{mode:?}");
            for at in ["d/new", "d/made", "d/made/in", "d/link", "d/to/deep/file"] {
                assert!(it.pool.lstat(&path(at)).await.is_ok(), "{at} {mode:?}");
            }
            for at in ["d/gone", "d/from", "d/from/deep/file"] {
                assert_eq!(it.pool.lstat(&path(at)).await, Err(Errno::ENOENT), "{at} {mode:?}");
            }
            assert_eq!(it.content("d/to/deep/file").await, b"deep");
            assert_eq!(it.names("d/made").await, ["in"]);
        }
        // After the lag all gateways show it, and all are used again.
        tokio::time::advance(LAG + Duration::from_millis(10)).await;
        assert_eq!(it.pool.status().recent_changes, 0);
        assert_eq!(it.that_see("d/new").await, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_attributes_are_seen() {
    for mode in MODES {
        let it = Behind::new(mode);
        it.server.put_file("d/file", b"content");
        it.all_see(&["d", "d/file"]).await;
        let change = AttrChange { perm: Some(0o600), size: Some(3), ..AttrChange::default() };
        it.pool.setattr(&path("d/file"), change).await.unwrap();
        for _ in 0..OFTEN {
            let attr = it.pool.lstat(&path("d/file")).await.unwrap();
            assert_eq!((attr.perm, attr.size), (0o600, 3), "{mode:?}");
            let dh = it.pool.opendir(&path("d")).await.unwrap();
            let entries = it.pool.readdir(dh).await.unwrap().unwrap();
            assert!(entries[0].attr.is_none_or(|listed| listed == attr), "{mode:?}");
            it.pool.closedir(dh);
        }
    }
}

/// Only the unreachable gateway knows the change, so an answer that contradicts it is rejected.
#[tokio::test(start_paused = true)]
async fn a_change_known_only_to_an_unreachable_gateway_is_not_contradicted() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("removed", b"x");
    it.all_see(&["", "made", "removed", "dir", "dir/in"]).await;
    it.put("made", b"new").await;
    it.pool.unlink(&path("removed")).await.unwrap();
    it.pool.mkdir(&path("dir"), 0o755).await.unwrap();
    it.pool.mkdir(&path("dir/in"), 0o755).await.unwrap();
    it.gateways[0].cut();
    let read = OpenFlags::existing(Access::Read);
    assert_eq!(it.pool.lstat(&path("made")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.pool.open(&path("made"), read).await.err(), Some(Errno::EHOSTDOWN));
    assert_eq!(it.pool.lstat(&path("removed")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.pool.unlink(&path("made")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.pool.lstat(&path("made")).await, Err(Errno::EHOSTDOWN));
    // A name in a new directory has no entry of its own.
    assert_eq!(it.pool.lstat(&path("dir/in")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.pool.rmdir(&path("dir/in")).await, Err(Errno::EHOSTDOWN));
    // Another client creates it again, which the pool cannot know.
    it.server.put_file("removed", b"again");
    assert_eq!(it.pool.open(&path("removed"), read).await.err(), Some(Errno::EHOSTDOWN));
    it.server.remove("removed");
    assert_eq!(it.server.open_handles(), 0);
    // Unchanged names are answered by the other gateways.
    assert_eq!(it.pool.lstat(&path("other")).await, Err(Errno::ENOENT));
    tokio::time::advance(LAG).await;
    assert_eq!(it.content("made").await, b"new");
    assert_eq!(it.pool.lstat(&path("removed")).await, Err(Errno::ENOENT));
    assert_eq!(it.server.open_handles(), 0);
}

/// A listing from before a change is not returned after it, nor as if it were complete.
#[tokio::test(start_paused = true)]
async fn a_listing_from_before_a_change_is_not_returned() {
    for mode in MODES {
        let it = Behind::new(mode);
        it.server.put_file("d/removed", b"x");
        it.server.put_file("d/stays", b"x");
        it.all_see(&["", "d"]).await;
        it.pool.unlink(&path("d/removed")).await.unwrap();
        let changed_by = it.gateways.iter().position(|it| it.calls(Call::Unlink) == 1).unwrap();
        it.gateways[changed_by].cut();
        assert_eq!(it.names("d").await, ["stays"], "{mode:?}");
        it.gateways[changed_by].restore();
        tokio::time::sleep(pool::LONG).await;
        it.put("d/made", b"new").await;
        assert_eq!(it.gateways[changed_by].calls(Call::Write), 1, "{mode:?}");
        it.gateways[changed_by].cut();
        let listed = async || {
            let dh = it.pool.opendir(&path("d")).await?;
            let mut names = Vec::new();
            let end = loop {
                match it.pool.readdir(dh).await {
                    Ok(Some(batch)) => names.extend(batch.into_iter().map(|entry| entry.name)),
                    Ok(None) => break Ok(names),
                    Err(errno) => break Err(errno),
                }
            };
            it.pool.closedir(dh);
            end
        };
        assert_eq!(listed().await, Err(Errno::EHOSTDOWN), "{mode:?}");
        tokio::time::advance(LAG).await;
        assert_eq!(it.names("d").await, ["made", "stays"], "{mode:?}");
        assert_eq!(it.server.open_handles(), 0);
    }
}

/// Only the gateway that created a directory a short time ago knows its names.
#[tokio::test(start_paused = true)]
async fn names_in_a_new_directory_are_requested_from_its_gateway() {
    for mode in MODES {
        let it = Behind::new(mode);
        it.pool.mkdir(&path("new"), 0o755).await.unwrap();
        it.all_see(&["new", "new/file", "new/name"]).await;
        it.put("new/file", b"content").await;
        it.put("new/renamed", b"content").await;
        let (from, to) = (path("new/renamed"), path("new/name"));
        it.pool.rename(&from, &to, RenameMode::Replace).await.unwrap();
        let fh = it.pool.open(&to, OpenFlags::existing(Access::Write)).await.unwrap().fh;
        it.pool.write(fh, 0, Bytes::from_static(b"C")).await.unwrap();
        assert_eq!(it.pool.fstat(fh).await.unwrap().size, 7);
        it.pool.finish(fh).await.unwrap();
        let changed_by = it.gateways.iter().position(|it| it.calls(Call::Mkdir) == 1).unwrap();
        it.gateways[changed_by].cut();
        for name in ["new/file", "new/name"] {
            assert_eq!(it.pool.lstat(&path(name)).await, Err(Errno::EHOSTDOWN), "{mode:?}");
        }
        assert_eq!(it.pool.opendir(&path("new")).await, Err(Errno::EHOSTDOWN), "{mode:?}");
        tokio::time::advance(LAG).await;
        assert_eq!(it.names("new").await, ["file", "name"], "{mode:?}");
        assert_eq!(it.content("new/file").await, b"content", "{mode:?}");
    }
}

/// An editor replaces a file that is open. The primary of the open file does not show the new file
/// yet.
#[tokio::test(start_paused = true)]
async fn a_new_file_replaces_an_open_one_of_another_gateway() {
    for mode in MODES {
        let mut most = 0;
        for number in 0..OFTEN {
            let it = Behind::new(mode);
            let (new, old) = (format!("d/new{number}"), format!("d/old{number}"));
            let fh = it.open_beside_new(&old, &new).await;
            let renamed = it.pool.rename(&path(&new), &path(&old), RenameMode::Replace).await;
            assert_eq!(renamed, Ok(()), "{mode:?}");
            assert_eq!(it.content(&old).await, b"new", "{mode:?}");
            assert_eq!(it.pool.lstat(&path(&new)).await, Err(Errno::ENOENT), "{mode:?}");
            it.pool.close(fh);
            most = most.max(it.gateways.iter().map(|it| it.calls(Call::Rename)).sum());
        }
        assert_eq!(most, if mode == Mode::Failover { 1 } else { 2 }, "{mode:?}");
    }
}

/// A rename that fails leaves the file where it is, and visible.
#[tokio::test(start_paused = true)]
async fn a_new_file_is_seen_after_a_failed_rename_over_an_open_one() {
    for mode in MODES {
        for number in 0..OFTEN {
            let it = Behind::new(mode);
            let (new, old) = (format!("d/new{number}"), format!("d/old{number}"));
            let fh = it.open_beside_new(&old, &new).await;
            for gateway in &it.gateways {
                gateway.fail(Call::Rename, 1, Errno::ENOENT);
            }
            let renamed = it.pool.rename(&path(&new), &path(&old), RenameMode::Replace).await;
            assert_eq!(renamed, Err(Errno::ENOENT), "{mode:?}");
            assert!(it.pool.lstat(&path(&new)).await.is_ok(), "{mode:?}");
            let names = [format!("new{number}"), format!("old{number}")];
            assert_eq!(it.names("d").await, names, "{mode:?}");
            it.pool.close(fh);
        }
    }
}

/// A directory is renamed after files far below it were changed. An older size is never shown, nor
/// is a file denied: a gateway that does not show the new name yet cannot answer.
#[tokio::test(start_paused = true)]
async fn changes_below_a_renamed_directory_are_seen() {
    for (mode, files) in MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, OFTEN)]) {
        let it = Behind::new(mode);
        let at = |above: &str, number: usize| format!("{above}/x{number}/file");
        for number in 0..files {
            it.server.put_file(&at("d", number), b"old");
            it.all_see(&["", "d", "new", &at("d", number), &at("new", number)]).await;
        }
        for number in 0..files {
            it.put(&at("d", number), b"newer content").await;
        }
        it.pool.rename(&path("d"), &path("new"), RenameMode::Replace).await.unwrap();
        let sizes = async || {
            let mut sizes = Vec::new();
            for number in 0..files {
                let attr = it.pool.lstat(&path(&at("new", number))).await;
                sizes.push(attr.map(|attr| attr.size));
            }
            sizes
        };
        let seen = sizes().await;
        let has_one_writer = files == 1 || mode == Mode::Failover;
        assert!(
            seen.iter().all(|size| match size {
                Ok(size) => *size == 13,
                Err(errno) => *errno == Errno::EHOSTDOWN && !has_one_writer,
            }),
            "{mode:?}: {seen:?}"
        );
        assert!(seen.iter().any(|size| size.is_ok()), "{mode:?}");
        let old = it.pool.lstat(&path(&at("d", 0))).await;
        assert!(matches!(old, Err(Errno::ENOENT | Errno::EHOSTDOWN)), "{old:?}");
        tokio::time::advance(LAG).await;
        assert_eq!(sizes().await, vec![Ok(13); files], "{mode:?}");
        assert_eq!(it.content(&at("new", 0)).await, b"newer content", "{mode:?}");
    }
}

/// The answer to a change is lost. Another gateway shows the state before the change, or the state
/// it has cached before the name was created.
#[tokio::test(start_paused = true)]
async fn a_possibly_old_state_does_not_decide_a_lost_answer() {
    for name in ["old", "new"] {
        let it = Behind::new(Mode::Failover);
        it.server.put_file("old", b"x");
        it.all_see(&["", "old", "new"]).await;
        it.put("new", b"content").await;
        it.gateways[0].fail(Call::Unlink, 1, Errno::EHOSTDOWN);
        assert_eq!(it.pool.unlink(&path(name)).await, Err(Errno::EHOSTDOWN));
        it.gateways[0].cut();
        // The other gateway's answer is older than the file or than the change.
        assert_eq!(it.gateways[1].lstat(&path(name)).await.is_ok(), name == "old");
        assert_eq!(it.pool.lstat(&path(name)).await, Err(Errno::EHOSTDOWN), "{name}");
        tokio::time::advance(LAG).await;
        assert!(it.pool.lstat(&path(name)).await.is_ok(), "{name}");
    }
}

/// A size that was not seen since a change cannot be told from an older one.
#[tokio::test(start_paused = true)]
async fn a_size_from_before_a_change_is_not_believed() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("file", b"old");
    it.all_see(&["", "file"]).await;
    it.put("file", b"newer content").await;
    it.gateways[0].cut();
    assert_eq!(it.gateways[1].lstat(&path("file")).await.unwrap().size, 3);
    assert_eq!(it.pool.lstat(&path("file")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.listed_attr("").await, None);
    // An open revalidates it.
    assert_eq!(it.content("file").await, b"newer content");
    assert_eq!(it.pool.lstat(&path("file")).await.unwrap().size, 13);
}

/// After a write and a close through a gateway that is unreachable now, the older size is not
/// shown.
#[tokio::test(start_paused = true)]
async fn an_older_size_is_not_believed_while_the_gateway_that_wrote_is_away() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("d/file", b"old");
    it.all_see(&["d", "d/file"]).await;
    let at = path("d/file");
    let read = OpenFlags::existing(Access::Read);
    let fh = it.pool.open(&at, OpenFlags::existing(Access::Write)).await.unwrap().fh;
    it.pool.write(fh, 0, bytes::Bytes::from_static(b"new content")).await.unwrap();
    assert_eq!(it.pool.fstat(fh).await.unwrap().size, 11);
    it.pool.finish(fh).await.unwrap();
    it.gateways[0].cut();
    // The other gateway still shows its cached state.
    assert_eq!(it.gateways[1].lstat(&at).await.unwrap().size, 3);
    assert_eq!(it.pool.lstat(&at).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.listed_attr("d").await, None);
    match it.pool.open(&at, read).await {
        Ok(opened) => {
            assert_eq!(opened.attr.size, 11);
            it.pool.close(opened.fh);
        }
        Err(errno) => assert_eq!(errno, Errno::EHOSTDOWN),
    }
    // Once it shows the change, its answer is used.
    tokio::time::advance(LAG).await;
    assert_eq!(it.content("d/file").await, b"new content");
    assert_eq!(it.server.open_handles(), 0);
}

/// Before the close of a file, the older size is not shown either.
#[tokio::test(start_paused = true)]
async fn an_older_size_of_an_open_file_is_not_believed_while_its_gateway_is_away() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("d/file", b"old");
    it.all_see(&["d", "d/file"]).await;
    let at = path("d/file");
    let fh = it.pool.open(&at, OpenFlags::existing(Access::Write)).await.unwrap().fh;
    it.pool.write(fh, 0, Bytes::from_static(b"new content")).await.unwrap();
    it.gateways[0].cut();
    assert_eq!(it.gateways[1].lstat(&at).await.unwrap().size, 3);
    // The first request finds out that it is unreachable.
    for _ in 0..3 {
        assert_eq!(it.pool.lstat(&at).await, Err(Errno::EHOSTDOWN));
    }
    assert_eq!(it.listed_attr("d").await, None);
    // An open revalidates it.
    assert_eq!(it.content("d/file").await, b"new content");
    assert_eq!(it.pool.lstat(&at).await.unwrap().size, 11);
    it.pool.close(fh);
    assert_eq!(it.pool.lstat(&at).await.unwrap().size, 11);
}

/// After the lag all gateways show the written data, also while the file is open.
#[tokio::test(start_paused = true)]
async fn an_open_file_whose_gateway_is_away_is_shown_by_another_after_the_lag() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("file", b"old");
    it.all_see(&["file"]).await;
    let at = path("file");
    let fh = it.pool.open(&at, OpenFlags::existing(Access::Write)).await.unwrap().fh;
    it.pool.write(fh, 0, Bytes::from_static(b"new content")).await.unwrap();
    it.gateways[0].cut();
    // The first request finds out that it is unreachable.
    for _ in 0..3 {
        assert_eq!(it.pool.lstat(&at).await, Err(Errno::EHOSTDOWN));
    }
    tokio::time::advance(LAG).await;
    assert_eq!(it.pool.lstat(&at).await.unwrap().size, 11);
    it.pool.close(fh);
}

/// The attributes of an open file come from the gateway that shows its content.
#[tokio::test(start_paused = true)]
async fn a_listing_has_no_newer_attributes_than_an_open_file() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("d/file", b"old");
    let fh = it.pool.open(&path("d/file"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    assert_eq!(it.pool.read(fh, 0, 100).await.unwrap().to_vec(), b"old");
    it.server.put_file("d/file", b"changed by another");
    // The primary fails for a moment, so another gateway lists, which shows the change.
    it.gateways[0].fail(Call::Opendir, 1, Errno::EHOSTDOWN);
    assert_eq!(it.listed_attr("d").await, None);
    assert!(it.gateways[1].calls(Call::Opendir) == 1);
    it.pool.close(fh);
}

/// The primary was unreachable for a moment, and another gateway's answer was returned meanwhile.
/// Older attributes must not follow it.
#[tokio::test(start_paused = true)]
async fn older_attributes_do_not_follow_newer_ones_of_another_gateway() {
    let it = Behind::new(Mode::Failover);
    it.server.put_file("file", b"old");
    let fh = it.pool.open(&path("file"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    assert_eq!(it.pool.read(fh, 0, 100).await.unwrap().to_vec(), b"old");
    it.server.put_file("file", b"newer");
    it.gateways[0].fail(Call::Lstat, 1, Errno::EHOSTDOWN);
    assert_eq!(it.pool.lstat(&path("file")).await.unwrap().size, 5);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(it.pool.status().gateways[0].times_left_out, 1);
    assert!(!pool::is_left_out(it.pool.status().gateways[0].state));
    assert_eq!(it.pool.read(fh, 0, 100).await, Err(Errno::ESTALE));
    assert_eq!(it.content("file").await, b"newer");
    it.pool.close(fh);
}

fn appending(create: Create) -> OpenFlags {
    OpenFlags { create, append: true, ..OpenFlags::existing(Access::Write) }
}

/// The size of a log was seen, and it grew since, within the second that its mtime shows. Through
/// another gateway it is opened as it is now, and not treated as older than what was seen.
#[tokio::test(start_paused = true)]
async fn a_file_that_grew_since_it_was_seen_is_opened_elsewhere() {
    for seen_by in ["lstat", "fstat and a close"] {
        let it = Behind::within_a_second();
        let at = path("log");
        let one = it.pool.open(&at, appending(Create::IfAbsent(0o644))).await.unwrap().fh;
        it.pool.write(one, 0, Bytes::from_static(b"first\n")).await.unwrap();
        match seen_by {
            "lstat" => assert_eq!(it.pool.lstat(&at).await.unwrap().size, 6),
            _ => assert_eq!(it.pool.fstat(one).await.unwrap().size, 6),
        }
        it.all_see(&["", "log"]).await;
        let other = it.pool.open(&at, appending(Create::Never)).await.unwrap().fh;
        it.pool.write(other, 0, Bytes::from_static(b"second\n")).await.unwrap();
        if seen_by != "lstat" {
            it.pool.finish(one).await.unwrap();
        }
        it.gateways[0].cut();
        // The first request finds out that it is unreachable.
        for _ in 0..3 {
            assert_eq!(it.pool.lstat(&at).await, Err(Errno::EHOSTDOWN), "{seen_by}");
        }
        assert_eq!(it.listed_attr("").await, None, "{seen_by}");
        assert_eq!(it.content("log").await, b"first\nsecond\n", "{seen_by}");
        assert_eq!(it.pool.lstat(&at).await.unwrap().size, 13, "{seen_by}");
        it.pool.close(other);
        if seen_by == "lstat" {
            it.pool.close(one);
        }
    }
}

/// The file that is closed last saw an older size than the others have written.
#[tokio::test(start_paused = true)]
async fn a_size_from_before_another_open_files_write_is_not_believed() {
    for change in ["write", "setattr", "truncate"] {
        let it = Behind::within_a_second();
        it.server.put_file("file", b"old");
        let at = path("file");
        let one = it.pool.open(&at, appending(Create::Never)).await.unwrap().fh;
        it.pool.write(one, 0, Bytes::from_static(b"+")).await.unwrap();
        assert_eq!(it.pool.fstat(one).await.unwrap().size, 4);
        it.all_see(&["", "file"]).await;
        match change {
            "write" => {
                let other = it.pool.open(&at, appending(Create::Never)).await.unwrap().fh;
                it.pool.write(other, 0, Bytes::from_static(b"newer")).await.unwrap();
                it.pool.close(other);
            }
            "setattr" => {
                let change = AttrChange { size: Some(1), ..AttrChange::default() };
                it.pool.setattr(&at, change).await.unwrap();
            }
            _ => {
                let flags = OpenFlags { truncate: true, ..OpenFlags::existing(Access::Write) };
                let other = it.pool.open(&at, flags).await.unwrap().fh;
                it.pool.close(other);
            }
        }
        it.pool.close(one);
        it.gateways[0].cut();
        assert_eq!(it.gateways[1].lstat(&at).await.unwrap().size, 4);
        for _ in 0..3 {
            assert_eq!(it.pool.lstat(&at).await, Err(Errno::EHOSTDOWN), "{change}");
        }
        assert_eq!(it.listed_attr("").await, None, "{change}");
    }
}

/// The attributes were requested before a write through another handle was answered.
#[tokio::test(start_paused = true)]
async fn a_size_seen_while_a_write_is_in_flight_is_not_believed() {
    let it = Behind::within_a_second();
    it.server.put_file("file", b"old");
    let (at, pool) = (path("file"), &it.pool);
    let one = pool.open(&at, appending(Create::Never)).await.unwrap().fh;
    let other = pool.open(&at, appending(Create::Never)).await.unwrap().fh;
    pool.write(one, 0, Bytes::from_static(b"+")).await.unwrap();
    let gate = it.gateways[0].hold(Call::Write, 1);
    let write = async {
        pool.write(other, 0, Bytes::from_static(b"newer")).await.unwrap();
    };
    let seen = async {
        gate.arrived().await;
        assert_eq!(pool.fstat(one).await.unwrap().size, 4);
        it.all_see(&["", "file"]).await;
        gate.release();
    };
    tokio::join!(write, seen);
    pool.close(other);
    pool.close(one);
    it.gateways[0].cut();
    assert_eq!(it.gateways[1].lstat(&at).await.unwrap().size, 4);
    for _ in 0..3 {
        assert_eq!(pool.lstat(&at).await, Err(Errno::EHOSTDOWN));
    }
}

/// While an open through another gateway is rejected, the handles of the gateway that was lost are
/// still open. When it is back, it is used.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_back_is_used_after_an_answer_of_another_was_rejected() {
    let (it, lost) = Behind::with_a_lost_handle().await;
    let (at, read) = (path("file"), OpenFlags::existing(Access::Read));
    assert_eq!(it.pool.open(&at, read).await.err(), Some(Errno::EHOSTDOWN));
    assert_eq!(it.pool.open(&at, read).await.err(), Some(Errno::EHOSTDOWN));
    it.gateways[0].restore();
    tokio::time::sleep(pool::LONG).await;
    let opened = it.pool.open(&at, read).await.unwrap();
    assert_eq!(it.pool.lstat(&at).await.unwrap().size, opened.attr.size);
    it.pool.close(opened.fh);
    it.pool.close(lost);
    assert_eq!(it.server.open_handles(), 0);
}

/// As above, for an open that was cancelled.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_back_is_used_after_an_open_of_another_was_cancelled() {
    let (it, lost) = Behind::with_a_lost_handle().await;
    let (at, read) = (path("file"), OpenFlags::existing(Access::Read));
    // This request finds out that it is unreachable.
    it.pool.lstat(&path("")).await.unwrap();
    let gate = it.gateways[1].hold(Call::Open, 1);
    tokio::select! {
        biased;
        _ = it.pool.open(&at, read) => panic!("it did not wait"),
        () = gate.arrived() => {}
    }
    it.gateways[0].restore();
    tokio::time::sleep(pool::LONG).await;
    assert!(it.pool.lstat(&at).await.is_ok());
    it.pool.close(lost);
}

/// A name was removed, and its directory then renamed through another gateway: the name is absent
/// under the new one. If the removal's answer was lost, only its gateway's answer afterwards, about
/// the name that it had, proves that.
#[tokio::test(start_paused = true)]
async fn a_name_removed_before_its_directory_was_renamed_is_absent() {
    for (removal, is_certain) in [
        ("answered", true),
        ("lost and seen", true),
        ("of a new name, lost and seen", true),
        ("lost", false),
        ("not made and lost", false),
    ] {
        let it = Behind::new(Mode::Failover);
        let (old, new) = (path("d/name"), path("e/name"));
        it.server.put_file("d/name", b"x");
        it.all_see(&["", "d", "d/name", "e", "e/name"]).await;
        if removal.starts_with("of a new name") {
            it.put("d/name", b"newer").await;
        }
        match removal {
            "answered" => {}
            "not made and lost" => it.gateways[0].fail(Call::Unlink, 1, Errno::EHOSTDOWN),
            _ => it.gateways[0].fail_after(Call::Unlink, 1, Errno::EHOSTDOWN),
        }
        assert_eq!(it.pool.unlink(&old).await.is_ok(), removal == "answered");
        if removal.ends_with("seen") {
            tokio::time::sleep(pool::LONG / 3).await;
            assert_eq!(it.pool.lstat(&old).await, Err(Errno::ENOENT), "{removal}");
        }
        it.gateways[0].cut();
        // This request finds out that it is unreachable.
        it.pool.lstat(&path("")).await.unwrap();
        it.put("d/other", b"content").await;
        it.gateways[0].restore();
        tokio::time::sleep(pool::LONG / 3).await;
        it.pool.rename(&path("d"), &path("e"), RenameMode::Replace).await.unwrap();
        assert_eq!(it.gateways[0].calls(Call::Rename), 0, "{removal}");
        assert_eq!(it.gateways[0].lstat(&new).await, Err(Errno::ENOENT));
        let expected = if is_certain { Errno::ENOENT } else { Errno::EHOSTDOWN };
        assert_eq!(it.pool.lstat(&new).await, Err(expected), "{removal}");
        // A gateway that does not find the directory says nothing about a new name.
        let create =
            OpenFlags { create: Create::Exclusive(0o644), ..OpenFlags::existing(Access::Write) };
        it.gateways[0].fail(Call::Open, 1, Errno::ENOENT);
        assert_eq!(it.pool.open(&new, create).await.err(), Some(Errno::EHOSTDOWN), "{removal}");
        if removal != "not made and lost" {
            let made = it.pool.open(&new, create).await.unwrap();
            assert!(it.pool.lstat(&new).await.is_ok(), "{removal}");
            it.pool.close(made.fh);
        }
    }
}
