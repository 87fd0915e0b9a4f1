//! Rules for what plain SFTP does not have: special files, reserved space and holes, extended
//! attributes.

use base::{Access, Allocation, Errno, FileKind, OpenFlags, Seek, SetXattr};
use bytes::Bytes;

use super::fixture::{Fixture, ok, pattern};
use crate::path;

/// Types that need no privilege.
pub async fn special_files_are_created(fixture: &Fixture) {
    fixture.put("taken", b"content").await;
    for kind in [FileKind::Fifo, FileKind::Socket] {
        let at = format!("{kind:?}");
        let made = fixture.mknod(&path(&at), kind, 0o640, (0, 0)).await;
        if !fixture.expect().special_files {
            assert_eq!(made, Err(Errno::EOPNOTSUPP));
            assert!(!fixture.exists(&at).await);
            continue;
        }
        ok("mknod", &at, made);
        let attr = fixture.attr(&at).await;
        assert_eq!((attr.kind, attr.perm & !0o640), (kind, 0));
        let listed =
            fixture.list("").await.into_iter().find(|it| it.name.as_bytes() == at.as_bytes());
        assert!(listed.is_some_and(|entry| entry.attr.is_none_or(|attr| attr.kind == kind)));
        for existing in [at.as_str(), "taken"] {
            let again = fixture.mknod(&path(existing), kind, 0o600, (0, 0)).await;
            assert_eq!(again, Err(Errno::EEXIST));
        }
        let orphan = fixture.mknod(&path("absent/new"), kind, 0o600, (0, 0)).await;
        assert_eq!(orphan, Err(Errno::ENOENT));
        ok("unlink", &at, fixture.unlink(&path(&at)).await);
        assert!(!fixture.exists(&at).await);
    }
    assert_eq!(fixture.get("taken").await, b"content");
}

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

const NAME: &[u8] = b"user.sshoal-test";

/// The names of the attributes of `at` that rules set.
async fn listed(fixture: &Fixture, at: &str) -> Vec<Bytes> {
    let mut names = ok("listxattr", at, fixture.listxattr(&path(at)).await);
    // A security module may have set others.
    names.retain(|name| name.starts_with(b"user."));
    names.sort();
    names
}

/// On a file and on a directory, with any bytes as the value.
pub async fn an_attribute_is_set_and_removed(fixture: &Fixture) {
    fixture.put("f", b"content").await;
    fixture.dir("d").await;
    if !fixture.expect().xattrs {
        let at = path("f");
        let value = Bytes::from_static(b"value");
        assert_eq!(fixture.getxattr(&at, NAME).await, Err(Errno::EOPNOTSUPP));
        assert_eq!(fixture.listxattr(&at).await, Err(Errno::EOPNOTSUPP));
        let set = fixture.setxattr(&at, NAME, value, SetXattr::Either).await;
        assert_eq!(set, Err(Errno::EOPNOTSUPP));
        assert_eq!(fixture.removexattr(&at, NAME).await, Err(Errno::EOPNOTSUPP));
        return;
    }
    assert!(fixture.may_exceed_sftp());
    for name in ["f", "d"] {
        let at = path(name);
        let set = |value: &[u8], mode| {
            let value = Bytes::copy_from_slice(value);
            let at = at.clone();
            async move { fixture.setxattr(&at, NAME, value, mode).await }
        };
        assert_eq!(fixture.getxattr(&at, NAME).await, Err(Errno::ENODATA));
        assert_eq!(fixture.removexattr(&at, NAME).await, Err(Errno::ENODATA));
        assert_eq!(listed(fixture, name).await, [""; 0]);
        assert_eq!(set(b"first", SetXattr::Replace).await, Err(Errno::ENODATA));
        ok("create", name, set(b"first", SetXattr::Create).await);
        assert_eq!(set(b"second", SetXattr::Create).await, Err(Errno::EEXIST));
        assert_eq!(fixture.getxattr(&at, NAME).await, Ok(Bytes::from_static(b"first")));
        let long: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
        for value in [&b""[..], b"a\0b\n", &long] {
            ok("replace", name, set(value, SetXattr::Replace).await);
            assert_eq!(fixture.getxattr(&at, NAME).await, Ok(Bytes::copy_from_slice(value)));
            ok("set", name, set(b"-", SetXattr::Either).await);
            ok("set", name, set(value, SetXattr::Either).await);
            assert_eq!(fixture.getxattr(&at, NAME).await, Ok(Bytes::copy_from_slice(value)));
        }
        let other = Bytes::from_static(b"other");
        ok("set", name, fixture.setxattr(&at, b"user.a", other, SetXattr::Create).await);
        assert_eq!(listed(fixture, name).await, [&b"user.a"[..], NAME]);
        ok("remove", name, fixture.removexattr(&at, NAME).await);
        assert_eq!(listed(fixture, name).await, ["user.a"]);
    }
    fixture.put("none", b"").await;
    match fixture.entries_with_xattrs(&path("")).await {
        Err(errno) => assert_eq!(errno, Errno::EOPNOTSUPP),
        Ok(entries) => {
            for name in ["f", "d"] {
                assert!(entries.iter().any(|entry| entry.as_bytes() == name.as_bytes()), "{name}");
            }
            // A security module may give attributes to all.
            let has_none = ok("list", "none", fixture.listxattr(&path("none")).await).is_empty();
            assert_eq!(entries.iter().any(|entry| entry.as_bytes() == b"none"), !has_none);
        }
    }
    assert_eq!(fixture.get("f").await, b"content");
    let absent = path("absent");
    assert_eq!(fixture.getxattr(&absent, NAME).await, Err(Errno::ENOENT));
    assert_eq!(fixture.listxattr(&absent).await, Err(Errno::ENOENT));
    let value = Bytes::from_static(b"value");
    let set = fixture.setxattr(&absent, NAME, value, SetXattr::Either).await;
    assert_eq!(set, Err(Errno::ENOENT));
    assert_eq!(fixture.removexattr(&absent, NAME).await, Err(Errno::ENOENT));
}

/// Linux gives links no attributes of users.
pub async fn an_attribute_of_a_link_is_not_that_of_its_target(fixture: &Fixture) {
    fixture.put("f", b"content").await;
    fixture.put_link("f", "l").await;
    if !fixture.expect().xattrs {
        return;
    }
    let value = Bytes::from_static(b"value");
    ok("set", "f", fixture.setxattr(&path("f"), NAME, value.clone(), SetXattr::Either).await);
    let link = path("l");
    let set = fixture.setxattr(&link, NAME, value.clone(), SetXattr::Either).await;
    assert_eq!(set, Err(Errno::EPERM));
    assert_eq!(fixture.removexattr(&link, NAME).await, Err(Errno::EPERM));
    assert!(fixture.getxattr(&link, NAME).await.is_err());
    assert_eq!(listed(fixture, "l").await, [""; 0]);
    assert_eq!(fixture.getxattr(&path("f"), NAME).await, Ok(value));
}
