//! Files on which other processes have leases.

use helper::Options;
use sftp::codec::{FileAttrs, OpenFlags, Reply, Request};
use testkit::Lease;

use super::peer::Client;

#[test]
fn a_request_that_waits_for_a_lease_delays_no_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name| dir.path().join(name);
    std::fs::write(at("other"), "").unwrap();
    let (path, none) = (&b"f"[..], FileAttrs::default());
    let truncated = FileAttrs { size: Some(0), ..none };
    let truncating = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    for (request, left) in [
        (Request::Setstat { path, attrs: truncated }, 0),
        (Request::Lsetstat { path, attrs: truncated }, 0),
        (Request::Open { path, flags: OpenFlags::READ, attrs: none }, 7),
        (Request::Open { path, flags: truncating, attrs: none }, 0),
    ] {
        std::fs::write(at("f"), "content").unwrap();
        let Some(mut lease) = Lease::take(&at("f")) else {
            eprintln!("skipped: the file system has no leases");
            return;
        };
        let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
        let mut client = Client::new(options);
        let shown = format!("{request:?}");
        client.send(&[(1, request)]);
        lease.wait_until_asked();
        assert!(matches!(client.call(Request::Lstat { path: b"other" }), Reply::Attrs(_)));
        client.call(Request::Mkdir { path: b"new", attrs: none });
        std::fs::remove_dir(at("new")).unwrap();
        // It is the file that had the name before.
        client.call(Request::PosixRename { from: b"f", to: b"g" });
        client.call(Request::PosixRename { from: b"other", to: b"f" });
        drop(lease);
        match client.receive() {
            (1, Reply::Handle(_) | Reply::Status { errno: None, .. }) => {}
            other => panic!("{shown}: {other:?}"),
        }
        assert_eq!(std::fs::metadata(at("g")).unwrap().len(), left, "{shown}");
        std::fs::rename(at("f"), at("other")).unwrap();
        client.end().unwrap();
    }
}
