//! Watches, byte by byte.

use std::fs;
use std::path::Path;

use helper::Options;
use rustix::fs::inotify::ReadFlags;
use sftp::codec::{
    Body, FileAttrs, Reply, Request, WatchEvent, WatchEvents, WatchId, WatchRequest,
};

use super::peer::Client;

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

fn client(root: &Path) -> Client {
    Client::new(Options { read_only: true, root: Some(root.to_owned()), ..Options::default() })
}

fn watch(client: &mut Client, path: &[u8]) -> Result<WatchId, i32> {
    match client.call(Request::Watch(WatchRequest::Add { path })) {
        Reply::Extended(body) => Ok(WatchId::decode(&body).unwrap()),
        Reply::Status { errno, .. } => Err(errno.unwrap()),
        other => panic!("{other:?}"),
    }
}

fn request_next(client: &mut Client, id: u32) {
    client.send(&[(id, Request::Watch(WatchRequest::Next))]);
}

fn receive(client: &mut Client, expected: u32) -> WatchEvents {
    match client.receive() {
        (id, Reply::Extended(body)) if id == expected => WatchEvents::decode(&body).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Events up to one of this kind.
fn events_until(client: &mut Client, kind: ReadFlags) -> Vec<WatchEvent> {
    let mut events: Vec<WatchEvent> = Vec::new();
    while !events.iter().any(|event| is(event, kind)) {
        request_next(client, 9);
        events.extend(receive(client, 9).events);
    }
    events
}

fn is(event: &WatchEvent, kind: ReadFlags) -> bool {
    event.kind & kind.bits() != 0
}

#[test]
fn a_request_for_events_waits_and_delays_no_other_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "").unwrap();
    let mut client = client(dir.path());
    let root = watch(&mut client, b".").unwrap();
    assert_eq!(watch(&mut client, b"/"), Ok(root), "an entry has one watch");
    request_next(&mut client, 70);
    // Only one waits.
    request_next(&mut client, 71);
    match client.receive() {
        (71, Reply::Status { errno, .. }) => assert_eq!(errno, Some(EBUSY)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.call(Request::Lstat { path: b"f" }), Reply::Attrs(_)));
    fs::write(dir.path().join("new"), "").unwrap();
    let events = receive(&mut client, 70);
    assert_eq!(events.number, 1);
    let first = &events.events[0];
    assert!(is(first, ReadFlags::CREATE) && first.id == root && first.name == "new", "{first:?}");
    request_next(&mut client, 72);
    // The session ends with one that waits.
    client.end().unwrap();
}

#[test]
fn names_contents_attributes_and_both_parts_of_a_rename_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "").unwrap();
    fs::create_dir(at("other")).unwrap();
    let mut client = client(dir.path());
    let d = watch(&mut client, b"d").unwrap();
    let other = watch(&mut client, b"other").unwrap();
    assert_ne!(d, other);
    fs::write(at("d/f"), "content").unwrap();
    fs::rename(at("d/f"), at("d/g")).unwrap();
    fs::write(at("other/f"), "content").unwrap();
    fs::remove_file(at("d/g")).unwrap();
    fs::remove_dir(at("d")).unwrap();
    let events = events_until(&mut client, ReadFlags::IGNORED);
    let find = |kind| events.iter().find(|event| is(event, kind)).unwrap();
    assert_eq!((find(ReadFlags::MODIFY).id, &find(ReadFlags::MODIFY).name[..]), (d, &b"f"[..]));
    let (from, to) = (find(ReadFlags::MOVED_FROM), find(ReadFlags::MOVED_TO));
    assert_eq!((&from.name[..], &to.name[..]), (&b"f"[..], &b"g"[..]));
    assert!(from.cookie == to.cookie && from.cookie != 0);
    assert!(events.iter().any(|it| it.id == other && is(it, ReadFlags::MODIFY)), "{events:?}");
    assert_eq!(&find(ReadFlags::DELETE).name[..], b"g");
    assert_eq!(find(ReadFlags::DELETE_SELF).id, d);
    // The watch has ended with the directory.
    let end = |client: &mut Client, id| client.call(Request::Watch(WatchRequest::Remove { id }));
    let refused = |reply| matches!(reply, Reply::Status { errno: Some(EINVAL), .. });
    assert!(refused(end(&mut client, d)));
    assert!(!refused(end(&mut client, other)));
    assert!(refused(end(&mut client, other)));
    client.end().unwrap();
}

/// The next reply comes a round trip later.
#[test]
fn a_burst_is_one_reply() {
    const FILES: usize = 3000;
    let dir = tempfile::tempdir().unwrap();
    let mut client = client(dir.path());
    watch(&mut client, b".").unwrap();
    for file in 0..FILES {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join(format!("file-{file}")),
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
    }
    request_next(&mut client, 9);
    let created = receive(&mut client, 9).events;
    assert_eq!(created.len(), FILES);
    assert!(created.iter().all(|event| is(event, ReadFlags::CREATE)));
    client.end().unwrap();
}

#[test]
fn lost_events_are_reported() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let mut client = client(dir.path());
    watch(&mut client, b".").unwrap();
    // Each creates at least three events, which are not the same as those before.
    for _ in 0..=limit / 3 {
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
    }
    let events = events_until(&mut client, ReadFlags::QUEUE_OVERFLOW);
    assert!(events.len() <= limit + 1);
    let lost = events.iter().find(|event| is(event, ReadFlags::QUEUE_OVERFLOW)).unwrap();
    assert_eq!(lost.id, WatchId::ALL);
    client.end().unwrap();
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let mut client = client(&root);
    for path in [&b"absent"[..], b"../outside", outside.as_os_str().as_encoded_bytes()] {
        assert_eq!(watch(&mut client, path), Err(ENOENT), "{}", path.escape_ascii());
    }
    client.end().unwrap();
    // Nor are events of nothing.
    let mut client = self::client(&root);
    let none = client.call(Request::Watch(WatchRequest::Next));
    assert!(matches!(none, Reply::Status { errno: Some(EINVAL), .. }), "{none:?}");
    client.end().unwrap();
    // A file system of which inotify does not see all changes.
    let mut client = self::client(Path::new("/proc"));
    assert_eq!(watch(&mut client, b"self"), Err(EOPNOTSUPP));
    let attrs = FileAttrs::default();
    assert!(matches!(
        client.call(Request::Mkdir { path: b"x", attrs }),
        Reply::Status { errno: Some(_), .. }
    ));
    client.end().unwrap();
}
