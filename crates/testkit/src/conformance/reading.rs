//! Rules for `read` (rule 3 of [`base::remote`]).

use base::{Access, Create, Errno, OpenFlags};

use super::fixture::{Fixture, ok, pattern, read_write, size_change};
use crate::path;

/// Around the sizes of pages, of SFTP's guaranteed and OpenSSH's largest read, and above.
pub(super) const SIZES: &[usize] = &[
    0, 1, 4_095, 4_096, 4_097, 32_767, 32_768, 32_769, 65_536, 261_119, 261_120, 261_121, 262_144,
    1_000_003,
];

/// Any range of a file, read by one call, is its content.
pub async fn reads_of_any_size_return_what_was_written(fixture: &Fixture) {
    let content = pattern(1, 1_000_003);
    fixture.put("a", &content).await;
    let fh = fixture.handle("a", OpenFlags::existing(Access::Read)).await;
    for len in SIZES {
        for offset in [0, 1, 4_096, 300_000, 999_000] {
            let end = content.len().min(offset + len);
            let bytes = fixture.bytes(fh, offset as u64, *len as u32).await;
            assert!(bytes == content[offset..end], "{len} bytes at {offset}");
        }
    }
    fixture.close(fh);
}

/// A short read means the end of the file; an empty one that the offset is past it.
pub async fn reads_are_short_only_at_the_end(fixture: &Fixture) {
    for size in SIZES {
        let content = pattern(2, *size);
        fixture.put("a", &content).await;
        let fh = fixture.handle("a", OpenFlags::existing(Access::Read)).await;
        let size = *size as u64;
        let whole = fixture.bytes(fh, 0, size as u32 + 100).await;
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
            let bytes = fixture.bytes(fh, offset, len).await;
            assert_eq!(bytes.len(), expected, "{len} bytes at {offset} of {size}");
        }
        fixture.close(fh);
    }
}

/// Ranges that were never written are zeros, of any length.
pub async fn a_hole_reads_as_zeros(fixture: &Fixture) {
    let fh = fixture.handle("a", read_write(Create::IfAbsent(0o644))).await;
    fixture.put_at(fh, 1_000_000, b"end").await;
    assert_eq!(fixture.bytes(fh, 999_998, 10).await, b"\0\0end");
    assert!(fixture.bytes(fh, 0, 1_000_000).await == vec![0; 1_000_000]);
    ok("grow", "a", fixture.fsetattr(fh, size_change(2_000_000)).await);
    assert_eq!(fixture.bytes(fh, 1_000_000, 6).await, b"end\0\0\0");
    assert!(fixture.bytes(fh, 1_000_003, 1_000_000).await == vec![0; 999_997]);
    fixture.close(fh);
}

/// A read-only handle cannot write, and a write-only handle cannot read.
pub async fn access_is_limited_to_the_open_mode(fixture: &Fixture) {
    fixture.put("a", b"content").await;
    let fh = fixture.handle("a", OpenFlags::existing(Access::Read)).await;
    assert!(fixture.write(fh, 0, "x".into()).await.is_err());
    assert!(fixture.fsetattr(fh, size_change(0)).await.is_err());
    assert_eq!(fixture.bytes(fh, 0, 10).await, b"content");
    fixture.close(fh);
    let fh = fixture.handle("a", OpenFlags::existing(Access::Write)).await;
    assert!(fixture.read(fh, 0, 10).await.is_err());
    fixture.put_at(fh, 0, b"C").await;
    fixture.close(fh);
    assert_eq!(fixture.get("a").await, b"Content");
    assert_eq!(fixture.lstat(&path("a")).await.map(|attr| attr.size), Ok(7));
}

/// `read_file` returns the whole content with its attributes, or is not supported.
pub async fn a_small_file_is_read_whole_or_by_more_requests(fixture: &Fixture) {
    const MAX: u32 = 100_000;
    for len in [0, 1, 4_096, 99_999, 100_000] {
        let content = pattern(len as u8, len);
        fixture.put("f", &content).await;
        let (attr, data) = match fixture.read_file(&path("f"), MAX).await {
            Err(Errno::EOPNOTSUPP) => return,
            read => ok("read_file", "f", read).unwrap_or_else(|| panic!("{len} bytes are short")),
        };
        assert!(data.to_vec() == content, "{len} bytes");
        assert_eq!(attr, fixture.attr("f").await);
    }
    fixture.put("f", &pattern(7, 100_001)).await;
    assert_eq!(fixture.read_file(&path("f"), MAX).await, Ok(None));
    fixture.dir("d").await;
    ok("symlink", "link", fixture.symlink(b"f", &path("link")).await);
    for other in ["d", "link", "absent", "f/x"] {
        let read = fixture.read_file(&path(other), u32::MAX).await;
        assert!(read.is_err(), "{other}: {read:?}");
    }
}
