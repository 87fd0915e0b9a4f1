//! Sizes beyond the limit of a file system: SFTP has no status for them.

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote};
use bytes::Bytes;
use host::{Config, Host};
use sftp::codec::Request;
use sftp::{FileAttrs, StatusCode};

use super::peer::{Actor, Real, path, staged};

const FAR: u64 = 1 << 50;

async fn open(host: &Host, actor: &mut Actor, append: bool) -> base::Fh {
    let flags = OpenFlags { access: Access::Write, create: Create::Never, truncate: false, append };
    let serve = async {
        let look = actor.expect(Request::Lstat { path: b"f" }).await;
        let open = actor.receive(|id, _| id).await;
        actor.attrs(look, 0o100_644, 7).await;
        actor.handle(open, b"h").await;
    };
    let path = path("f");
    let (opened, ()) = tokio::join!(host.open(&path, flags), serve);
    opened.unwrap().fh
}

fn sized(size: u64) -> AttrChange {
    AttrChange { size: Some(size), ..AttrChange::default() }
}

/// OpenSSH's server seeks first, and Linux rejects that with `EINVAL`.
#[tokio::test]
async fn a_write_at_an_impossible_offset_is_efbig() {
    for (append, offset, answer, errno) in [
        (false, FAR, StatusCode::BAD_MESSAGE, Errno::EFBIG),
        (false, FAR, StatusCode::FAILURE, Errno::EIO),
        (false, 7, StatusCode::BAD_MESSAGE, Errno::EINVAL),
        (true, FAR, StatusCode::BAD_MESSAGE, Errno::EINVAL),
    ] {
        let (host, mut actor) = staged(&[], Config::default()).await;
        let fh = open(&host, &mut actor, append).await;
        let serve = async {
            let write = actor.receive(|id, _| id).await;
            actor.fail(write, answer).await;
        };
        let (written, ()) = tokio::join!(host.write(fh, offset, Bytes::from_static(b"x")), serve);
        assert_eq!(written, Err(errno), "{append} {offset} {answer:?}");
    }
}

/// The error of the second chunk of a write depends on the offset of that chunk.
#[tokio::test]
async fn a_chunk_of_a_write_is_judged_by_its_own_offset() {
    const LIMIT: u64 = u32::MAX as u64;
    let config = Config { max_write: Some(4), ..Config::default() };
    let (host, mut actor) = staged(&[], config).await;
    let fh = open(&host, &mut actor, false).await;
    let serve = async {
        let parts = [actor.receive(|id, _| id).await, actor.receive(|id, _| id).await];
        actor.fail(parts[0], StatusCode::OK).await;
        actor.fail(parts[1], StatusCode::BAD_MESSAGE).await;
    };
    let data = Bytes::from_static(b"8 bytes!");
    let (written, ()) = tokio::join!(host.write(fh, LIMIT - 3, data), serve);
    assert_eq!(written, Err(Errno::EFBIG));
}

/// A file that only grows needs no room, so there is no other cause.
#[tokio::test]
async fn a_file_that_cannot_grow_is_efbig() {
    for (size, now, by_path, by_handle) in [
        (FAR, 7, Errno::EFBIG, Errno::EFBIG),
        (FAR, 2 * FAR, Errno::EPERM, Errno::EIO),
        (1 << 20, 7, Errno::EPERM, Errno::EIO),
    ] {
        let (host, mut actor) = staged(&[], Config::default()).await;
        let fh = open(&host, &mut actor, false).await;
        let serve = async {
            let look = actor.expect(Request::Lstat { path: b"f" }).await;
            actor.attrs(look, 0o100_644, now).await;
            let attrs = FileAttrs { size: Some(size), ..FileAttrs::default() };
            let change = actor.expect(Request::Setstat { path: b"f", attrs }).await;
            actor.fail(change, StatusCode::FAILURE).await;
            if size == FAR {
                let look = actor.expect(Request::Stat { path: b"f" }).await;
                actor.attrs(look, 0o100_644, now).await;
            }
            let change = actor.expect(Request::Fsetstat { handle: b"h", attrs }).await;
            actor.fail(change, StatusCode::FAILURE).await;
            if size == FAR {
                let look = actor.expect(Request::Fstat { handle: b"h" }).await;
                actor.attrs(look, 0o100_644, now).await;
            }
        };
        let name = path("f");
        let change = async {
            (host.setattr(&name, sized(size)).await, host.fsetattr(fh, sized(size)).await)
        };
        let (changed, ()) = tokio::join!(change, serve);
        assert_eq!(changed, (Err(by_path), Err(by_handle)), "{size} from {now}");
    }
}

#[tokio::test]
async fn openssh_and_a_real_limit() {
    let real = Real::new().await;
    let fh = real.create("f").await;
    let local = std::fs::File::options().write(true).open(real.local("f")).unwrap();
    if local.set_len(FAR).is_ok() {
        eprintln!("skipped: openssh_and_a_real_limit: this file system has files of 1 PiB");
        return;
    }
    let written = real.host.write(fh, FAR, Bytes::from_static(b"x")).await;
    assert_eq!(written, Err(Errno::EFBIG));
    assert_eq!(real.host.setattr(&path("f"), sized(FAR)).await, Err(Errno::EFBIG));
    assert_eq!(real.host.fsetattr(fh, sized(FAR)).await, Err(Errno::EFBIG));
    real.host.write(fh, 5 << 30, Bytes::from_static(b"x")).await.unwrap();
    real.host.fsetattr(fh, sized(6 << 30)).await.unwrap();
    real.host.setattr(&path("f"), sized(0)).await.unwrap();
}
