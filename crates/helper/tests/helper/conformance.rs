//! The conformance suite of `Remote`, run over a host whose server is this one.

use std::sync::Arc;

use base::{Access, Errno, OpenFlags, Remote, RemotePath};
use helper::Options;
use host::{Config, Host};
use tempfile::TempDir;
use testkit::conformance::{Expectations, Fixture};

use super::peer::{Servers, open_below};

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    fixture_of(dir, options, Config::default()).await
}

/// A host whose server has these options, and shows this directory.
pub(crate) async fn fixture_of(dir: TempDir, options: Options, config: Config) -> Fixture {
    let root = dir.path().to_owned();
    let host = Host::connect(Arc::new(Servers(options)), config).await.unwrap();
    Fixture::new(Arc::new(host))
        .expecting(Expectations {
            opendir_follows_links: true,
            statvfs_follows_links: true,
            nanoseconds: true,
            inodes: true,
            chown: rustix::process::getuid().is_root(),
            ..Expectations::default()
        })
        .counting(move || open_below(&root))
        .keeping(dir)
}

testkit::conformance!(fixture);

/// A reason that SFTP has no code for, and that no further request could find.
#[tokio::test]
async fn the_errno_of_the_system_call_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    sandbox::copy_program("/bin/sleep".as_ref(), &program).unwrap();
    let mut running = std::process::Command::new(&program).arg("60").spawn().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let host = Host::connect(Arc::new(Servers(options)), Config::default()).await.unwrap();
    let path = RemotePath::parse(b"program").unwrap();
    let opened = host.open(&path, OpenFlags::existing(Access::Write)).await;
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(opened.unwrap_err(), Errno::from_raw(rustix::io::Errno::TXTBSY.raw_os_error()));
}

#[tokio::test]
async fn a_small_file_takes_one_request() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let host = Host::connect(Arc::new(Servers(options)), Config::default()).await.unwrap();
    std::fs::write(dir.path().join("f"), "content").unwrap();
    let path = RemotePath::parse(b"f").unwrap();
    let (attr, data) = host.read_file(&path, 7).await.unwrap().unwrap();
    assert_eq!((attr.size, data.to_vec()), (7, b"content".to_vec()));
    assert_eq!(host.read_file(&path, 6).await, Ok(None));
    // A server has room for one packet only.
    std::fs::write(dir.path().join("f"), vec![0; 300_000]).unwrap();
    assert_eq!(host.read_file(&path, u32::MAX).await, Ok(None));
}
