//! Rules for extended attributes.

use base::{Errno, SetXattr};
use bytes::Bytes;

use super::fixture::{Fixture, ok};
use crate::path;

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
