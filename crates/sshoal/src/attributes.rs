//! Extended attributes: the branch and host of a file, on mounts with branches, and digests of
//! contents, on mounts with a disk cache.
//!
//! | name | value |
//! |---|---|
//! | `user.sshoal.branch` | the branch whose file is shown, as the user wrote it |
//! | `user.sshoal.host` | its host; `localhost` for a local directory |
//! | `user.sshoal.branches` | all branches that have the name, one per line, the shown one first |
//! | `user.md5`, `user.sha1`, `user.sha256` | the digest of the content, as text |
//! | `user.checksum.md5`, `….sha1`, `….sha256`, `….blake3` | the digest as bytes |
//!
//! Further names of digests can be configured (`digest_attribute`). If a digest is not certain to
//! be that of the current content, the result is `ENODATA`.
//!
//! The attributes can be read by name but are not listed, as those of CephFS: programs that copy a
//! file with its attributes (`cp -a`, `rsync -X`, `tar --xattrs`) would copy values that are wrong
//! for the copy. They cannot be set. All other names are those of the server, if it has attributes;
//! these here hide attributes of the server with the same name.
//!
//! SFTP has no attributes. Over it, listing and setting them, and all requests of a mount without
//! attributes of its own, are answered with ENOSYS, so that the kernel sends them only once and
//! returns `EOPNOTSUPP`. All other names are `EOPNOTSUPP`, never `ENODATA`, without a request to
//! the server: `ls -l` then does not query the next file.

use base::{DigestEffort, DigestKind, Errno, Location, Result};

use crate::mount::disk::{DigestAttribute, DiskOptions};

const PREFIX: &[u8] = b"user.sshoal.";

/// The attributes of the files of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Whether the attributes of the branch exist.
    places: bool,
    digests: Vec<DigestAttribute>,
    effort: Option<DigestEffort>,
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The location of a file.
    Place(Place),
    /// A digest of the content, as text or as bytes.
    Digest { kind: DigestKind, effort: DigestEffort, is_hex: bool },
}

/// An attribute of the location of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Branch,
    Host,
    Branches,
}

impl Attributes {
    /// The attributes of a mount with branches (`places`) and with this disk cache.
    pub fn new(places: bool, disk: Option<&DiskOptions>) -> Attributes {
        let effort = disk.and_then(|disk| disk.digest);
        let digests = disk.filter(|_| effort.is_some()).map(|disk| disk.attributes.clone());
        Attributes { places, digests: digests.unwrap_or_default(), effort }
    }

    /// Whether there are any. If not, and if the server has none either, the kernel is told to send
    /// no further requests.
    pub fn are_there(&self) -> bool {
        self.places || !self.digests.is_empty()
    }

    /// The attribute with this name; `EOPNOTSUPP` if only the server could have it.
    pub fn named(&self, name: &[u8]) -> Result<Attribute> {
        if let Some(place) = name.strip_prefix(PREFIX).filter(|_| self.places) {
            return Ok(Attribute::Place(match place {
                b"branch" => Place::Branch,
                b"host" => Place::Host,
                b"branches" => Place::Branches,
                _ => return Err(Errno::ENODATA),
            }));
        }
        let found = self.digests.iter().find(|known| known.name.as_bytes() == name);
        let (found, effort) = found.zip(self.effort).ok_or(Errno::EOPNOTSUPP)?;
        Ok(Attribute::Digest { kind: found.kind, effort, is_hex: found.is_hex })
    }
}

/// A digest as the value of an attribute.
pub fn digest_value(digest: Option<bytes::Bytes>, is_hex: bool) -> Result<Vec<u8>> {
    let digest = digest.ok_or(Errno::ENODATA)?;
    Ok(if is_hex { hex::encode(digest).into_bytes() } else { digest.to_vec() })
}

impl Place {
    /// The value for a located file. Directories above the places of branches, and unlinked files,
    /// have none.
    pub fn value(self, located: Result<Vec<Location>>) -> Result<Vec<u8>> {
        let locations = match located {
            Err(Errno::ESTALE | Errno::ENOENT) => Vec::new(),
            located => located?,
        };
        let first = locations.first().ok_or(Errno::ENODATA)?;
        Ok(match self {
            Place::Branch => first.source.clone().into_bytes(),
            Place::Host => first.host.clone().into_bytes(),
            Place::Branches => {
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

    fn place(name: &str) -> Result<Place> {
        match Attributes::new(true, None).named(name.as_bytes())? {
            Attribute::Place(place) => Ok(place),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_where_it_is_shown_from() {
        let located = || Ok(vec![location("a:/x", "a"), location("P=local:/y", "localhost")]);
        let value = |name: &str| place(name)?.value(located());
        assert_eq!(value("user.sshoal.branch").unwrap(), b"a:/x");
        assert_eq!(value("user.sshoal.host").unwrap(), b"a");
        assert_eq!(value("user.sshoal.branches").unwrap(), b"a:/x\nP=local:/y");
        assert_eq!(value("user.sshoal.other"), Err(Errno::ENODATA));
        for name in [
            "user.other",
            "security.capability",
            "system.posix_acl_access",
            "user.sshoal",
            "user.md5",
        ] {
            assert_eq!(value(name), Err(Errno::EOPNOTSUPP), "{name}");
        }
    }

    #[test]
    fn what_is_nowhere_has_no_place_and_other_errors_are_told() {
        let value = |located| Place::Branch.value(located);
        for nowhere in [Ok(Vec::new()), Err(Errno::ESTALE), Err(Errno::ENOENT)] {
            assert_eq!(value(nowhere), Err(Errno::ENODATA));
        }
        assert_eq!(value(Err(Errno::EHOSTDOWN)), Err(Errno::EHOSTDOWN));
    }

    #[test]
    fn digests_have_the_names_that_were_asked_for() {
        let disk = DiskOptions::default();
        let known = Attributes::new(false, Some(&disk));
        let of = |attributes: &Attributes, name: &str| attributes.named(name.as_bytes());
        let digest =
            |kind, is_hex| Ok(Attribute::Digest { kind, effort: DigestEffort::Known, is_hex });
        assert_eq!(of(&known, "user.sha256"), digest(DigestKind::Sha256, true));
        assert_eq!(of(&known, "user.checksum.blake3"), digest(DigestKind::Blake3, false));
        for name in ["user.blake3", "user.sshoal.branch", "security.capability", "user.sha256x"] {
            assert_eq!(of(&known, name), Err(Errno::EOPNOTSUPP), "{name}");
        }
        assert!(known.are_there());
        let off = DiskOptions { digest: None, ..disk };
        assert!(!Attributes::new(false, Some(&off)).are_there());
        assert_eq!(of(&Attributes::new(true, Some(&off)), "user.md5"), Err(Errno::EOPNOTSUPP));
        assert!(!Attributes::new(false, None).are_there());
    }

    #[test]
    fn a_digest_is_text_or_bytes_and_is_not_there_when_it_is_not_known() {
        let digest = || Some(bytes::Bytes::from_static(&[0x0a, 0xf9]));
        assert_eq!(digest_value(digest(), true), Ok(b"0af9".to_vec()));
        assert_eq!(digest_value(digest(), false), Ok(vec![0x0a, 0xf9]));
        assert_eq!(digest_value(None, true), Err(Errno::ENODATA));
    }
}
