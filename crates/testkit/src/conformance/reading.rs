//! Rules of `read` (rule 3 of [`base::remote`]).

use base::{Access, Create, OpenFlags};

use super::ground::{Ground, ok, pattern, read_write, size_change};
use crate::path;

/// Around the sizes of pages, of SFTP's guaranteed and OpenSSH's largest read, and above.
pub(super) const SIZES: &[usize] = &[
    0, 1, 4_095, 4_096, 4_097, 32_767, 32_768, 32_769, 65_536, 261_119, 261_120, 261_121, 262_144,
    1_000_003,
];

/// Any range of a file, read in one call, is the bytes that are there.
pub async fn reads_give_what_was_written_at_any_size(ground: &Ground) {
    let content = pattern(1, 1_000_003);
    ground.put("a", &content).await;
    let fh = ground.handle("a", OpenFlags::existing(Access::Read)).await;
    for len in SIZES {
        for offset in [0, 1, 4_096, 300_000, 999_000] {
            let end = content.len().min(offset + len);
            let bytes = ground.bytes(fh, offset as u64, *len as u32).await;
            assert!(bytes == content[offset..end], "{len} bytes at {offset}");
        }
    }
    ground.close(fh);
}

/// Fewer bytes than asked for mean the end of the file; no bytes mean that it was before.
pub async fn reads_are_short_only_at_the_end(ground: &Ground) {
    for size in SIZES {
        let content = pattern(2, *size);
        ground.put("a", &content).await;
        let fh = ground.handle("a", OpenFlags::existing(Access::Read)).await;
        let size = *size as u64;
        let whole = ground.bytes(fh, 0, size as u32 + 100).await;
        assert!(whole == content, "{size} bytes and 100 more, in one call");
        for (offset, len, expected) in [
            (size, 1, 0),
            (size, 300_000, 0),
            (size + 1, 10, 0),
            (1 << 40, 10, 0),
            (size.saturating_sub(1), 10, size.min(1) as usize),
            (0, 0, 0),
            (size, 0, 0),
        ] {
            let bytes = ground.bytes(fh, offset, len).await;
            assert_eq!(bytes.len(), expected, "{len} bytes at {offset} of {size}");
        }
        ground.close(fh);
    }
}

/// What was never written reads as zeros, over any length.
pub async fn a_hole_reads_as_zeros(ground: &Ground) {
    let fh = ground.handle("a", read_write(Create::IfAbsent(0o644))).await;
    ground.put_at(fh, 1_000_000, b"end").await;
    assert_eq!(ground.bytes(fh, 999_998, 10).await, b"\0\0end");
    assert!(ground.bytes(fh, 0, 1_000_000).await == vec![0; 1_000_000]);
    ok("grow", "a", ground.fsetattr(fh, size_change(2_000_000)).await);
    assert_eq!(ground.bytes(fh, 1_000_000, 6).await, b"end\0\0\0");
    assert!(ground.bytes(fh, 1_000_003, 1_000_000).await == vec![0; 999_997]);
    ground.close(fh);
}

/// A handle for one direction does not go the other way.
pub async fn access_is_what_was_asked_for(ground: &Ground) {
    ground.put("a", b"content").await;
    let fh = ground.handle("a", OpenFlags::existing(Access::Read)).await;
    assert!(ground.write(fh, 0, "x".into()).await.is_err());
    assert!(ground.fsetattr(fh, size_change(0)).await.is_err());
    assert_eq!(ground.bytes(fh, 0, 10).await, b"content");
    ground.close(fh);
    let fh = ground.handle("a", OpenFlags::existing(Access::Write)).await;
    assert!(ground.read(fh, 0, 10).await.is_err());
    ground.put_at(fh, 0, b"C").await;
    ground.close(fh);
    assert_eq!(ground.get("a").await, b"Content");
    assert_eq!(ground.lstat(&path("a")).await.map(|attr| attr.size), Ok(7));
}
