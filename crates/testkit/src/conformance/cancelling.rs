//! A future may be dropped at any time (rule 1 of [`base::remote`]).

use base::{Access, AttrChange, Create, Fh, OpenFlags, Remote, RenameMode};
use bytes::Bytes;

use super::fixture::{Fixture, Started, ok, pattern, poll_once, read_write};
use crate::path;

/// Number of polls of a call before it is dropped, with pauses in which the remote can make
/// progress.
const POLLS: usize = 4;

/// Polls `call` up to `polls` times and drops it.
async fn drop_after<T>(mut call: Started<'_, T>, polls: usize) {
    for poll in 0..polls {
        if poll > 0 {
            // Lets the remote's tasks make any progress.
            tokio::task::yield_now().await;
        }
        if poll_once(&mut call).is_ready() {
            return;
        }
    }
}

/// Starts the call with this number; `None` after the last.
fn nth_call(remote: &dyn Remote, number: usize, fh: Fh) -> Option<Started<'_, ()>> {
    /// Owns the arguments of the call, and discards its result; returned handles are closed, as a
    /// caller would.
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

/// Every call, dropped before and after its first poll and later: no handle leaks (checked after
/// the rule), and the next call works.
pub async fn a_dropped_call_leaves_nothing(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.put_link("file", "link").await;
    let fh = fixture.open_rw("busy").await;
    for round in 0..10 {
        for polls in 0..=POLLS {
            for number in 0.. {
                let Some(call) = nth_call(&**fixture, number, fh) else {
                    break;
                };
                drop_after(call, polls).await;
                assert_eq!(fixture.attr("file").await.size, 7, "call {number}, round {round}");
            }
        }
    }
    // A listing that is abandoned in the middle.
    let dh = ok("opendir", "", fixture.opendir(&path("")).await);
    drop_after(fixture.readdir(dh), 1).await;
    fixture.closedir(dh);
    fixture.put_at(fh, 0, b"works").await;
    assert_eq!(fixture.bytes(fh, 0, 5).await, b"works");
    fixture.close(fh);
    assert_eq!(fixture.get("file").await, b"content");
}

/// A dropped write may be executed or not, but not after a write that was acknowledged later.
pub async fn a_dropped_write_is_not_executed_late(fixture: &Fixture) {
    let fh = fixture.open_rw("a").await;
    for round in 0..40usize {
        let polls = 1 + round % POLLS;
        drop_after(fixture.write(fh, 0, Bytes::from(vec![0xdd; 700_000])), polls).await;
        let data = pattern(round as u8, 700_000);
        fixture.put_at(fh, 0, &data).await;
        assert!(fixture.bytes(fh, 0, 800_000).await == data, "round {round}");
    }
    let last = fixture.bytes(fh, 0, 800_000).await;
    fixture.close(fh);
    assert!(fixture.get("a").await == last, "a dropped write came after all");
}

/// The reply to a dropped read is not delivered to another one.
pub async fn a_dropped_read_does_not_confuse_the_next(fixture: &Fixture) {
    let content = pattern(9, 1_000_000);
    fixture.put("a", &content).await;
    let fh = fixture.handle("a", OpenFlags::existing(Access::Read)).await;
    for round in 0..100usize {
        let offset = round * 1_000;
        drop_after(fixture.read(fh, offset as u64, 500_000), 1 + round % POLLS).await;
        let bytes = fixture.bytes(fh, 900_000 - offset as u64, 3_000).await;
        assert!(bytes == content[900_000 - offset..903_000 - offset], "round {round}");
    }
    fixture.close(fh);
}
