//! Rules for `fallocate` and `seek`.

use base::{Access, Allocation, Errno, OpenFlags, Seek};

use super::fixture::{Fixture, ok, pattern};

/// A file grows to the end of the reserved space, unless its size is kept.
pub async fn space_is_reserved(fixture: &Fixture) {
    let content = pattern(1, 5_000);
    fixture.put("f", &content).await;
    let fh = fixture.open_rw("f").await;
    let reserve = |keep_size| Allocation::Reserve { keep_size };
    let kept = fixture.fallocate(fh, reserve(true), 4_000, 9_000).await;
    if fixture.expect().holes {
        ok("fallocate", "keeping the size", kept);
        assert_eq!(fixture.attr("f").await.size, 5_000);
        ok("fallocate", "growing", fixture.fallocate(fh, reserve(false), 4_000, 9_000).await);
        assert_eq!(fixture.attr("f").await.size, 13_000);
        let expected = [&content[..], &[0; 8_000]].concat();
        assert!(fixture.bytes(fh, 0, 20_000).await == expected);
        assert_eq!(fixture.fallocate(fh, reserve(true), 0, 0).await, Err(Errno::EINVAL));
        let reader = fixture.handle("f", OpenFlags::existing(Access::Read)).await;
        assert_eq!(fixture.fallocate(reader, reserve(true), 0, 1).await, Err(Errno::EBADF));
        fixture.close(reader);
    } else {
        assert_eq!(kept, Err(Errno::EOPNOTSUPP));
        assert!(fixture.bytes(fh, 0, 20_000).await == content);
    }
    fixture.close(fh);
}

/// A punched hole reads as zeros, and is found among the data. File systems without holes may show
/// all of a file as data.
pub async fn holes_are_made_and_found(fixture: &Fixture) {
    const MIB: u64 = 1 << 20;
    let mut content = pattern(2, 4 * MIB as usize);
    fixture.put("f", &content).await;
    let fh = fixture.open_rw("f").await;
    let punched = fixture.fallocate(fh, Allocation::PunchHole, MIB, MIB + 100).await;
    if fixture.expect().holes {
        ok("fallocate", "a hole", punched);
        content[MIB as usize..2 * MIB as usize + 100].fill(0);
        assert!(fixture.bytes(fh, 0, 5 << 20).await == content);
        assert_eq!(fixture.seek(fh, 10, Seek::Data).await, Ok(10));
        let hole = ok("seek", "hole", fixture.seek(fh, 10, Seek::Hole).await);
        let data = ok("seek", "data", fixture.seek(fh, MIB, Seek::Data).await);
        assert!(hole == MIB && data == 2 * MIB || hole == 4 * MIB && data == MIB, "{hole} {data}");
        assert_eq!(fixture.seek(fh, 3 * MIB, Seek::Hole).await, Ok(4 * MIB));
        for offset in [4 * MIB, u64::MAX] {
            for what in [Seek::Data, Seek::Hole] {
                assert_eq!(fixture.seek(fh, offset, what).await, Err(Errno::ENXIO));
            }
        }
    } else {
        assert_eq!(punched, Err(Errno::EOPNOTSUPP));
        assert_eq!(fixture.seek(fh, 10, Seek::Data).await, Err(Errno::EOPNOTSUPP));
        assert!(fixture.bytes(fh, 0, 5 << 20).await == content);
    }
    fixture.close(fh);
}
