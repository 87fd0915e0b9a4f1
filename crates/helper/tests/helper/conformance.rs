//! The conformance suite of `Remote`, run over a host whose server is this one.

use std::sync::Arc;

use helper::Options;
use host::{Config, Host};
use testkit::conformance::{Expectations, Fixture};

use super::peer::{Servers, open_below};

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let options = Options { root: Some(root.clone()), ..Options::default() };
    let host = Host::connect(Arc::new(Servers(options)), Config::default()).await.unwrap();
    // Of the root itself each server has a descriptor.
    let servers = open_below(&root);
    Fixture::new(Arc::new(host))
        .expecting(Expectations {
            opendir_follows_links: true,
            statvfs_follows_links: true,
            lstat_returns_enotdir: false,
            chown: rustix::process::getuid().is_root(),
            ..Expectations::default()
        })
        .counting(move || open_below(&root).saturating_sub(servers))
        .keeping(dir)
}

testkit::conformance!(fixture);
