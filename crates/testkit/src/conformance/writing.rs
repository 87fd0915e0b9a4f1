//! Rules of `write`, of changes of size, and of `fsync`.

use base::{Access, Create, Errno, OpenFlags};

use super::ground::{Ground, ok, pattern, read_write, size_change};
use super::reading::SIZES;
use crate::path;

/// `Ok` means that all of the data is there, however long it was.
pub async fn writes_of_any_size_arrive_whole(ground: &Ground) {
    for len in SIZES {
        let content = pattern(3, *len);
        ground.put("a", &content).await;
        assert!(ground.get("a").await == content, "{len} bytes");
        assert_eq!(ground.attr("a").await.size, *len as u64);
    }
}

/// Bytes before and behind a write stay, and a write past the end leaves zeros between.
pub async fn a_write_changes_its_range_and_nothing_else(ground: &Ground) {
    let mut expected = pattern(4, 600_000);
    ground.put("a", &expected).await;
    let fh = ground.handle("a", OpenFlags::existing(Access::Write)).await;
    for (offset, len) in
        [(0, 1), (4_095, 2), (32_767, 300_001), (599_999, 1), (599_999, 5), (700_000, 10)]
    {
        let data = pattern(5, len);
        ground.put_at(fh, offset as u64, &data).await;
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&data);
    }
    ground.put_at(fh, 10_000_000, b"").await;
    ground.close(fh);
    assert!(ground.get("a").await == expected);
}

/// A handle opened with `append` writes at the end, whatever offset is named and whoever else
/// writes.
pub async fn appends_go_to_the_end(ground: &Ground) {
    let flags = OpenFlags { append: true, ..read_write(Create::IfAbsent(0o644)) };
    let fh = ground.handle("a", flags).await;
    let other = ground.open_rw("a").await;
    ground.put_at(fh, 0, b"one").await;
    ground.put_at(fh, 1_000, b"two").await;
    ground.put_at(other, 6, b"and").await;
    ground.put_at(fh, 0, b"three").await;
    let big = pattern(6, 600_000);
    ground.put_at(fh, 0, &big).await;
    ground.close(other);
    ground.close(fh);
    let content = ground.get("a").await;
    assert!(content == [b"onetwoandthree", &big[..]].concat());
}

/// Cutting loses the end for good, growing adds zeros, by path as by handle.
pub async fn a_file_is_cut_and_grown(ground: &Ground) {
    for by_handle in [false, true] {
        let content = pattern(7, 10_000);
        ground.put("a", &content).await;
        let fh = ground.open_rw("a").await;
        for (size, expected) in [
            (5_000, content[..5_000].to_vec()),
            (8_000, [&content[..5_000], &[0; 3_000]].concat()),
            (8_000, [&content[..5_000], &[0; 3_000]].concat()),
            (0, Vec::new()),
            (3, vec![0; 3]),
        ] {
            let change = size_change(size);
            if by_handle {
                ok("fsetattr", change, ground.fsetattr(fh, change).await);
            } else {
                ok("setattr", change, ground.setattr(&path("a"), change).await);
            }
            assert!(ground.get("a").await == expected, "{size}, by handle: {by_handle}");
        }
        ground.close(fh);
    }
    ground.dir("dir").await;
    assert_eq!(ground.setattr(&path("dir"), size_change(0)).await, Err(Errno::EISDIR));
}

/// A sync works after writes and without any, or says that there is no such thing.
pub async fn fsync_answers(ground: &Ground) {
    let expected = if ground.expect().fsync { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
    let fh = ground.open_rw("a").await;
    assert_eq!(ground.fsync(fh).await, expected);
    ground.put_at(fh, 0, b"content").await;
    assert_eq!(ground.fsync(fh).await, expected);
    ground.close(fh);
    assert_eq!(ground.get("a").await, b"content");
}
