//! The cache on this machine's disk, and what it knows of contents.

use super::Effect::{Choice, Custom, Flag, Text};
use super::{MountOption, option};
use crate::mount::disk::{DigestMode, Passthrough};

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "cache",
        "disk: keep what is read on the local disk too; yes and no as dir_cache (yes)",
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
        "where that cache is ($XDG_CACHE_HOME/sshoal, or ~/.cache/sshoal)",
        Text("DIR", |draft, dir| {
            let dir = draft.absolute(&dir).into();
            draft.disk.set(|options| options.dir = Some(dir));
        }),
    ),
    option(
        "cache_size",
        "its size at most; K, M, G, T are taken (20G, or a tenth of the disk if that is less)",
        Custom("SIZE", |draft, text| draft.disk.set_size(text)),
    ),
    option(
        "cache_free",
        "leave so much of its disk free (a twentieth of the disk)",
        Custom("SIZE", |draft, text| draft.disk.set_free(text)),
    ),
    option(
        "immutable",
        "what never changes: paths in the sources parted by colons, with * and ? (/src/*)",
        Custom("LIST", |draft, list| draft.disk.add_immutable(list)),
    ),
    option(
        "offline",
        "show what is in the disk cache without asking any host; the rest fails with EIO",
        Flag(|draft| draft.disk.set(|options| options.offline = true)),
    ),
    option(
        "passthrough",
        "the kernel reads large cached files by itself (root and ro only; auto: unless immutable)",
        Choice(&[
            ("auto", |draft| draft.disk.set(|options| options.passthrough = Passthrough::Auto)),
            ("yes", |draft| draft.disk.set(|options| options.passthrough = Passthrough::Yes)),
            ("no", |draft| draft.disk.set(|options| options.passthrough = Passthrough::No)),
        ]),
    ),
    option(
        "digest",
        "extended attributes with digests: of known contents, of all, or none (known)",
        Choice(&[
            ("known", |draft| draft.disk.set(|options| options.digest = DigestMode::Known)),
            ("compute", |draft| draft.disk.set(|options| options.digest = DigestMode::Compute)),
            ("off", |draft| draft.disk.set(|options| options.digest = DigestMode::Off)),
        ]),
    ),
    option(
        "digest_attribute",
        "one more attribute, as sha256:hex:user.NAME or blake3:raw:user.NAME; none: no others",
        Custom("KIND:FORM:NAME", |draft, text| draft.disk.add_attribute(text)),
    ),
    option(
        "digest_command",
        "run this there to learn digests of files, as sha256sum does (nothing is run)",
        Text("COMMAND", |draft, command| {
            draft.disk.set(|options| options.digest_command = Some(command));
        }),
    ),
];
