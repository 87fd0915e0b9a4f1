//! How the program runs.

use super::Effect::{Flag, Text};
use super::{MountOption, option};

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "foreground",
        "as -f: stay attached to the terminal",
        Flag(|draft| draft.request.run.foreground = true),
    ),
    option(
        "debug",
        "as -d: log each request; implies -f",
        Flag(|draft| draft.request.run.debug = true),
    )
    .also(&["sshfs_debug"]),
    option("verbose", "as -v: tell more", Flag(|draft| draft.request.run.verbose = true))
        .also(&["sshfs_verbose"]),
    option(
        "log",
        "append the messages of the background process to it",
        Text("FILE", |draft, file| draft.request.run.log = Some(draft.absolute(&file).into())),
    )
    .prominent(),
    option(
        "nonempty",
        "mount also over another mount of sshoal; files at the place are always covered",
        Flag(|draft| draft.request.run.nonempty = true),
    ),
    option(
        "single_thread",
        "as -s: one thread only",
        Flag(|draft| draft.request.run.single_thread = true),
    ),
];
