//! Digests that the server computes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Attr, DigestEffort, DigestKind, Remote, RemotePath, Timestamp};
use helper::Options;
use host::{Config, Host};
use sftp::codec::{Body, DigestAlgorithm, FileDigest, Reply, Request};

use super::peer::{Client, Servers};

const HEX: [(DigestKind, &str); 4] = [
    (DigestKind::Md5, "900150983cd24fb0d6963f7d28e17f72"),
    (DigestKind::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
    (DigestKind::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    (DigestKind::Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
];

fn rooted(dir: &tempfile::TempDir) -> Options {
    Options { root: Some(dir.path().to_owned()), ..Options::default() }
}

async fn digest(host: &Host, at: &str, attr: &Attr, kind: DigestKind) -> Option<String> {
    let path = RemotePath::parse(at.as_bytes()).unwrap();
    let digest = host.digest(&path, attr, kind, DigestEffort::Compute).await.unwrap()?;
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[tokio::test]
async fn a_digest_is_that_of_the_content_with_these_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::connect(Arc::new(Servers(rooted(&dir))), Config::default()).await.unwrap();
    std::fs::write(dir.path().join("f"), "abc").unwrap();
    std::os::unix::fs::symlink("f", dir.path().join("link")).unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let attr = host.lstat(&RemotePath::parse(b"f").unwrap()).await.unwrap();
    for (kind, hex) in HEX {
        for _ in 0..2 {
            assert_eq!(digest(&host, "f", &attr, kind).await.as_deref(), Some(hex), "{kind:?}");
        }
        for other in ["link", "d"] {
            assert_eq!(digest(&host, other, &attr, kind).await, None, "{other}");
        }
    }
    for other in [Attr { size: 4, ..attr }, Attr { mtime: Timestamp { secs: 1, nanos: 0 }, ..attr }]
    {
        assert_eq!(digest(&host, "f", &other, DigestKind::Md5).await, None);
    }
    // Another content of the same size.
    std::fs::write(dir.path().join("f"), "abd").unwrap();
    assert_eq!(digest(&host, "f", &attr, DigestKind::Md5).await, None);
    let attr = host.lstat(&RemotePath::parse(b"f").unwrap()).await.unwrap();
    let changed = digest(&host, "f", &attr, DigestKind::Md5).await;
    assert_eq!(changed.as_deref(), Some("4911e516e5aa21d327512e0c8b197616"));
    let path = RemotePath::parse(b"f").unwrap();
    let known = host.digest(&path, &attr, DigestKind::Md5, DigestEffort::Known).await;
    assert_eq!(known, Ok(None));
}

/// A change of the content that leaves size and mtime as they were.
#[test]
fn a_kept_digest_is_not_used_after_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "abc").unwrap();
    let mut client = Client::new(rooted(&dir));
    let mut md5 =
        || match client.call(Request::Digest { path: b"f", algorithm: DigestAlgorithm::MD5 }) {
            Reply::Extended(body) => FileDigest::decode(&body).unwrap(),
            other => panic!("{other:?}"),
        };
    let first = md5();
    let file = File::options().write(true).open(&path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    // Right after the digest was computed, within one tick of the kernel's clock.
    file.write_all_at(b"abd", 0).unwrap();
    file.set_modified(modified).unwrap();
    let second = md5();
    assert_eq!(first.attrs.size, second.attrs.size);
    assert_ne!(first.digest, second.digest);
    client.end().unwrap();
}

/// While it computes, the server answers other requests, and it is never silent for long.
#[test]
fn a_long_computation_goes_on_with_the_next_request() {
    let dir = tempfile::tempdir().unwrap();
    // A hole, which takes no space.
    File::create(dir.path().join("f")).unwrap().set_len(64 << 30).unwrap();
    std::fs::write(dir.path().join("g"), "abc").unwrap();
    let mut client = Client::new(rooted(&dir));
    let digest = Request::Digest { path: b"f", algorithm: DigestAlgorithm::MD5 };
    for _ in 0..2 {
        let begun = Instant::now();
        client.send(&[(1, digest.clone()), (2, Request::Lstat { path: b"g" })]);
        let first = client.receive();
        assert!(matches!(first, (2, Reply::Attrs(_))), "{first:?}");
        let errno = match client.receive() {
            (1, Reply::Status { errno, .. }) => errno,
            other => panic!("{other:?}"),
        };
        assert_eq!(errno, Some(base::Errno::EINPROGRESS.raw()));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    client.end().unwrap();
}
