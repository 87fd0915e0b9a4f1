//! Rules for `write`, changes of size, and `fsync`.

use base::{Access, Create, Errno, OpenFlags};

use super::fixture::{Fixture, ok, pattern, read_write, size_change};
use super::reading::SIZES;
use crate::path;

/// `Ok` means that all of the data was written, at any length.
pub async fn writes_of_any_size_arrive_whole(fixture: &Fixture) {
    for len in SIZES {
        let content = pattern(3, *len);
        fixture.put("a", &content).await;
        assert!(fixture.get("a").await == content, "{len} bytes");
        assert_eq!(fixture.attr("a").await.size, *len as u64);
    }
}

/// Bytes around a write are unchanged, and a write past the end leaves zeros between.
pub async fn a_write_changes_its_range_and_nothing_else(fixture: &Fixture) {
    let mut expected = pattern(4, 600_000);
    fixture.put("a", &expected).await;
    let fh = fixture.handle("a", OpenFlags::existing(Access::Write)).await;
    for (offset, len) in
        [(0, 1), (4_095, 2), (32_767, 300_001), (599_999, 1), (599_999, 5), (700_000, 10)]
    {
        let data = pattern(5, len);
        fixture.put_at(fh, offset as u64, &data).await;
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&data);
    }
    fixture.put_at(fh, 10_000_000, b"").await;
    fixture.close(fh);
    assert!(fixture.get("a").await == expected);
}

/// A handle opened with `append` writes at the end, at any given offset and with any other writer.
pub async fn appends_go_to_the_end(fixture: &Fixture) {
    let flags = OpenFlags { append: true, ..read_write(Create::IfAbsent(0o644)) };
    let fh = fixture.handle("a", flags).await;
    let other = fixture.open_rw("a").await;
    fixture.put_at(fh, 0, b"one").await;
    fixture.put_at(fh, 1_000, b"two").await;
    fixture.put_at(other, 6, b"and").await;
    fixture.put_at(fh, 0, b"three").await;
    let big = pattern(6, 600_000);
    fixture.put_at(fh, 0, &big).await;
    fixture.close(other);
    fixture.close(fh);
    let content = fixture.get("a").await;
    assert!(content == [b"onetwoandthree", &big[..]].concat());
}

/// Truncation discards the end for good, growth adds zeros, by path and by handle.
pub async fn a_file_is_truncated_and_extended(fixture: &Fixture) {
    for by_handle in [false, true] {
        let content = pattern(7, 10_000);
        fixture.put("a", &content).await;
        let fh = fixture.open_rw("a").await;
        for (size, expected) in [
            (5_000, content[..5_000].to_vec()),
            (8_000, [&content[..5_000], &[0; 3_000]].concat()),
            (8_000, [&content[..5_000], &[0; 3_000]].concat()),
            (0, Vec::new()),
            (3, vec![0; 3]),
        ] {
            let change = size_change(size);
            if by_handle {
                ok("fsetattr", change, fixture.fsetattr(fh, change).await);
            } else {
                ok("setattr", change, fixture.setattr(&path("a"), change).await);
            }
            assert!(fixture.get("a").await == expected, "{size}, by handle: {by_handle}");
        }
        fixture.close(fh);
    }
    fixture.dir("dir").await;
    assert_eq!(fixture.setattr(&path("dir"), size_change(0)).await, Err(Errno::EISDIR));
}

/// `fsync` works after writes and without any, or fails as unsupported.
pub async fn fsync_works_or_is_unsupported(fixture: &Fixture) {
    let expected = if fixture.expect().fsync { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
    let fh = fixture.open_rw("a").await;
    assert_eq!(fixture.fsync(fh).await, expected);
    fixture.put_at(fh, 0, b"content").await;
    assert_eq!(fixture.fsync(fh).await, expected);
    fixture.close(fh);
    assert_eq!(fixture.get("a").await, b"content");
}
