//! Rules for `copy`.

use base::{Access, Errno, Fh, OpenFlags};

use super::fixture::{Fixture, ok, pattern};

/// Copies until all of `len` is copied or the source has ended; a copy may stop earlier, but not
/// without progress. `None` if the remote does not support it and may.
async fn copy_all(fixture: &Fixture, from: (Fh, u64), to: (Fh, u64), len: u64) -> Option<u64> {
    let mut done = 0;
    while done < len {
        let copied = fixture.copy((from.0, from.1 + done), (to.0, to.1 + done), len - done).await;
        if copied == Err(Errno::EOPNOTSUPP) && done == 0 && !fixture.expect().copy {
            return None;
        }
        let copied = ok("copy", (done, len), copied);
        assert!(copied <= len - done, "more than was requested");
        if copied == 0 {
            break;
        }
        done += copied;
    }
    Some(done)
}

/// A whole file, of any size.
pub async fn a_copy_equals_its_source(fixture: &Fixture) {
    for len in [0, 1, 4_097, 261_121, 3_000_000] {
        let content = pattern(1, len);
        fixture.put("from", &content).await;
        fixture.put("to", b"").await;
        let from = fixture.handle("from", OpenFlags::existing(Access::Read)).await;
        let to = fixture.handle("to", OpenFlags::existing(Access::Write)).await;
        // Longer than the source: the copy ends with it.
        let done = copy_all(fixture, (from, 0), (to, 0), len as u64 + 1_000).await;
        assert!(done.is_none_or(|done| done == len as u64), "{done:?} of {len}");
        let expected = if done.is_some() { &content[..] } else { b"" };
        assert!(fixture.get("to").await == expected, "{len} bytes, of which copied: {done:?}");
        if done.is_some() {
            let nothing = fixture.copy((from, len as u64), (to, 0), 10).await;
            assert_eq!(ok("copy", "nothing", nothing), 0);
        }
        fixture.close(from);
        fixture.close(to);
        assert!(fixture.get("from").await == content);
    }
}

/// A part, to another offset: the rest of the target is unchanged.
pub async fn a_copy_changes_only_its_range(fixture: &Fixture) {
    let (source, mut target) = (pattern(1, 500_000), pattern(2, 600_000));
    fixture.put("from", &source).await;
    fixture.put("to", &target).await;
    let from = fixture.handle("from", OpenFlags::existing(Access::Read)).await;
    let to = fixture.open_rw("to").await;
    for (from_offset, to_offset, len) in
        [(0, 100, 10), (4_095, 1, 300_000), (499_990, 599_990, 100), (500_000, 0, 10)]
    {
        let there = source.len().min(from_offset + len) - from_offset;
        let (start, goal) = ((from, from_offset as u64), (to, to_offset as u64));
        if let Some(done) = copy_all(fixture, start, goal, len as u64).await {
            assert_eq!(done, there as u64);
            target.resize(target.len().max(to_offset + there), 0);
            target[to_offset..to_offset + there]
                .copy_from_slice(&source[from_offset..from_offset + there]);
        }
        assert!(fixture.bytes(to, 0, 700_000).await == target, "{len} bytes to {to_offset}");
    }
    fixture.close(from);
    fixture.close(to);
}
