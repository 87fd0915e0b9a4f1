//! The process, its log, and the mount point.

use super::Effect::{Flag, Text};
use super::{MountOption, option};

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "foreground",
        "stay in the foreground (-f)",
        Flag(|draft| draft.request.run.foreground = true),
    ),
    option(
        "debug",
        "log each request (-d); implies -f",
        Flag(|draft| draft.request.run.debug = true),
    )
    .also(&["sshfs_debug"]),
    option("verbose", "more messages (-v)", Flag(|draft| draft.request.run.verbose = true))
        .also(&["sshfs_verbose"]),
    option(
        "log",
        "append the messages of the background process to this file",
        Text("FILE", |draft, file| draft.request.run.log = Some(draft.absolute(&file).into())),
    )
    .prominent(),
    option(
        "nonempty",
        "allow mounting over another mount of sshoal (files are always hidden by a mount)",
        Flag(|draft| draft.request.run.nonempty = true),
    ),
    option(
        "single_thread",
        "use one thread only (-s)",
        Flag(|draft| draft.request.run.single_thread = true),
    ),
];
