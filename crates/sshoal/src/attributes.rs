//! Extended attributes that tell where a file is, of mounts with branches:
//!
//! | name | value |
//! |---|---|
//! | `user.sshoal.branch` | the branch whose file is shown, as the user wrote it |
//! | `user.sshoal.host` | its host; `localhost` for a directory of this machine |
//! | `user.sshoal.branches` | all branches that have the name, a line each, that one first |
//!
//! They answer to their names and are not listed, as those of CephFS, since whoever copies a file
//! with its attributes (`cp -a`, `rsync -X`, `tar --xattrs`) would copy what is not true of the
//! copy. No other attribute exists, since SFTP has none, and none can be set: that and listing are
//! not answered at all, so that the kernel asks once only and gives `EOPNOTSUPP` by itself.
//!
//! All other names are `EOPNOTSUPP` and never `ENODATA`, without asking anybody: from that `ls -l`
//! learns not to ask about the next file.

use base::{Errno, Location, Result};

const PREFIX: &[u8] = b"user.sshoal.";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    Branch,
    Host,
    Branches,
}

impl Attribute {
    /// The one with this name.
    pub fn named(name: &[u8]) -> Result<Attribute> {
        match name.strip_prefix(PREFIX).ok_or(Errno::EOPNOTSUPP)? {
            b"branch" => Ok(Attribute::Branch),
            b"host" => Ok(Attribute::Host),
            b"branches" => Ok(Attribute::Branches),
            _ => Err(Errno::ENODATA),
        }
    }

    /// What it is of a file that was located so. What is nowhere, such as a directory above the
    /// places of branches, and what has no name any more has none.
    pub fn value(self, located: Result<Vec<Location>>) -> Result<Vec<u8>> {
        let locations = match located {
            Err(Errno::ESTALE | Errno::ENOENT) => Vec::new(),
            located => located?,
        };
        let first = locations.first().ok_or(Errno::ENODATA)?;
        Ok(match self {
            Attribute::Branch => first.source.clone().into_bytes(),
            Attribute::Host => first.host.clone().into_bytes(),
            Attribute::Branches => {
                let sources: Vec<&str> =
                    locations.iter().map(|location| location.source.as_str()).collect();
                sources.join("\n").into_bytes()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(source: &str, host: &str) -> Location {
        Location { source: source.into(), host: host.into() }
    }

    #[test]
    fn a_file_is_where_it_is_shown_from() {
        let located = || Ok(vec![location("a:/x", "a"), location("P=local:/y", "localhost")]);
        let value = |name: &str| Attribute::named(name.as_bytes())?.value(located());
        assert_eq!(value("user.sshoal.branch").unwrap(), b"a:/x");
        assert_eq!(value("user.sshoal.host").unwrap(), b"a");
        assert_eq!(value("user.sshoal.branches").unwrap(), b"a:/x\nP=local:/y");
        assert_eq!(value("user.sshoal.other"), Err(Errno::ENODATA));
        for name in ["user.other", "security.capability", "system.posix_acl_access", "user.sshoal"]
        {
            assert_eq!(value(name), Err(Errno::EOPNOTSUPP), "{name}");
        }
    }

    #[test]
    fn what_is_nowhere_has_no_place_and_other_errors_are_told() {
        let value = |located| Attribute::Branch.value(located);
        for nowhere in [Ok(Vec::new()), Err(Errno::ESTALE), Err(Errno::ENOENT)] {
            assert_eq!(value(nowhere), Err(Errno::ENODATA));
        }
        assert_eq!(value(Err(Errno::EHOSTDOWN)), Err(Errno::EHOSTDOWN));
    }
}
