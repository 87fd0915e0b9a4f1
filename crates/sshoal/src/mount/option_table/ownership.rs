//! Owners, permissions and symbolic links.

use super::Effect::{Choice, Flag, Mode, Number, Text};
use super::{MountOption, option};
use crate::mount::draft::IdMapKind;
use crate::mount::request::LinkTargets;

/// The highest id is reserved: in `chown(2)` it means "do not change".
const MAX_ID: u32 = u32::MAX - 1;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "idmap",
        "translate owners: none, only the remote user's, by uidfile and gidfile (default none)",
        Choice(&[
            ("none", |draft| draft.ids.kind = IdMapKind::None),
            ("user", |draft| draft.ids.kind = IdMapKind::User),
            ("file", |draft| draft.ids.kind = IdMapKind::File),
        ]),
    )
    .prominent(),
    option(
        "uidfile",
        "user ids for idmap=file: lines 'name:remote id', or a passwd(5) file",
        Text("FILE", |draft, file| draft.ids.users = Some(draft.absolute(&file).into())),
    ),
    option(
        "gidfile",
        "group ids for idmap=file: lines 'name:remote id', or a group(5) file",
        Text("FILE", |draft, file| draft.ids.groups = Some(draft.absolute(&file).into())),
    ),
    option(
        "nomap",
        "ids that uidfile and gidfile do not list: keep them, or fail (default error)",
        Choice(&[
            ("ignore", |draft| draft.ids.others_same = true),
            ("error", |draft| draft.ids.others_same = false),
        ]),
    ),
    option(
        "uid",
        "show this user id as the owner of all files",
        Number(0, MAX_ID, |draft, id| draft.request.shown.uid = Some(id)),
    )
    .prominent(),
    option(
        "gid",
        "show this group id as the group of all files",
        Number(0, MAX_ID, |draft, id| draft.request.shown.gid = Some(id)),
    )
    .prominent(),
    option(
        "umask",
        "show permissions of all files and directories as 0777 without these bits",
        Mode(|draft, bits| draft.umask = Some(bits)),
    )
    .prominent(),
    option(
        "fmask",
        "show permissions of files as 0777 without these bits (default umask)",
        Mode(|draft, bits| draft.fmask = Some(bits)),
    ),
    option(
        "dmask",
        "show permissions of directories as 0777 without these bits (default umask)",
        Mode(|draft, bits| draft.dmask = Some(bits)),
    ),
    option(
        "allow_other",
        "allow access by other users; implies default_permissions",
        Flag(|draft| draft.request.fuse.allow_other = true),
    )
    .prominent(),
    option(
        "allow_root",
        "allow access by root",
        Flag(|draft| draft.request.fuse.allow_root = true),
    ),
    option(
        "default_permissions",
        "the kernel checks permission bits",
        Flag(|draft| draft.default_permissions = Some(true)),
    )
    .prominent(),
    option(
        "no_default_permissions",
        "kernel does not check permissions, even with allow_other: all act as the remote user",
        Flag(|draft| draft.default_permissions = Some(false)),
    ),
    option(
        "follow_symlinks",
        "the server follows symbolic links; none is visible in the mount",
        Flag(|draft| draft.request.host.follow_symlinks = true),
    )
    .prominent(),
    option(
        "transform_symlinks",
        "show absolute symbolic links into the remote directory as relative ones",
        Flag(|draft| draft.request.links.transform = true),
    ),
    option(
        "contain_symlinks",
        "refuse symbolic links that are absolute or contain '..' (EPERM)",
        Flag(|draft| draft.request.links.targets = LinkTargets::Strict),
    ),
    option(
        "no_contain_symlinks",
        "show symbolic links as they are, even if they lead out of the mount",
        Flag(|draft| draft.request.links.targets = LinkTargets::Any),
    )
    .prominent(),
];
