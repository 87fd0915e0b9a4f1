//! Which attributes an entry is to have at the target, and which of them it lacks.

use std::sync::atomic::Ordering;

use base::{Attr, AttrChange, FileKind};

use super::Core;
use crate::plan::is_same_second;

/// Owner and group at the target, unless they are left.
fn owner(core: &Core, attr: &Attr) -> Option<(u32, u32)> {
    if core.owners_refused.load(Ordering::Relaxed) {
        return None;
    }
    core.job.options.owners.of(attr.uid, attr.gid)
}

/// All that what has `attr` at the source is to have at the target.
pub(crate) fn attributes(core: &Core, attr: &Attr) -> AttrChange {
    let owner = owner(core, attr);
    AttrChange {
        // A link has no mode of its own.
        perm: (attr.kind != FileKind::Symlink).then_some(attr.perm),
        uid: owner.map(|owner| owner.0),
        gid: owner.map(|owner| owner.1),
        size: None,
        // SFTP has both times or none.
        atime: Some(attr.atime),
        mtime: Some(attr.mtime),
    }
}

/// As [`attributes`], without what `there` has already. Times count by the second, since SFTP has
/// no more.
pub(crate) fn differing(core: &Core, attr: &Attr, there: &Attr) -> AttrChange {
    let mut change = attributes(core, attr);
    if change.perm == Some(there.perm) {
        change.perm = None;
    }
    if change.uid == Some(there.uid) && change.gid == Some(there.gid) {
        (change.uid, change.gid) = (None, None);
    }
    if is_same_second(attr.mtime, there.mtime) {
        (change.atime, change.mtime) = (None, None);
    }
    // A change of owner takes set-id bits away.
    if change.uid.is_some() && attr.perm & 0o6000 != 0 && attr.kind != FileKind::Symlink {
        change.perm = Some(attr.perm);
    }
    change
}
