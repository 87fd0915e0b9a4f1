//! The cost of the protocol itself: one file of 512 MiB, read from memory.
//!
//! ```text
//! cargo run --release -p fuse --example floor -- /some/empty/directory [readers [io_uring entries]]
//! fio --name=r --filename=/some/empty/directory/data --rw=randread --bs=4k --direct=1 \
//!     --ioengine=psync --runtime=5 --time_based --size=512m
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Attr, Data, Entry, Errno, FileKind, Ino, LookupResult, Result, Stat, Timestamp};
use bytes::Bytes;
use fuse::{
    Config, Context, Filesystem, Mount, MountOptions, Open, OpenReply, Opened, Read, Session, Write,
};

const ROOT: u64 = Ino::ROOT.0;
const FILE: u64 = 2;
const SIZE: u64 = 512 << 20;
const TTL: Duration = Duration::from_secs(3600);

/// The content of the largest READ, the same for each.
struct Floor(Bytes);

fn stat(ino: u64) -> Stat {
    let (kind, perm, size) = match ino {
        ROOT => (FileKind::Directory, 0o755, 0),
        _ => (FileKind::Regular, 0o666, SIZE),
    };
    let time = Timestamp::default();
    let attr = Attr { kind, perm, size, uid: 0, gid: 0, atime: time, mtime: time, inode: None };
    Stat { number: ino, attr, nlink: 1, ctime: time, ttl: TTL }
}

impl Filesystem for Floor {
    async fn lookup(&self, _ctx: &Context, _parent: u64, name: &[u8]) -> Result<LookupResult> {
        match name {
            b"data" => {
                Ok(LookupResult::Found(Entry { ino: Ino(FILE), stat: stat(FILE), ttl: TTL }))
            }
            _ => Err(Errno::ENOENT),
        }
    }

    async fn getattr(&self, _ctx: &Context, ino: u64) -> Result<Stat> {
        Ok(stat(ino))
    }

    async fn open(&self, _ctx: &Context, _ino: u64, open: &Open) -> Result<Opened> {
        let direct = open.flags & libc::O_DIRECT != 0;
        let flags =
            OpenReply { direct_io: direct, parallel_direct_writes: direct, ..OpenReply::default() };
        Ok(Opened { fh: 0, flags })
    }

    async fn read(&self, _ino: u64, read: &Read) -> Result<Data> {
        let left = SIZE.saturating_sub(read.offset).min(u64::from(read.size));
        Ok(Data::from(self.0.slice(..left as usize)))
    }

    async fn write(&self, _ino: u64, _write: &Write, data: Bytes) -> Result<u32> {
        Ok(data.len() as u32)
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("where shall it be mounted?")?;
    let readers = arguments.next().map_or(Ok(1), |number| number.parse())?;
    let io_uring = arguments.next().map(|number| number.parse()).transpose()?;
    let mount = Mount::new(Path::new(&path), &MountOptions::default())?;
    let config = Config { readers, readdirplus: false, io_uring, ..Config::default() };
    let floor = Floor(Bytes::from(vec![7; 1 << 20]));
    let session = Session::start(mount, Arc::new(floor), config).await?;
    session.run().await;
    Ok(())
}
