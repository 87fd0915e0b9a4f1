//! Set-user-ID and set-group-ID bits, which a write without privileges clears.
//!
//! A server does that by itself, unless the login is root. Here it is done for the calls that the
//! kernel marks, if it leaves the task to the file system.

use base::{AttrChange, Errno, FileKind, Result};

use crate::{Ino, Vfs};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
/// Without this bit, the set-group-ID bit means mandatory locking, and stays.
const GROUP_EXECUTE: u32 = 0o010;

impl Vfs {
    /// Clears the bits of the file `ino`, if its cached attributes have them. They may be of any
    /// age, as those that the kernel uses. Returns whether it had any.
    pub async fn drop_set_ids(&self, ino: Ino) -> Result<bool> {
        let inode = self.inode(ino)?;
        let known = inode.state().last_attr().filter(|attr| attr.kind == FileKind::Regular);
        let Some(perm) = known.map(|attr| attr.perm) else { return Ok(false) };
        let left = without_set_ids(perm);
        if left == perm {
            return Ok(false);
        }
        let change = AttrChange { perm: Some(left), ..AttrChange::default() };
        match self.setattr(ino, change, None).await {
            // Only the owner may change the mode, and root: the server clears the bits itself.
            Ok(_) | Err(Errno::EPERM) => Ok(true),
            Err(errno) => Err(errno),
        }
    }
}

fn without_set_ids(perm: u32) -> u32 {
    let left = perm & !SET_UID;
    if perm & GROUP_EXECUTE == 0 { left } else { left & !SET_GID }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_go_as_with_a_local_file() {
        for (perm, left) in
            [(0o6755, 0o755), (0o4700, 0o700), (0o2745, 0o2745), (0o2775, 0o775), (0o1644, 0o1644)]
        {
            assert_eq!(without_set_ids(perm), left, "{perm:o}");
        }
    }
}
