//! The conformance suite of `Remote`, run over a host in several configurations.

use host::Config;
use testkit::conformance::{Expectations, Fixture};

use super::peer::Real;

/// What SFTP supports, for root or any other user.
fn expectations() -> Expectations {
    Expectations {
        opendir_follows_links: true,
        statvfs_follows_links: true,
        lstat_returns_enotdir: false,
        chown: rustix::process::getuid().is_root(),
        ..Expectations::default().of_plain_sftp()
    }
}

async fn fixture(config: Config, arguments: &[&str], expectations: Expectations) -> Fixture {
    let real = Real::with_server(config, arguments).await;
    let (servers, dir) = (real.servers.clone(), real.dir.path().to_owned());
    Fixture::new(real.host.clone())
        .expecting(expectations)
        .counting(move || servers.open_below(&dir))
        .keeping(real)
}

mod one_session {
    use super::*;

    async fn fixture() -> Fixture {
        super::fixture(Config::default(), &[], expectations()).await
    }

    testkit::conformance!(fixture);
}

/// Further sessions are allowed.
mod three_sessions {
    use super::*;

    async fn fixture() -> Fixture {
        let config = Config { max_conns: 3, ..Config::default() };
        super::fixture(config, &[], expectations()).await
    }

    testkit::conformance!(fixture);
}

/// Every read and write is split into many chunks, and listings are read one batch at a time.
mod small_pieces {
    use super::*;

    async fn fixture() -> Fixture {
        let config = Config {
            max_read: Some(5000),
            max_write: Some(3000),
            sync_readdir: true,
            ..Config::default()
        };
        super::fixture(config, &[], expectations()).await
    }

    testkit::conformance!(fixture);
}

/// A server with `posix-rename` as its only extension, and a umask that clears all it can.
mod few_extensions {
    use super::*;

    async fn fixture() -> Fixture {
        let refused = "statvfs,fstatvfs,hardlink,fsync,lsetstat,limits,expand-path,copy-data";
        let expectations = Expectations {
            statvfs: false,
            hard_links: false,
            link_attributes: false,
            fsync: false,
            fsyncdir: false,
            copy: false,
            ..expectations()
        };
        super::fixture(Config::default(), &["-u", "077", "-P", refused], expectations).await
    }

    testkit::conformance!(fixture);
}
