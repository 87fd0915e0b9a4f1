//! Walks through all files of a store.

use base::RemotePath;
use rustix::fs::{FileType, OFlags, Stat};

use super::layout::Layout;
use super::quota::on_disk;
use crate::digest::{Digest, unhex};
use crate::dir_fd::DirFd;
use crate::index::log::{FILE_NAME, SUB};
use crate::metadata::SourceId;

/// Age in seconds from which on a file without an owner is stale: its process would have given it
/// its name long before.
const STALE_SECS: i64 = 600;

/// The kind of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A whole content of this many bytes.
    Object(Digest, u64),
    /// A partial content; the name of its two files.
    Partial([u8; 32]),
    /// The records of a directory.
    Records(SourceId, RemotePath),
}

/// An item that can be evicted.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) what: What,
    /// The disk space that it takes.
    pub(super) bytes: u64,
    /// The approximate time of its last use; seconds since 1970.
    pub(super) used_secs: i64,
}

/// All items in the store. Stale files are removed.
pub(super) fn all(layout: &Layout) -> Vec<Item> {
    let mut items = Vec::new();
    objects(layout, &mut items);
    partials(layout, &mut items);
    records(layout, &mut items);
    items
}

/// All whole contents.
pub(super) fn objects(layout: &Layout, items: &mut Vec<Item>) {
    for (name, kind) in layout.objects.names().unwrap_or_default() {
        if kind == FileType::Directory
            && let Ok(dir_fd) = layout.objects.sub(&name)
        {
            objects_in(&dir_fd, &name, items);
        }
    }
}

fn objects_in(dir_fd: &DirFd, first: &[u8], items: &mut Vec<Item>) {
    for (name, _) in dir_fd.names().unwrap_or_default() {
        let Ok(stat) = dir_fd.stat(&name) else { continue };
        let beside = name.strip_suffix(b".about").or_else(|| name.strip_suffix(b".blocks"));
        if let Some(content) = beside {
            if dir_fd.stat(content).is_err() {
                remove_stale(dir_fd, &name, &stat);
            }
            continue;
        }
        let Some(digest) = Digest::from_hex(&[first, &name].concat()) else {
            remove_stale(dir_fd, &name, &stat);
            continue;
        };
        let space = |suffix: &[u8]| {
            let beside = dir_fd.stat(&[&name, suffix].concat());
            beside.map_or(0, |beside| on_disk(beside.st_size as u64))
        };
        let size = stat.st_size as u64;
        items.push(Item {
            what: What::Object(digest, size),
            bytes: on_disk(size) + space(b".about") + space(b".blocks"),
            used_secs: stat.st_atime,
        });
    }
}

fn partials(layout: &Layout, items: &mut Vec<Item>) {
    for (name, _) in layout.partial.names().unwrap_or_default() {
        let Ok(stat) = layout.partial.stat(&name) else { continue };
        let Some(key) = name.strip_suffix(b".data").and_then(unhex) else {
            let data = name.strip_suffix(b".map").map(|key| [key, b".data"].concat());
            if data.is_none_or(|data| layout.partial.stat(&data).is_err()) {
                remove_stale(&layout.partial, &name, &stat);
            }
            continue;
        };
        let map = [&name[..name.len() - b".data".len()], b".map"].concat();
        let map = layout.partial.stat(&map).map_or(0, |stat| on_disk(stat.st_size as u64));
        items.push(Item {
            what: What::Partial(key),
            bytes: stat.st_blocks as u64 * 512 + map,
            used_secs: stat.st_mtime.max(stat.st_atime),
        });
    }
}

/// The records of all directories. The tree may be deeper than the limit of descriptors, so it is
/// walked by paths.
pub(super) fn records(layout: &Layout, items: &mut Vec<Item>) {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for (name, kind) in layout.index.names().unwrap_or_default() {
        if kind == FileType::Directory && unhex::<32>(&name).is_some() {
            paths.push(name);
        }
    }
    while let Some(path) = paths.pop() {
        let Ok(dir_fd) = layout.index.below(&path) else { continue };
        for (name, kind) in dir_fd.names().unwrap_or_default() {
            if kind == FileType::Directory && name.first() == Some(&SUB) {
                paths.push([&path[..], b"/", &name].concat());
            } else if name == FILE_NAME
                && let Ok(stat) = dir_fd.stat(&name)
                && let Some((source, directory)) = directory_of(&path)
            {
                let what = What::Records(source, directory);
                // Includes the directory of the file.
                let bytes = on_disk(stat.st_size as u64) + on_disk(1);
                items.push(Item { what, bytes, used_secs: stat.st_atime.max(stat.st_mtime) });
            }
        }
    }
}

/// The directory whose records are at a path of the index.
pub(super) fn directory_of(path: &[u8]) -> Option<(SourceId, RemotePath)> {
    let mut parts = path.split(|byte| *byte == b'/');
    let source = SourceId::from_bytes(unhex(parts.next()?)?);
    let names: Option<Vec<&[u8]>> = parts.map(|part| part.strip_prefix(&[SUB])).collect();
    Some((source, RemotePath::parse(&names?.join(&b'/')).ok()?))
}

/// Removes a file without an owner, unless it may be in the middle of being created.
pub(super) fn remove_stale(dir_fd: &DirFd, name: &[u8], stat: &Stat) {
    let now = base::Timestamp::now().secs;
    if (now - stat.st_mtime).abs() > STALE_SECS {
        let _ = dir_fd.unlink(name);
    }
}

/// Whether a process holds a partial content.
pub(super) fn is_busy(layout: &Layout, name: &[u8]) -> bool {
    let Ok((file, _)) = layout.partial.file_below(name, OFlags::RDWR) else { return false };
    !crate::dir_fd::try_lock(&file).unwrap_or(false)
}
