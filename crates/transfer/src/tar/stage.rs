//! Names that pushed trees have until they are whole.

use std::collections::{BTreeMap, HashMap};

use base::{Attr, Errno, Name, RemotePath, stable_hash};

use super::script;
use crate::options::{Options, Owners};
use crate::temporary;

/// A pushed tree that has not got its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The name that it will get.
    pub name: Name,
    /// The name that it has, in the same directory.
    pub stage: Name,
    /// This copy has made it.
    pub is_own: bool,
    /// A file in it may have the size and time of its source, but not all of its content.
    pub in_doubt: bool,
    /// The large file within which the stream broke, relative to the target, with its attributes.
    /// The stage has a beginning of it, or nothing.
    pub cut: Option<(RemotePath, Attr)>,
}

/// A name that a pushed tree has until it is whole. Each call gives another one: a stage belongs to
/// the run that has made it, or that has renamed it to a stage of its own. So the tar of a stream
/// that was cut off, which writes by the name that it was given, never writes to what a later run
/// goes on with.
///
/// Its number begins with a digest of those options that decide what of a tree comes, and as what,
/// where comparing sizes and times would not find the difference.
///
/// # Errors
/// `ENAMETOOLONG` for a name that has no room for more.
pub fn stage(name: &Name, options: &Options) -> base::Result<Name> {
    let number = temporary::number() & 0xffff_ffff;
    numbered_stage(name, &format!("{:04x}{number:08x}", kind_of_stage(options)))
}

/// Whether a run with these options may go on with a [`stage`] of `name`.
pub fn suits(stage: &Name, name: &Name, options: &Options) -> bool {
    let kind = format!("{:04x}", kind_of_stage(options));
    stage.as_bytes().starts_with(&[&begin_of_stages(name)[..], kind.as_bytes()].concat())
}

fn kind_of_stage(options: &Options) -> u16 {
    let Options { owners, hard_links, xattrs, sparse, specials, one_file_system, .. } = options;
    let owners = match owners {
        Owners::Mapped { uids, gids } => {
            let sorted =
                |ids: &HashMap<u32, u32>| ids.clone().into_iter().collect::<BTreeMap<_, _>>();
            format!("{:?}", (sorted(uids), sorted(gids)))
        }
        others => format!("{others:?}"),
    };
    let all = (owners, hard_links, xattrs, sparse, specials, one_file_system);
    stable_hash(format!("{all:?}").as_bytes()) as u16
}

pub(super) fn numbered_stage(name: &Name, number: &str) -> base::Result<Name> {
    let stage = [&begin_of_stages(name)[..], number.as_bytes()].concat();
    match stage.len() + script::MARK.len() <= 255 {
        true => Name::new(&stage).map_err(|_| Errno::EINVAL),
        false => Err(Errno::ENAMETOOLONG),
    }
}

/// What the names of all stages of `name` begin with.
pub(super) fn begin_of_stages(name: &Name) -> Vec<u8> {
    [b".", name.as_bytes(), b".sshoal-new-"].concat()
}
