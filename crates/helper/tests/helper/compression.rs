//! Compressed packets.

use std::io::Write;
use std::sync::Arc;

use base::{Access, Create, OpenFlags, Remote, RemotePath};
use bytes::BytesMut;
use helper::{Error, Options};
use host::{Config, Host};
use sftp::codec::{self, Malformed, Reply, Request, pack};
use sftp::{FileAttrs, StatusCode};
use testkit::conformance::Fixture;

use super::conformance::fixture_of;
use super::peer::{Client, Servers};

fn config() -> Config {
    Config { compresses: true, ..Config::default() }
}

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    fixture_of(dir, options, Config { max_conns: 3, ..config() }).await
}

testkit::conformance!(fixture);

/// Half of it shrinks.
fn content() -> Vec<u8> {
    let text = (0..100_000_u32).flat_map(|number| format!("line {number}\n").into_bytes());
    let random =
        (0..250_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes());
    text.chain(random).collect()
}

#[tokio::test]
async fn contents_and_listings_take_fewer_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let host = Host::connect(Arc::new(Servers(options)), config()).await.unwrap();
    let content = content();
    let counters = host.counters();
    let path = RemotePath::parse(b"f").unwrap();
    let flags =
        OpenFlags { create: Create::IfAbsent(0o600), ..OpenFlags::existing(Access::ReadWrite) };
    let fh = host.open(&path, flags).await.unwrap().fh;
    host.write(fh, 0, content.clone().into()).await.unwrap();
    let (sent, saved) = (counters.sent_bytes.get(), counters.sent_saved_bytes.get());
    assert!(sent + saved > content.len() as u64, "{sent} {saved}");
    assert!(sent < content.len() as u64 - 500_000, "{sent}");
    // Beyond the end, too.
    let read = host.read(fh, 0, content.len() as u32 + 1000).await.unwrap();
    assert!(read.to_vec() == content);
    let (received, saved) = (counters.received_bytes.get(), counters.received_saved_bytes.get());
    assert!(received + saved > content.len() as u64, "{received} {saved}");
    assert!(received < content.len() as u64 - 500_000, "{received}");
    host.finish(fh).await.unwrap();
    assert!(std::fs::read(dir.path().join("f")).unwrap() == content);
    // The content of small files, and names.
    std::fs::write(dir.path().join("small"), &content[..5000]).unwrap();
    let small = RemotePath::parse(b"small").unwrap();
    let (_, data) = host.read_file(&small, 5000).await.unwrap().unwrap();
    assert!(data.to_vec() == content[..5000]);
    let grown = counters.received_saved_bytes.get();
    assert!(grown > saved + 3000, "{grown}");
    for number in 0..100 {
        std::fs::write(dir.path().join(format!("name-{number}")), "").unwrap();
    }
    let listing = host.opendir(&RemotePath::root()).await.unwrap();
    let mut names = 0;
    while let Some(entries) = host.readdir(listing).await.unwrap() {
        names += entries.len();
    }
    assert!(names >= 102, "{names}");
    assert!(counters.received_saved_bytes.get() > grown + 3000);
}

fn encoded(request: &Request<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    request.encode(7, &mut out);
    out
}

fn long_path() -> Vec<u8> {
    vec![b'x'; 4000]
}

#[test]
fn a_client_may_compress_requests_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), [b'x'; 5000]).unwrap();
    let root = Some(dir.path().to_owned());
    let mut client = Client::new(Options { root, ..Options::default() });
    let is_done = |reply| matches!(reply, Reply::Status { code: StatusCode::OK, .. });
    assert!(is_done(client.call(Request::Deflate { replies: false })));
    let flags = sftp::OpenFlags::READ;
    let handle = client.handle(Request::Open { path: b"f", flags, attrs: FileAttrs::default() });
    let packed = pack(&encoded(&Request::Lstat { path: &long_path() }), &[]).unwrap();
    client.stream.write_all(&packed).unwrap();
    let (id, reply) = client.receive();
    assert!(matches!((id, reply), (7, Reply::Status { errno: Some(36), .. })));
    let read = Request::Read { handle: &handle, offset: 0, len: 5000 };
    assert_eq!(client.call(read), Reply::Data(vec![b'x'; 5000].into()));
    client.end().unwrap();
}

#[test]
fn a_compressed_packet_that_is_not_valid_ends_the_session() {
    let request = encoded(&Request::Lstat { path: &long_path() });
    let packed = pack(&request, &[]).unwrap();
    let mut damaged = packed.clone();
    *damaged.last_mut().unwrap() ^= 0xff;
    let mut too_long = packed.clone();
    too_long[9..13].copy_from_slice(&300_000_u32.to_be_bytes());
    let nested = {
        let mut outer = [&packed[..], &[0; 4000]].concat();
        let len = outer.len() as u32 - 4;
        outer[..4].copy_from_slice(&len.to_be_bytes());
        // The inner one is not even unpacked.
        pack(&outer, &[]).unwrap()
    };
    let too_much = Malformed::TooLong { len: 300_000, max: codec::MAX_PACKET_BYTES };
    for (packet, enabled, expected) in [
        (&packed, false, Malformed::UnknownType(210)),
        (&damaged, true, Malformed::BadValue("damaged compressed content")),
        (&too_long, true, too_much),
        (&nested, true, Malformed::UnknownType(210)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = Some(dir.path().to_owned());
        let mut client = Client::new(Options { root, ..Options::default() });
        if enabled {
            client.call(Request::Deflate { replies: true });
        }
        client.stream.write_all(packet).unwrap();
        match client.end() {
            Err(Error::Malformed(malformed)) => assert_eq!(malformed, expected),
            other => panic!("{other:?}"),
        }
    }
}
