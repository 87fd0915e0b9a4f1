//! A handle is a file's, not a name's.

use std::task::Poll;

use base::{Access, Errno, OpenFlags, RenameMode};

use super::ground::{Ground, ok, pattern, poll_once, size_change};
use crate::path;

/// Reads, writes and changes go on after the last name is gone.
pub async fn an_unlinked_file_goes_on(ground: &Ground) {
    let content = pattern(1, 300_000);
    ground.put("a", &content).await;
    let fh = ground.open_rw("a").await;
    ok("unlink", "a", ground.unlink(&path("a")).await);
    assert!(!ground.exists("a").await);
    assert!(ground.bytes(fh, 0, 400_000).await == content);
    ground.put_at(fh, 300_000, b"more").await;
    assert_eq!(ground.bytes(fh, 299_999, 10).await.len(), 5);
    assert_eq!(ok("fstat", "a", ground.fstat(fh).await).size, 300_004);
    ok("fsetattr", "a", ground.fsetattr(fh, size_change(2)).await);
    assert!(ground.bytes(fh, 0, 10).await == content[..2]);
    // A new file of the same name is another file.
    ground.put("a", b"new").await;
    ground.put_at(fh, 0, b"old").await;
    assert_eq!(ground.get("a").await, b"new");
    assert_eq!(ground.bytes(fh, 0, 10).await, b"old");
    ground.close(fh);
}

/// The file that a rename put another one in the place of goes on as well.
pub async fn a_replaced_file_goes_on(ground: &Ground) {
    ground.put("a", b"old").await;
    ground.put("b", b"new").await;
    let fh = ground.open_rw("a").await;
    ok("rename", "b", ground.rename(&path("b"), &path("a"), RenameMode::Replace).await);
    assert_eq!(ground.bytes(fh, 0, 10).await, b"old");
    ground.put_at(fh, 0, b"OLD").await;
    assert_eq!(ground.bytes(fh, 0, 10).await, b"OLD");
    assert_eq!(ground.get("a").await, b"new");
    ground.close(fh);
}

/// A handle follows its file to its new name, also when a directory above was renamed.
pub async fn a_renamed_file_is_still_open(ground: &Ground) {
    ground.dir("d").await;
    ground.put("d/a", b"content").await;
    let fh = ground.open_rw("d/a").await;
    ok("rename", "a", ground.rename(&path("d/a"), &path("d/b"), RenameMode::Replace).await);
    ok("rename", "d", ground.rename(&path("d"), &path("e"), RenameMode::Replace).await);
    ground.put_at(fh, 0, b"C").await;
    assert_eq!(ok("fstat", "b", ground.fstat(fh).await).size, 7);
    ground.close(fh);
    assert_eq!(ground.get("e/b").await, b"Content");
}

/// After its close a handle is nothing; the answer is an error, not another file's bytes.
pub async fn a_closed_handle_is_an_error(ground: &Ground) {
    ground.put("a", b"content").await;
    let fh = ground.open_rw("a").await;
    ground.close(fh);
    let dh = ok("opendir", "", ground.opendir(&path("")).await);
    ground.closedir(dh);
    ground.put("b", b"another").await;
    let again = ground.handle("b", OpenFlags::existing(Access::ReadWrite)).await;
    assert!(ground.read(fh, 0, 10).await.is_err());
    assert!(ground.write(fh, 0, "x".into()).await.is_err());
    assert!(ground.fstat(fh).await.is_err());
    assert!(ground.fsync(fh).await.is_err());
    assert!(ground.readdir(dh).await.is_err());
    // To give it back twice does no harm to anybody.
    ground.close(fh);
    ground.closedir(dh);
    assert_eq!(ground.bytes(again, 0, 10).await, b"another");
    ground.close(again);
    assert_eq!(ground.get("a").await, b"content");
}

/// What was begun through a handle comes before the handle is given back, also when none of it is
/// answered yet; after that it is nothing.
pub async fn a_handle_is_finished_behind_its_writes(ground: &Ground) {
    for (round, len) in [1, 70_000, 700_000].into_iter().enumerate() {
        let content = pattern(round as u8, len);
        let fh = ground.open_rw("a").await;
        let mut write = ground.write(fh, 0, content.clone().into());
        let written_at_once = poll_once(&mut write);
        let write = async move {
            match written_at_once {
                Poll::Ready(result) => result,
                Poll::Pending => write.await,
            }
        };
        let (written, finished) = tokio::join!(write, ground.finish(fh));
        ok("write", len, written);
        ok("finish", len, finished);
        assert!(ground.get("a").await[..len] == content);
        assert!(ground.read(fh, 0, 10).await.is_err());
        assert_eq!(ground.finish(fh).await, Err(Errno::EBADF));
        ground.close(fh);
    }
    let fh = ground.handle("a", OpenFlags::existing(Access::Read)).await;
    assert_eq!(ground.bytes(fh, 0, 10).await.len(), 10);
    ok("finish", "a", ground.finish(fh).await);
    assert!(ground.read(fh, 0, 10).await.is_err());
}

/// The handle is given back from the first poll on, also when the answer is not waited for.
pub async fn a_dropped_finish_gives_the_handle_back(ground: &Ground) {
    for polls in 1..5 {
        let fh = ground.open_rw("a").await;
        let mut write = ground.write(fh, 0, pattern(1, 300_000).into());
        let _ = poll_once(&mut write);
        let mut finish = ground.finish(fh);
        for _ in 0..polls {
            if poll_once(&mut finish).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(finish);
        drop(write);
        assert!(ground.read(fh, 0, 10).await.is_err(), "after {polls} polls");
    }
}
