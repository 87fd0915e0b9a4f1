//! Rules for handles: a handle belongs to a file, not to a name.

use base::{Access, Errno, OpenFlags, RenameMode};

use super::fixture::{Fixture, ok, pattern, poll_once, size_change, started};
use crate::path;

/// Reads, writes and changes work after the last name was removed.
pub async fn an_unlinked_file_remains_usable(fixture: &Fixture) {
    let content = pattern(1, 300_000);
    fixture.put("a", &content).await;
    let fh = fixture.open_rw("a").await;
    ok("unlink", "a", fixture.unlink(&path("a")).await);
    assert!(!fixture.exists("a").await);
    assert!(fixture.bytes(fh, 0, 400_000).await == content);
    fixture.put_at(fh, 300_000, b"more").await;
    assert_eq!(fixture.bytes(fh, 299_999, 10).await.len(), 5);
    assert_eq!(ok("fstat", "a", fixture.fstat(fh).await).size, 300_004);
    ok("fsetattr", "a", fixture.fsetattr(fh, size_change(2)).await);
    assert!(fixture.bytes(fh, 0, 10).await == content[..2]);
    // A new file of the same name is another file.
    fixture.put("a", b"new").await;
    fixture.put_at(fh, 0, b"old").await;
    assert_eq!(fixture.get("a").await, b"new");
    assert_eq!(fixture.bytes(fh, 0, 10).await, b"old");
    fixture.close(fh);
}

/// A file that was replaced by a rename remains usable through its handle.
pub async fn a_replaced_file_remains_usable(fixture: &Fixture) {
    fixture.put("a", b"old").await;
    fixture.put("b", b"new").await;
    let fh = fixture.open_rw("a").await;
    ok("rename", "b", fixture.rename(&path("b"), &path("a"), RenameMode::Replace).await);
    assert_eq!(fixture.bytes(fh, 0, 10).await, b"old");
    fixture.put_at(fh, 0, b"OLD").await;
    assert_eq!(fixture.bytes(fh, 0, 10).await, b"OLD");
    assert_eq!(fixture.get("a").await, b"new");
    fixture.close(fh);
}

/// A handle follows its file to its new name, also if a parent directory was renamed.
pub async fn a_renamed_file_is_still_open(fixture: &Fixture) {
    fixture.dir("d").await;
    fixture.put("d/a", b"content").await;
    let fh = fixture.open_rw("d/a").await;
    ok("rename", "a", fixture.rename(&path("d/a"), &path("d/b"), RenameMode::Replace).await);
    ok("rename", "d", fixture.rename(&path("d"), &path("e"), RenameMode::Replace).await);
    fixture.put_at(fh, 0, b"C").await;
    assert_eq!(ok("fstat", "b", fixture.fstat(fh).await).size, 7);
    fixture.close(fh);
    assert_eq!(fixture.get("e/b").await, b"Content");
}

/// A closed handle is invalid: it returns an error, never another file's bytes.
pub async fn a_closed_handle_is_an_error(fixture: &Fixture) {
    fixture.put("a", b"content").await;
    let fh = fixture.open_rw("a").await;
    fixture.close(fh);
    let dh = ok("opendir", "", fixture.opendir(&path("")).await);
    fixture.closedir(dh);
    fixture.put("b", b"another").await;
    let again = fixture.handle("b", OpenFlags::existing(Access::ReadWrite)).await;
    assert!(fixture.read(fh, 0, 10).await.is_err());
    assert!(fixture.write(fh, 0, "x".into()).await.is_err());
    assert!(fixture.fstat(fh).await.is_err());
    assert!(fixture.fsync(fh).await.is_err());
    assert!(fixture.readdir(dh).await.is_err());
    // A second close does no harm.
    fixture.close(fh);
    fixture.closedir(dh);
    assert_eq!(fixture.bytes(again, 0, 10).await, b"another");
    fixture.close(again);
    assert_eq!(fixture.get("a").await, b"content");
}

/// Calls begun through a handle complete before `finish`, even if none was answered yet; then the
/// handle is invalid.
pub async fn a_handle_is_finished_behind_its_writes(fixture: &Fixture) {
    for (round, len) in [1, 70_000, 700_000].into_iter().enumerate() {
        let content = pattern(round as u8, len);
        let fh = fixture.open_rw("a").await;
        let write = started(fixture.write(fh, 0, content.clone().into()));
        let (written, finished) = tokio::join!(write, fixture.finish(fh));
        ok("write", len, written);
        ok("finish", len, finished);
        assert!(fixture.get("a").await[..len] == content);
        assert!(fixture.read(fh, 0, 10).await.is_err());
        assert_eq!(fixture.finish(fh).await, Err(Errno::EBADF));
        fixture.close(fh);
    }
    let fh = fixture.handle("a", OpenFlags::existing(Access::Read)).await;
    assert_eq!(fixture.bytes(fh, 0, 10).await.len(), 10);
    ok("finish", "a", fixture.finish(fh).await);
    assert!(fixture.read(fh, 0, 10).await.is_err());
}

/// The handle is closed from the first poll on, even if the future is dropped.
pub async fn a_dropped_finish_closes_the_handle(fixture: &Fixture) {
    for polls in 1..5 {
        let fh = fixture.open_rw("a").await;
        let mut write = fixture.write(fh, 0, pattern(1, 300_000).into());
        let _ = poll_once(&mut write);
        let mut finish = fixture.finish(fh);
        for _ in 0..polls {
            if poll_once(&mut finish).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(finish);
        drop(write);
        assert!(fixture.read(fh, 0, 10).await.is_err(), "after {polls} polls");
    }
}
