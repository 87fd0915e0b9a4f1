//! Set-user-ID and set-group-ID bits: a mode that gives the rights of a file's owner or group to
//! everyone who runs it.
//!
//! The source decides what is in a file. With these bits it would also decide in whose name the
//! file runs: that of the copying user, unless the owner is preserved. So a file gets them only on
//! request ([`Options::set_ids`](crate::Options::set_ids)), and only if it has the owner, or group,
//! that they are meant for. A directory may keep its set-group-ID bit, which only decides the group
//! of the files created in it.

use base::FileKind;

/// Both bits.
pub(crate) const BITS: u32 = 0o6000;

/// The mode without what only [`kept`] may add.
pub(crate) fn without(kind: FileKind, perm: u32) -> u32 {
    match kind {
        FileKind::Directory => perm & !0o4000,
        _ => perm & !BITS,
    }
}

/// The bits of `perm` that a file may have whose owner and group are `now`, where they are meant
/// for these of `owner`.
pub(crate) fn kept(perm: u32, owner: (u32, u32), now: (u32, u32)) -> u32 {
    let user = if now.0 == owner.0 { 0o4000 } else { 0 };
    let group = if now.1 == owner.1 { 0o2000 } else { 0 };
    perm & (user | group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_for_the_owner_or_group_that_it_is_meant_for() {
        for (now, bits) in [((0, 0), 0o6000), ((0, 5), 0o4000), ((5, 0), 0o2000), ((5, 5), 0)] {
            assert_eq!(kept(0o6755, (0, 0), now), bits, "{now:?}");
        }
        assert_eq!(kept(0o755, (0, 0), (0, 0)), 0);
    }

    #[test]
    fn a_directory_keeps_what_names_a_group() {
        assert_eq!(without(FileKind::Directory, 0o6755), 0o2755);
        assert_eq!(without(FileKind::Regular, 0o7755), 0o1755);
        assert_eq!(without(FileKind::Fifo, 0o6755), 0o755);
    }
}
