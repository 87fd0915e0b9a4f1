//! How the kernel opens files and directories, where it can do without the daemon.
//!
//! | module | decides |
//! |---|---|
//! | [`passthrough`] | which open files the kernel reads from a file of the disk cache |
//! | [`no_open`] | which handle serves the reads and listings of a mount without OPEN and OPENDIR requests |
//!
//! A mount has either passthrough or no_open: the latter is only for mounts that never change.
//! [`Adapter`](crate::adapter::Adapter) calls them.

pub mod no_open;
pub mod passthrough;

use rustix::thread::CapabilitySet;

use vfs::{Consistency, PageCache};

use crate::mount::request::MountRequest;

/// Whether the mount may use passthrough, if the kernel supports it.
///
/// Only a read-only mount may, since data written through it would not be visible to readers of the
/// backing file. With passthrough the kernel must send OPEN requests. A tree that never changes is
/// faster without them (7,900 files with cached pages: 0.19 s instead of 0.85 s), so there
/// passthrough must be requested explicitly.
pub fn may_use_passthrough(request: &MountRequest) -> bool {
    let Some(disk) = &request.disk else { return false };
    let wanted = disk.passthrough.unwrap_or(!never_changes(request));
    wanted && request.mount.read_only && may_register_files()
}

/// Whether the mount needs no OPEN requests. With `allow_root` it does: the kernel then admits
/// every user, and all but root are refused at the open.
pub fn may_use_no_open(request: &MountRequest) -> bool {
    never_changes(request)
        && !may_use_passthrough(request)
        && request.mount.visibility != fuse::Visibility::OwnerAndRoot
}

/// Whether nothing ever changes, local or remote, and the kernel caches pages.
fn never_changes(request: &MountRequest) -> bool {
    let immutable = request.vfs.consistency == Consistency::Immutable;
    request.mount.read_only && immutable && request.vfs.page_cache != PageCache::Never
}

/// Whether the kernel would accept a backing file from this process.
fn may_register_files() -> bool {
    let own = rustix::thread::capabilities(None);
    own.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}
