//! The smallest useful file system: a directory with one file that says hello.
//!
//! ```text
//! cargo run -p fuse --example hello -- /some/empty/directory
//! cat /some/empty/directory/hello
//! fusermount3 -u /some/empty/directory
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Data, Entry, Errno, FileKind, Ino, LookupResult, Result, Stat, Timestamp};
use bytes::Bytes;
use fuse::{Config, Context, DirSink, Filesystem, Mount, MountOptions, Read, Session};

/// The root's node id is given by the protocol.
const ROOT: u64 = Ino::ROOT.0;
const FILE: u64 = 2;
const NAME: &[u8] = b"hello";
const CONTENT: &[u8] = b"Hello, world!\n";
/// Nothing ever changes, so the kernel may cache it for long.
const TTL: Duration = Duration::from_secs(3600);

struct Hello;

fn stat(ino: u64) -> Stat {
    let (kind, perm, size) = match ino {
        ROOT => (FileKind::Directory, 0o555, 0),
        _ => (FileKind::Regular, 0o444, CONTENT.len() as u64),
    };
    let time = Timestamp::default();
    let attr = Attr { kind, perm, size, uid: 0, gid: 0, atime: time, mtime: time, inode: None };
    Stat { number: ino, attr, nlink: 1, ctime: time, ttl: TTL }
}

impl Filesystem for Hello {
    async fn lookup(&self, _ctx: &Context, parent: u64, name: &[u8]) -> Result<LookupResult> {
        if parent != ROOT || name != NAME {
            return Err(Errno::ENOENT);
        }
        // Lookups would have to be counted here if inodes could be removed.
        Ok(LookupResult::Found(Entry { ino: Ino(FILE), stat: stat(FILE), ttl: TTL }))
    }

    async fn getattr(&self, _ctx: &Context, ino: u64) -> Result<Stat> {
        Ok(stat(ino))
    }

    async fn read(&self, _ino: u64, read: &Read) -> Result<Data> {
        let from = CONTENT.len().min(read.offset as usize);
        Ok(Data::from(Bytes::from_static(&CONTENT[from..])))
    }

    async fn readdir(&self, _ino: u64, _fh: u64, offset: u64, sink: &mut DirSink) -> Result<()> {
        let entries = [
            (ROOT, FileKind::Directory, &b"."[..]),
            (ROOT, FileKind::Directory, b".."),
            (FILE, FileKind::Regular, NAME),
        ];
        // The offset of an entry is where the listing continues after it.
        for (next, (ino, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if !sink.push_name(ino, next, kind, name) {
                break;
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("where shall it be mounted?")?;
    let options =
        MountOptions { fsname: "hello".into(), read_only: true, ..MountOptions::default() };
    let mount = Mount::new(Path::new(&path), &options)?;
    let config = Config { readdirplus: false, ..Config::default() };
    let session = Session::start(mount, Arc::new(Hello), config).await?;
    let end = session.run().await;
    eprintln!("{:?}", end.cause);
    Ok(())
}
