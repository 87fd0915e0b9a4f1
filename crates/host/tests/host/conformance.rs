//! The conformance suite of `Remote`, run over a host in several configurations.

use host::Config;
use testkit::conformance::{Expectations, Ground};

use super::peer::Real;

/// What SFTP supports, for root or any other user.
fn expectations() -> Expectations {
    Expectations {
        opendir_follows_links: true,
        statvfs_follows_links: true,
        lstat_tells_enotdir: false,
        chown: rustix::process::getuid().is_root(),
        ..Expectations::default()
    }
}

async fn ground(config: Config, arguments: &[&str], expectations: Expectations) -> Ground {
    let real = Real::with_server(config, arguments).await;
    let (servers, dir) = (real.servers.clone(), real.dir.path().to_owned());
    Ground::new(real.host.clone())
        .expecting(expectations)
        .counting(move || servers.open_below(&dir))
        .keeping(real)
}

mod one_session {
    use super::*;

    async fn ground() -> Ground {
        super::ground(Config::default(), &[], expectations()).await
    }

    testkit::conformance!(ground);
}

/// Further sessions are allowed.
mod three_sessions {
    use super::*;

    async fn ground() -> Ground {
        let config = Config { max_conns: 3, ..Config::default() };
        super::ground(config, &[], expectations()).await
    }

    testkit::conformance!(ground);
}

/// Every read and write is split into many chunks, and listings are read one batch at a time.
mod small_pieces {
    use super::*;

    async fn ground() -> Ground {
        let config = Config {
            max_read: Some(5000),
            max_write: Some(3000),
            sync_readdir: true,
            ..Config::default()
        };
        super::ground(config, &[], expectations()).await
    }

    testkit::conformance!(ground);
}

/// A server with `posix-rename` as its only extension, and a umask that clears all it can.
mod few_extensions {
    use super::*;

    async fn ground() -> Ground {
        let refused = "statvfs,fstatvfs,hardlink,fsync,lsetstat,limits,expand-path,copy-data";
        let expectations = Expectations {
            hard_links: false,
            link_attributes: false,
            fsync: false,
            fsyncdir: false,
            copy: false,
            ..expectations()
        };
        super::ground(Config::default(), &["-u", "077", "-P", refused], expectations).await
    }

    testkit::conformance!(ground);
}
