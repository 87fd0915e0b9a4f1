//! Who owns what, who may do what, and where links lead.

use super::Effect::{Choice, Flag, Mode, Number, Text};
use super::{MountOption, option};
use crate::mount::draft::IdMapKind;
use crate::mount::request::LinkTargets;

/// The last id is taken: `chown(2)` has it for "leave as it is".
const MAX_ID: u32 = u32::MAX - 1;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "idmap",
        "translate no owners, the remote login's, or by file (none)",
        Choice(&[
            ("none", |draft| draft.ids.kind = IdMapKind::None),
            ("user", |draft| draft.ids.kind = IdMapKind::User),
            ("file", |draft| draft.ids.kind = IdMapKind::File),
        ]),
    )
    .prominent(),
    option(
        "uidfile",
        "lines 'name:remote id' or of passwd(5), for idmap=file",
        Text("FILE", |draft, file| draft.ids.users = Some(draft.absolute(&file).into())),
    ),
    option(
        "gidfile",
        "lines 'name:remote id' or of group(5), for idmap=file",
        Text("FILE", |draft, file| draft.ids.groups = Some(draft.absolute(&file).into())),
    ),
    option(
        "nomap",
        "an id in none of these files stays, or is an error (error)",
        Choice(&[
            ("ignore", |draft| draft.ids.others_same = true),
            ("error", |draft| draft.ids.others_same = false),
        ]),
    ),
    option(
        "uid",
        "show all files as this user's",
        Number(0, MAX_ID, |draft, id| draft.request.shown.uid = Some(id)),
    )
    .prominent(),
    option(
        "gid",
        "show all files as this group's",
        Number(0, MAX_ID, |draft, id| draft.request.shown.gid = Some(id)),
    )
    .prominent(),
    option(
        "umask",
        "show all permissions as 0777 without these bits",
        Mode(|draft, bits| draft.umask = Some(bits)),
    )
    .prominent(),
    option(
        "fmask",
        "the same for all but directories",
        Mode(|draft, bits| draft.fmask = Some(bits)),
    ),
    option("dmask", "the same for directories", Mode(|draft, bits| draft.dmask = Some(bits))),
    option(
        "allow_other",
        "let other users in; implies default_permissions",
        Flag(|draft| draft.request.fuse.allow_other = true),
    )
    .prominent(),
    option("allow_root", "let root in", Flag(|draft| draft.request.fuse.allow_root = true)),
    option(
        "default_permissions",
        "the kernel checks the permission bits",
        Flag(|draft| draft.default_permissions = Some(true)),
    )
    .prominent(),
    option(
        "no_default_permissions",
        "it does not, even with allow_other: all act as the remote login",
        Flag(|draft| draft.default_permissions = Some(false)),
    ),
    option(
        "follow_symlinks",
        "let the server follow symbolic links",
        Flag(|draft| draft.request.host.follow_symlinks = true),
    )
    .prominent(),
    option(
        "transform_symlinks",
        "make absolute links below the remote directory relative",
        Flag(|draft| draft.request.links.transform = true),
    ),
    option(
        "contain_symlinks",
        "EPERM for a link that is absolute or has '..' in it",
        Flag(|draft| draft.request.links.targets = LinkTargets::Strict),
    ),
    option(
        "no_contain_symlinks",
        "leave links as they are, wherever they lead",
        Flag(|draft| draft.request.links.targets = LinkTargets::Any),
    )
    .prominent(),
];
