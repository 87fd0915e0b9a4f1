//! Opening, reading, writing, setattr, copying.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use base::{Access, AttrChange, Create, Errno, FileKind, OpenFlags, Remote, Timestamp};
use bytes::Bytes;
use host::Config;

use super::peer::{Real, path};

fn flags(access: Access, create: Create) -> OpenFlags {
    OpenFlags { create, ..OpenFlags::existing(access) }
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[tokio::test]
async fn open_returns_attributes_and_accepts_only_files() {
    let real = Real::new().await;
    real.write_local("f", "12345");
    std::fs::create_dir(real.local("d")).unwrap();
    symlink("f", real.local("l")).unwrap();
    symlink("nowhere", real.local("dangling")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(real.local("s")).unwrap();

    let opened = real.host.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!((opened.attr.kind, opened.attr.size), (FileKind::Regular, 5));
    let creates = [Create::Never, Create::IfAbsent(0o644), Create::Exclusive(0o644)];
    for (name, errno) in [
        ("d", Errno::EISDIR),
        ("", Errno::EISDIR),
        ("l", Errno::ELOOP),
        ("dangling", Errno::ELOOP),
        ("s", Errno::ENXIO),
    ] {
        for create in creates {
            let expected = match create {
                Create::Exclusive(_) => Errno::EEXIST,
                _ => errno,
            };
            for access in [Access::Read, Access::ReadWrite] {
                let opened = real.host.open(&path(name), flags(access, create)).await;
                assert_eq!(opened.err(), Some(expected), "{name} {access:?} {create:?}");
            }
        }
    }
    assert!(!real.local("nowhere").exists(), "made through a link");
    let missing = real.host.open(&path("none"), OpenFlags::existing(Access::Read)).await;
    assert_eq!(missing.err(), Some(Errno::ENOENT));
}

#[tokio::test]
async fn nothing_is_truncated_or_created_through_a_link() {
    let real = Real::new().await;
    real.write_local("f", "12345");
    symlink("f", real.local("l")).unwrap();
    let cut = OpenFlags { truncate: true, ..flags(Access::Write, Create::IfAbsent(0o644)) };
    assert_eq!(real.host.open(&path("l"), cut).await.err(), Some(Errno::ELOOP));
    assert_eq!(std::fs::read(real.local("f")).unwrap(), b"12345");
}

#[tokio::test]
async fn create_truncate_exclusive() {
    let real = Real::new().await;
    let made = real.host.open(&path("f"), flags(Access::ReadWrite, Create::Exclusive(0o640))).await;
    let made = made.unwrap();
    assert_eq!((made.attr.size, made.attr.perm), (0, 0o640));
    let again = real.host.open(&path("f"), flags(Access::Write, Create::Exclusive(0o640))).await;
    assert_eq!(again.err(), Some(Errno::EEXIST));
    real.host.write(made.fh, 0, Bytes::from_static(b"content")).await.unwrap();
    let there = real.host.open(&path("f"), flags(Access::Read, Create::IfAbsent(0o777))).await;
    assert_eq!((there.as_ref().unwrap().attr.size, there.unwrap().attr.perm), (7, 0o640));
    for access in [Access::Write, Access::Read] {
        real.write_local("f", "content");
        let cut = OpenFlags { truncate: true, ..OpenFlags::existing(access) };
        let opened = real.host.open(&path("f"), cut).await.unwrap();
        assert_eq!(opened.attr.size, 0, "attributes are those after");
        assert_eq!(std::fs::metadata(real.local("f")).unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_file_is_truncated_also_where_the_server_sets_no_attributes() {
    let real = Real::with_server(Config::default(), &["-P", "setstat,fsetstat,lsetstat"]).await;
    for (access, append) in [(Access::Write, false), (Access::Write, true), (Access::Read, false)] {
        for create in [Create::Never, Create::IfAbsent(0o644)] {
            real.write_local("f", "content");
            let cut = OpenFlags { truncate: true, append, ..flags(access, create) };
            let opened = real.host.open(&path("f"), cut).await.unwrap();
            assert_eq!(opened.attr.size, 0, "attributes are those after");
            if access.writes() {
                real.host.write(opened.fh, 0, Bytes::from_static(b"new")).await.unwrap();
            }
            let expected = if access.writes() { "new" } else { "" };
            assert_eq!(std::fs::read_to_string(real.local("f")).unwrap(), expected);
            real.host.finish(opened.fh).await.unwrap();
        }
    }
    symlink("f", real.local("l")).unwrap();
    real.write_local("f", "content");
    let cut = OpenFlags { truncate: true, ..flags(Access::Write, Create::IfAbsent(0o644)) };
    assert_eq!(real.host.open(&path("l"), cut).await.err(), Some(Errno::ELOOP));
    assert_eq!(std::fs::read(real.local("f")).unwrap(), b"content");
    // Answered after the last CLOSE.
    real.host.lstat(&path("f")).await.unwrap();
    assert_eq!(real.servers.open_below(real.dir.path()), 0, "a handle is left");
}

#[tokio::test]
async fn the_requested_mode_is_set_despite_the_umask() {
    let real = Real::with_server(Config::default(), &["-u", "077"]).await;
    let made = real.host.open(&path("f"), flags(Access::Write, Create::Exclusive(0o664))).await;
    assert_eq!(made.unwrap().attr.perm, 0o664);
    real.host.mkdir(&path("d"), 0o2775).await.unwrap();
    let perm = |name| std::fs::metadata(real.local(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((perm("f"), perm("d")), (0o664, 0o2775));
    // Bits that were not requested are kept.
    std::fs::create_dir(real.local("g")).unwrap();
    std::fs::set_permissions(real.local("g"), PermissionsExt::from_mode(0o2755)).unwrap();
    real.host.mkdir(&path("g/inner"), 0o755).await.unwrap();
    assert_eq!(perm("g/inner"), 0o2755);
    // The server decides.
    real.host.mkdir_default(&path("default")).await.unwrap();
    assert_eq!(perm("default"), 0o700);
}

#[tokio::test]
async fn long_reads_and_writes_are_split() {
    let whole = pattern(3_000_001);
    for (max_read, max_write) in [(None, None), (Some(4096), Some(7777)), (Some(1 << 20), Some(1))]
    {
        let real = Real::with(Config { max_read, max_write, ..Config::default() }).await;
        let fh = real.create("f").await;
        let content = if max_write == Some(1) { whole.slice(..5000) } else { whole.clone() };
        real.host.write(fh, 0, content.clone()).await.unwrap();
        assert!(std::fs::read(real.local("f")).unwrap() == content);
        let size = content.len();
        for (offset, len) in [(0, size), (1, 300_000), (size - 5, 100), (size, 9), (size + 7, 9)] {
            let data = real.host.read(fh, offset as u64, len as u32).await.unwrap();
            let end = (offset + len).min(size);
            let expected = content.get(offset..end).unwrap_or_default();
            assert!(data.to_vec() == expected, "{len} at {offset}");
        }
        let beyond = real.host.read(fh, 0, u32::try_from(size).unwrap() + 900_000).await.unwrap();
        assert_eq!(beyond.len(), size);
        assert!(real.host.read(fh, 0, 0).await.unwrap().is_empty());
        assert_eq!(real.host.read(fh, u64::MAX, 2).await, Err(Errno::EINVAL));
        let far = real.host.write(fh, i64::MAX as u64, Bytes::from_static(b"x")).await;
        assert_eq!(far, Err(Errno::EFBIG));
        real.host.write(fh, 0, Bytes::new()).await.unwrap();
    }
}

#[tokio::test]
async fn append_goes_to_the_end() {
    let real = Real::new().await;
    real.write_local("f", "begin ");
    let append = OpenFlags { append: true, ..OpenFlags::existing(Access::Write) };
    let fh = real.host.open(&path("f"), append).await.unwrap().fh;
    real.host.write(fh, 0, Bytes::from_static(b"one ")).await.unwrap();
    real.write_local("f", "shorter ");
    real.host.write(fh, 0, Bytes::from_static(b"two")).await.unwrap();
    assert_eq!(std::fs::read(real.local("f")).unwrap(), b"shorter two");
}

#[tokio::test]
async fn handles_without_the_required_access() {
    let real = Real::new().await;
    real.write_local("f", "x");
    let (reader, writer) =
        (real.open("f", Access::Read).await, real.open("f", Access::Write).await);
    assert_eq!(real.host.write(reader, 0, Bytes::from_static(b"x")).await, Err(Errno::EBADF));
    assert_eq!(real.host.read(writer, 0, 1).await, Err(Errno::EBADF));
    real.host.close(reader);
    assert_eq!(real.host.read(reader, 0, 1).await, Err(Errno::EBADF));
    assert_eq!(real.host.fstat(reader).await, Err(Errno::EBADF));
    real.host.close(reader);
}

#[tokio::test]
async fn an_open_file_outlives_its_name() {
    let real = Real::new().await;
    let fh = real.create("f").await;
    real.host.write(fh, 0, Bytes::from_static(b"still here")).await.unwrap();
    real.host.rename(&path("f"), &path("g"), base::RenameMode::Replace).await.unwrap();
    real.host.unlink(&path("g")).await.unwrap();
    assert_eq!(real.host.read(fh, 6, 100).await.unwrap().to_vec(), b"here");
    assert_eq!(real.host.fstat(fh).await.unwrap().size, 10);
}

#[tokio::test]
async fn sync() {
    let real = Real::new().await;
    let fh = real.create("f").await;
    real.host.fsync(fh).await.unwrap();
    std::fs::create_dir(real.local("d")).unwrap();
    real.host.fsyncdir(&path("d")).await.unwrap();
    real.host.fsyncdir(&path("")).await.unwrap();
    assert_eq!(real.host.fsyncdir(&path("none")).await, Err(Errno::ENOENT));
    let real = Real::with_server(Config::default(), &["-P", "fsync"]).await;
    let fh = real.create("f").await;
    assert_eq!(real.host.fsync(fh).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(real.host.fsyncdir(&path("")).await, Err(Errno::EOPNOTSUPP));
}

#[tokio::test]
async fn attributes_change_one_by_one() {
    for arguments in [&[][..], &["-P", "lsetstat"]] {
        let real = Real::with_server(Config::default(), arguments).await;
        real.write_local("f", "12345");
        let fh = real.open("f", Access::ReadWrite).await;
        let at = |secs| Some(Timestamp { secs, nanos: 5 });
        let none = AttrChange::default();
        for by_handle in [false, true] {
            let set = async |change| match by_handle {
                true => real.host.fsetattr(fh, change).await.unwrap(),
                false => real.host.setattr(&path("f"), change).await.unwrap(),
            };
            set(none).await;
            set(AttrChange { perm: Some(0o600), atime: at(10), mtime: at(20), ..none }).await;
            let meta = || std::fs::metadata(real.local("f")).unwrap();
            assert_eq!((meta().atime(), meta().mtime(), meta().mode() & 0o7777), (10, 20, 0o600));
            set(AttrChange { mtime: at(30), ..none }).await;
            assert_eq!((meta().atime(), meta().mtime()), (10, 30));
            set(AttrChange { atime: at(40), ..none }).await;
            assert_eq!((meta().atime(), meta().mtime()), (40, 30));
            set(AttrChange { size: Some(2), mtime: at(50), ..none }).await;
            assert_eq!((meta().len(), meta().mtime(), meta().atime()), (2, 50, 40));
            set(AttrChange { size: Some(9), ..none }).await;
            assert_eq!(std::fs::read(real.local("f")).unwrap(), b"12\0\0\0\0\0\0\0");
            set(AttrChange { size: Some(5), ..none }).await;
            if meta().uid() == 0 {
                set(AttrChange { uid: Some(77), gid: Some(88), ..none }).await;
                set(AttrChange { gid: Some(99), ..none }).await;
                assert_eq!((meta().uid(), meta().gid()), (77, 99));
                set(AttrChange { uid: Some(0), ..none }).await;
                assert_eq!((meta().uid(), meta().gid()), (0, 99));
            }
        }
        let too_large = AttrChange { size: Some(1 << 63), ..none };
        assert_eq!(real.host.setattr(&path("f"), too_large).await, Err(Errno::EFBIG));
        assert_eq!(real.host.fsetattr(fh, too_large).await, Err(Errno::EFBIG));
    }
}

#[tokio::test]
async fn attributes_of_links_are_the_links() {
    let real = Real::new().await;
    real.write_local("f", "12345");
    symlink("f", real.local("l")).unwrap();
    let before = std::fs::metadata(real.local("f")).unwrap();
    let times = AttrChange {
        atime: Some(Timestamp::from_secs(7)),
        mtime: Some(Timestamp::from_secs(8)),
        ..AttrChange::default()
    };
    real.host.setattr(&path("l"), times).await.unwrap();
    assert_eq!(real.host.lstat(&path("l")).await.unwrap().mtime, Timestamp::from_secs(8));
    let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    assert_eq!(real.host.setattr(&path("l"), perm).await, Err(Errno::EOPNOTSUPP));
    let size = AttrChange { size: Some(0), ..AttrChange::default() };
    assert_eq!(real.host.setattr(&path("l"), size).await, Err(Errno::ELOOP));
    let after = std::fs::metadata(real.local("f")).unwrap();
    assert_eq!((before.mtime(), before.mode(), 5), (after.mtime(), after.mode(), after.len()));

    // A server without lsetstat fails, and changes nothing else.
    let real = Real::with_server(Config::default(), &["-P", "lsetstat"]).await;
    real.write_local("f", "12345");
    symlink("f", real.local("l")).unwrap();
    assert_eq!(real.host.setattr(&path("l"), times).await, Err(Errno::EOPNOTSUPP));
    assert_ne!(std::fs::metadata(real.local("f")).unwrap().mtime(), 8);
}

#[tokio::test]
async fn copies_stay_on_the_server() {
    let real = Real::new().await;
    let whole = pattern(20_000_000);
    real.write_local("from", &whole);
    let from = real.open("from", Access::Read).await;
    let to = real.create("to").await;
    assert_eq!(real.host.copy((from, 0), (to, 0), u64::MAX).await, Ok(20_000_000));
    assert!(std::fs::read(real.local("to")).unwrap() == whole);
    assert_eq!(real.host.copy((from, 5), (to, 20_000_000), 10).await, Ok(10));
    assert_eq!(std::fs::read(real.local("to")).unwrap()[20_000_000..], whole[5..15]);
    assert_eq!(real.host.copy((from, 19_999_999), (to, 0), 10).await, Ok(1));
    assert_eq!(real.host.copy((from, 20_000_000), (to, 0), 10).await, Ok(0));
    assert_eq!(real.host.copy((from, 0), (to, 0), 0).await, Ok(0));
    assert_eq!(real.host.copy((from, 0), (to, i64::MAX as u64), 10).await, Err(Errno::EFBIG));

    // Never within one file, whether the handles share a path or not.
    let again = real.open("from", Access::ReadWrite).await;
    assert_eq!(real.host.copy((from, 0), (from, 10), 5).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(real.host.copy((from, 0), (again, 10), 5).await, Err(Errno::EOPNOTSUPP));
    std::fs::hard_link(real.local("from"), real.local("other")).unwrap();
    let other = real.open("other", Access::ReadWrite).await;
    assert_eq!(real.host.copy((from, 0), (other, 3), 5).await, Err(Errno::EOPNOTSUPP));
    assert!(std::fs::read(real.local("from")).unwrap() == whole);

    let real = Real::with_server(Config::default(), &["-P", "copy-data"]).await;
    let (from, to) = (real.create("a").await, real.create("b").await);
    real.host.write(from, 0, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(real.host.copy((from, 0), (to, 0), 1).await, Err(Errno::EOPNOTSUPP));
}

#[tokio::test]
async fn links_are_followed_if_configured() {
    let real = Real::with(Config { follow_symlinks: true, ..Config::default() }).await;
    real.write_local("f", "12345");
    std::fs::create_dir(real.local("d")).unwrap();
    symlink("f", real.local("l")).unwrap();
    symlink("d", real.local("ld")).unwrap();
    symlink("nowhere", real.local("dangling")).unwrap();
    let kind = async |name| real.host.lstat(&path(name)).await.unwrap().kind;
    assert_eq!(kind("l").await, FileKind::Regular);
    assert_eq!(kind("ld").await, FileKind::Directory);
    assert_eq!(kind("dangling").await, FileKind::Symlink);
    let fh = real.open("l", Access::Read).await;
    assert_eq!(real.host.read(fh, 0, 9).await.unwrap().to_vec(), b"12345");
    let change = AttrChange { perm: Some(0o611), ..AttrChange::default() };
    real.host.setattr(&path("l"), change).await.unwrap();
    assert_eq!(std::fs::metadata(real.local("f")).unwrap().mode() & 0o777, 0o611);

    let dh = real.host.opendir(&path("")).await.unwrap();
    let mut kinds = Vec::new();
    while let Some(entries) = real.host.readdir(dh).await.unwrap() {
        kinds.extend(entries.into_iter().map(|entry| {
            (String::from_utf8_lossy(entry.name.as_bytes()).into_owned(), entry.attr.unwrap().kind)
        }));
    }
    kinds.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [
        ("d", FileKind::Directory),
        ("dangling", FileKind::Symlink),
        ("f", FileKind::Regular),
        ("l", FileKind::Regular),
        ("ld", FileKind::Directory),
    ];
    assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

/// The first answer to a read is short, so the rest is requested; by then the file is closed, and
/// the server has given the same handle to another file.
#[tokio::test]
async fn a_read_never_continues_in_another_file() {
    let real = Real::new().await;
    let fh = real.create("f").await;
    real.host.write(fh, 0, Bytes::from_static(b"12345")).await.unwrap();
    real.write_local("other", [b'x'; 100]);
    let name = path("other");
    let (read, finished, opened) = tokio::join!(
        biased;
        real.host.read(fh, 0, 100),
        real.host.finish(fh),
        real.host.open(&name, OpenFlags::existing(Access::Read)),
    );
    finished.unwrap();
    match read {
        Ok(data) => assert_eq!(data.to_vec(), b"12345"),
        Err(errno) => assert_eq!(errno, Errno::EBADF),
    }
    let data = real.host.read(opened.unwrap().fh, 0, 200).await.unwrap();
    assert_eq!(data.to_vec(), [b'x'; 100]);
}
