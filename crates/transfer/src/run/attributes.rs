//! Which attributes an entry gets at the target, and which of them it lacks.

use base::{Attr, AttrChange, FileKind};

use super::Core;
use crate::plan::is_same_second;
use crate::setid;

/// Owner and group at the target, unless it has refused them.
fn owner(core: &Core, attr: &Attr) -> Option<(u32, u32)> {
    core.job.options.owners.of(attr.uid, attr.gid).filter(|owner| !core.is_refused(*owner))
}

/// All that what has `attr` at the source is to have at the target. Set-ID bits are what is wished:
/// [`Core::set_attributes`] decides.
pub(crate) fn attributes(core: &Core, attr: &Attr) -> AttrChange {
    if core.leaves_attributes(attr.kind) {
        return AttrChange::default();
    }
    let owner = owner(core, attr);
    let wished = core.set_ids_of(attr).map_or(0, |_| attr.perm & setid::BITS);
    AttrChange {
        // A link has no mode of its own.
        perm: (attr.kind != FileKind::Symlink)
            .then_some(setid::without(attr.kind, attr.perm) | wished),
        uid: owner.map(|owner| owner.0),
        gid: owner.map(|owner| owner.1),
        // SFTP has both times or none.
        atime: Some(attr.atime),
        mtime: Some(attr.mtime),
        ..AttrChange::default()
    }
}

/// As [`attributes`], without what `there` has already. Times count by the second, since SFTP has
/// no more.
pub(crate) fn differing(core: &Core, attr: &Attr, there: &Attr) -> AttrChange {
    let mut change = attributes(core, attr);
    if change.uid == Some(there.uid) && change.gid == Some(there.gid) {
        (change.uid, change.gid) = (None, None);
    }
    if let Some(owner) = core.set_ids_of(attr) {
        // Where the owner stays what it is, it may be one that these bits are not for.
        let now = if change.uid.is_some() { owner } else { (there.uid, there.gid) };
        let kept = setid::kept(attr.perm, owner, now);
        change.perm = change.perm.map(|perm| perm & !setid::BITS | kept);
    }
    let is_new_owner_of_bits =
        change.uid.is_some() && change.perm.is_some_and(|perm| perm & setid::BITS != 0);
    // A change of owner takes these bits away.
    if change.perm == Some(there.perm) && !is_new_owner_of_bits {
        change.perm = None;
    }
    if is_same_second(attr.mtime, there.mtime) {
        (change.atime, change.mtime) = (None, None);
    }
    change
}
