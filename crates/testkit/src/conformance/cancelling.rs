//! A future may be dropped at any time (rule 1 of [`base::remote`]).

use base::{Access, AttrChange, Create, Fh, OpenFlags, Remote, RenameMode};
use bytes::Bytes;

use super::ground::{Ground, Started, ok, pattern, poll_once, read_write};
use crate::path;

/// How often a call is polled, with pauses in which the remote can go on, before it is dropped.
const POLLS: usize = 4;

/// Polls `call` up to `polls` times and drops it.
async fn drop_after<T>(mut call: Started<'_, T>, polls: usize) {
    for poll in 0..polls {
        if poll > 0 {
            // Gives the remote's own tasks a chance to be anywhere with it.
            tokio::task::yield_now().await;
        }
        if poll_once(&mut call).is_ready() {
            return;
        }
    }
}

/// Starts the `number`th of the calls below; `None` past the last.
fn nth_call(remote: &dyn Remote, number: usize, fh: Fh) -> Option<Started<'_, ()>> {
    /// Owns what the call borrows, and throws away what it gives; handles are given back, as
    /// whoever got one would.
    macro_rules! call {
        (|$answer:pat_param| $give_back:expr, $call:expr) => {
            Box::pin(async move {
                if let Ok($answer) = $call.await {
                    $give_back
                }
            })
        };
        ($call:expr) => {
            call!(|_| (), $call)
        };
    }
    let data = Bytes::from(pattern(number as u8, 300_000));
    let change = AttrChange { perm: Some(0o640), ..AttrChange::default() };
    let read = OpenFlags::existing(Access::Read);
    let making = read_write(Create::IfAbsent(0o644));
    let cutting = OpenFlags { truncate: true, ..making };
    Some(match number {
        0 => call!(|opened| remote.close(opened.fh), remote.open(&path("file"), read)),
        1 => call!(|opened| remote.close(opened.fh), remote.open(&path("made"), making)),
        2 => call!(|dh| remote.closedir(dh), remote.opendir(&path(""))),
        3 => call!(remote.lstat(&path("file"))),
        4 => call!(remote.readlink(&path("link"))),
        5 => call!(remote.fstat(fh)),
        6 => call!(remote.read(fh, 0, 500_000)),
        7 => call!(remote.write(fh, 0, data)),
        8 => call!(remote.fsync(fh)),
        9 => call!(remote.fsyncdir(&path(""))),
        10 => call!(remote.setattr(&path("file"), change)),
        11 => call!(remote.fsetattr(fh, change)),
        12 => call!(remote.mkdir(&path("newdir"), 0o755)),
        13 => call!(remote.rmdir(&path("newdir"))),
        14 => call!(remote.symlink(b"x", &path("newlink"))),
        15 => call!(remote.link(&path("file"), &path("second"))),
        16 => call!(remote.rename(&path("second"), &path("third"), RenameMode::Replace)),
        17 => call!(remote.unlink(&path("third"))),
        18 => call!(remote.statvfs(&path(""))),
        19 => call!(|opened| remote.close(opened.fh), remote.open(&path("cut"), cutting)),
        _ => return None,
    })
}

/// Every call, dropped unpolled, after its first poll and later: no handle leaks (which is looked
/// at when the rule is done), and the next call works.
pub async fn a_dropped_call_leaves_nothing(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.put_link("file", "link").await;
    let fh = ground.open_rw("busy").await;
    for round in 0..10 {
        for polls in 0..=POLLS {
            for number in 0.. {
                let Some(call) = nth_call(&**ground, number, fh) else {
                    break;
                };
                drop_after(call, polls).await;
                assert_eq!(ground.attr("file").await.size, 7, "call {number}, round {round}");
            }
        }
    }
    // A listing that is given up in the middle as well.
    let dh = ok("opendir", "", ground.opendir(&path("")).await);
    drop_after(ground.readdir(dh), 1).await;
    ground.closedir(dh);
    ground.put_at(fh, 0, b"works").await;
    assert_eq!(ground.bytes(fh, 0, 5).await, b"works");
    ground.close(fh);
    assert_eq!(ground.get("file").await, b"content");
}

/// A write that was dropped may happen or not, but not after one that was acknowledged later.
pub async fn a_dropped_write_does_not_come_late(ground: &Ground) {
    let fh = ground.open_rw("a").await;
    for round in 0..40usize {
        let polls = 1 + round % POLLS;
        drop_after(ground.write(fh, 0, Bytes::from(vec![0xdd; 700_000])), polls).await;
        let data = pattern(round as u8, 700_000);
        ground.put_at(fh, 0, &data).await;
        assert!(ground.bytes(fh, 0, 800_000).await == data, "round {round}");
    }
    let last = ground.bytes(fh, 0, 800_000).await;
    ground.close(fh);
    assert!(ground.get("a").await == last, "a dropped write came after all");
}

/// The answer to a dropped read is nobody else's.
pub async fn a_dropped_read_does_not_confuse_the_next(ground: &Ground) {
    let content = pattern(9, 1_000_000);
    ground.put("a", &content).await;
    let fh = ground.handle("a", OpenFlags::existing(Access::Read)).await;
    for round in 0..100usize {
        let offset = round * 1_000;
        drop_after(ground.read(fh, offset as u64, 500_000), 1 + round % POLLS).await;
        let bytes = ground.bytes(fh, 900_000 - offset as u64, 3_000).await;
        assert!(bytes == content[900_000 - offset..903_000 - offset], "round {round}");
    }
    ground.close(fh);
}
