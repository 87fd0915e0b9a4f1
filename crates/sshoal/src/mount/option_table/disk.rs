//! The disk cache, and digests of contents.

use super::Effect::{Choice, Custom, Flag, Text};
use super::{MountOption, option};
use crate::mount::disk::{DigestMode, Passthrough};

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "cache",
        "disk: also cache file contents on the local disk; yes, no: see dir_cache (default yes)",
        Choice(&[
            ("disk", |draft| {
                draft.disk.is_on = true;
                draft.times.is_off = false;
            }),
            ("yes", |draft| {
                draft.disk.is_on = false;
                draft.times.is_off = false;
            }),
            ("no", |draft| {
                draft.disk.is_on = false;
                draft.times.is_off = true;
            }),
        ]),
    )
    .prominent(),
    option(
        "cache_dir",
        "directory of the disk cache (default $XDG_CACHE_HOME/sshoal, else ~/.cache/sshoal)",
        Text("DIR", |draft, dir| {
            let dir = draft.absolute(&dir).into();
            draft.disk.set(|options| options.dir = Some(dir));
        }),
    ),
    option(
        "cache_size",
        "maximum size of the disk cache, such as 512M (default 20G, at most 10% of its disk)",
        Custom("SIZE", |draft, text| draft.disk.set_size(text)),
    ),
    option(
        "cache_free",
        "minimum free space on the disk of the cache, such as 5G (default 5% of the disk)",
        Custom("SIZE", |draft, text| draft.disk.set_free(text)),
    ),
    option(
        "immutable",
        "files that never change: colon-separated paths in the sources, with * and ? (/src/*)",
        Custom("LIST", |draft, list| draft.disk.add_immutable(list)),
    ),
    option(
        "offline",
        "serve only what is in the disk cache and contact no host; all else fails with EIO",
        Flag(|draft| draft.disk.set(|options| options.offline = true)),
    ),
    option(
        "passthrough",
        "kernel reads large cached files directly (root and ro only; auto: unless immutable)",
        Choice(&[
            ("auto", |draft| draft.disk.set(|options| options.passthrough = Passthrough::Auto)),
            ("yes", |draft| draft.disk.set(|options| options.passthrough = Passthrough::Yes)),
            ("no", |draft| draft.disk.set(|options| options.passthrough = Passthrough::No)),
        ]),
    ),
    option(
        "digest",
        "digests as extended attributes: of cached contents, of all files, none (default known)",
        Choice(&[
            ("known", |draft| draft.disk.set(|options| options.digest = DigestMode::Known)),
            ("compute", |draft| draft.disk.set(|options| options.digest = DigestMode::Compute)),
            ("off", |draft| draft.disk.set(|options| options.digest = DigestMode::Off)),
        ]),
    ),
    option(
        "digest_attribute",
        "add a digest attribute, such as sha256:hex:user.NAME; none: remove the default ones",
        Custom("KIND:FORM:NAME", |draft, text| draft.disk.add_attribute(text)),
    ),
    option(
        "digest_command",
        "get digests by running this command, such as sha256sum, on the server (default none)",
        Text("COMMAND", |draft, command| {
            draft.disk.set(|options| options.digest_command = Some(command));
        }),
    ),
];
