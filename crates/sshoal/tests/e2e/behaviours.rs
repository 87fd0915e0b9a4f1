//! What sshfs's own suite has published as its behaviour, in the matrix of caching on, off and as
//! it comes × one or several connections × READDIRs one at a time or pipelined.
//!
//! The last word of what is right is the directory on the server, which each behaviour looks at
//! beside the mount.

mod attributes;
mod content;
mod names;
mod options;

pub(crate) use content::pattern;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mount::Mount;
use crate::process::eventually;
use crate::world::World;

/// A mount and the directory behind it.
struct Pair<'a> {
    world: &'a World,
    mount: &'a Mount,
    /// How long a change behind the mount may stay unseen.
    staleness: Duration,
}

impl Pair<'_> {
    /// The same name in the mount and on the server.
    fn both(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.mount.at(name), self.world.served(name))
    }

    /// Writes a file on the server, and waits until its name is seen in the mount: a listing may
    /// have shown that there was none.
    fn put(&self, there: &Path, content: &[u8]) {
        fs::write(there, content).unwrap();
        let name = there.strip_prefix(self.world.served("")).unwrap();
        let here = self.mount.at(name.to_str().unwrap());
        eventually(ABSENT, "the name", || here.symlink_metadata().is_ok());
    }

    /// A directory for one behaviour, on the server; where it is in the mount, and there.
    fn dir(&self, name: &str) -> (PathBuf, PathBuf) {
        let (here, there) = self.both(name);
        fs::create_dir(&there).unwrap();
        // Whatever the test's umask.
        fs::set_permissions(&there, fs::Permissions::from_mode(0o755)).unwrap();
        eventually(ABSENT, "the directory", || here.is_dir());
        (here, there)
    }
}

/// How long a name may be taken for absent (`acnegative`), and a moment to look.
const ABSENT: Duration = Duration::from_secs(3);

type Behaviour = fn(&Pair);

/// Runs them all on one mount with these options.
fn run_all(caching: &str, staleness: Duration, others: &[&str]) {
    let world = World::new();
    let mut options = if caching.is_empty() { vec![] } else { vec!["-o", caching] };
    options.extend(others);
    let mount = world.mount(&options);
    let pair = Pair { world: &world, mount: &mount, staleness };
    let all: [(&str, &[(&str, Behaviour)]); 3] =
        [("content", content::ALL), ("names", names::ALL), ("attributes", attributes::ALL)];
    for (module, behaviours) in all {
        for (name, behaviour) in behaviours {
            // Shown only when the test fails.
            eprintln!("{module}::{name} with {options:?}");
            behaviour(&pair);
        }
    }
}

/// Attributes that count for a second, as sshfs's suite asks for it.
const CACHED: &str = "dcache_timeout=1,dir_cache=yes,entry_timeout=0,attr_timeout=0";
const UNCACHED: &str = "dir_cache=no,entry_timeout=0,attr_timeout=0";

macro_rules! matrix {
    ($($name:ident: $caching:expr, $staleness:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn one_connection() {
                run_all($caching, $staleness, &[]);
            }

            #[test]
            fn three_connections() {
                run_all($caching, $staleness, &["-o", "max_conns=3"]);
            }

            #[test]
            fn one_readdir_at_a_time() {
                run_all($caching, $staleness, &["-o", "sync_readdir"]);
            }

            #[test]
            fn three_connections_and_one_readdir_at_a_time() {
                run_all($caching, $staleness, &["-o", "max_conns=3,sync_readdir"]);
            }
        }
    )*};
}

matrix! {
    cached: CACHED, Duration::from_secs(1);
    uncached: UNCACHED, Duration::ZERO;
    // acregmax, the longest time that a thing which has not changed for long may count.
    as_it_comes: "", Duration::from_secs(20);
}
