//! The options of the disk cache and of digests.

use std::path::PathBuf;

use base::{DigestEffort, DigestKind};
use cache::SubTrees;
use cli::Problem;

use crate::quantity;

/// The cache of a mount with `cache=disk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The directory; `None` for the user's default.
    pub dir: Option<PathBuf>,
    /// Maximum size in bytes; `None` for the store's default.
    pub size_bytes: Option<u64>,
    /// Bytes to leave free on its disk; `None` for the store's default.
    pub free_bytes: Option<u64>,
    /// Files that never change.
    pub immutable: SubTrees,
    /// No host is contacted.
    pub offline: bool,
    /// Whether the kernel may read cached files directly, if it supports that; `None`: if it is
    /// faster.
    pub passthrough: Option<bool>,
    /// Which digests are available as extended attributes; `None`: the attributes do not exist.
    pub digest: Option<DigestEffort>,
    /// The attributes for digests.
    pub attributes: Vec<DigestAttribute>,
    /// The helper computes digests of files that are not cached, before they are fetched.
    pub server_digests: bool,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            dir: None,
            size_bytes: None,
            free_bytes: None,
            immutable: SubTrees::default(),
            offline: false,
            passthrough: None,
            digest: Some(DigestEffort::Known),
            attributes: usual_attributes(),
            server_digests: false,
        }
    }
}

/// An extended attribute whose value is a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestAttribute {
    /// The name, beginning with `user.`.
    pub name: String,
    /// The digest algorithm.
    pub kind: DigestKind,
    /// The value is text of lower-case hexadecimal digits; otherwise bytes.
    pub is_hex: bool,
}

/// The attributes that build systems read: text for Buck2, EdenFS and siso, bytes for Bazel. There
/// is no `user.blake3`, since Buck2 expects a keyed digest there.
pub fn usual_attributes() -> Vec<DigestAttribute> {
    [
        ("user.md5", DigestKind::Md5, true),
        ("user.sha1", DigestKind::Sha1, true),
        ("user.sha256", DigestKind::Sha256, true),
        ("user.checksum.md5", DigestKind::Md5, false),
        ("user.checksum.sha1", DigestKind::Sha1, false),
        ("user.checksum.sha256", DigestKind::Sha256, false),
        ("user.checksum.blake3", DigestKind::Blake3, false),
    ]
    .map(|(name, kind, is_hex)| DigestAttribute { name: name.to_owned(), kind, is_hex })
    .into()
}

/// The options of the disk cache.
#[derive(Debug, Default)]
pub struct DiskDraft {
    /// `cache=disk`.
    pub is_on: bool,
    options: DiskOptions,
    /// Whether an option of the disk cache was given.
    is_mentioned: bool,
}

/// Minimum size of the cache: a few files of usual size. A smaller cache would only cost time.
const MIN_SIZE_BYTES: u64 = 1 << 20;

/// Maximum length of an attribute's name on Linux (`XATTR_NAME_MAX`).
const MAX_ATTRIBUTE_NAME_BYTES: usize = 255;

impl DiskDraft {
    /// A draft that continues these options; `None` without a disk cache.
    pub fn resumed(options: Option<DiskOptions>) -> DiskDraft {
        let is_on = options.is_some();
        DiskDraft { is_on, is_mentioned: false, options: options.unwrap_or_default() }
    }

    /// The options, to be set.
    pub fn options(&mut self) -> &mut DiskOptions {
        self.is_mentioned = true;
        &mut self.options
    }

    pub fn set_size(&mut self, text: &str) -> Result<(), String> {
        let bytes = quantity::parse_bytes(text)?;
        if bytes < MIN_SIZE_BYTES {
            return Err("must be at least 1M".to_owned());
        }
        self.options().size_bytes = Some(bytes);
        Ok(())
    }

    pub fn set_free(&mut self, text: &str) -> Result<(), String> {
        self.options().free_bytes = Some(quantity::parse_bytes(text)?);
        Ok(())
    }

    /// Adds colon-separated patterns.
    pub fn add_immutable(&mut self, list: &str) -> Result<(), String> {
        for pattern in list.split(':') {
            let names = pattern.trim_matches('/');
            if names.split('/').any(|name| matches!(name, "" | "." | "..")) {
                return Err(match names {
                    "" => "matches everything; use consistency=immutable".to_owned(),
                    _ => "needs paths without '.' and '..', as in immutable=/src/*".to_owned(),
                });
            }
            self.options().immutable.add(names.as_bytes());
        }
        Ok(())
    }

    pub fn add_attribute(&mut self, text: &str) -> Result<(), String> {
        let added = if text == "none" { None } else { Some(attribute(text)?) };
        let attributes = &mut self.options().attributes;
        attributes.retain(|other| added.as_ref().is_some_and(|added| other.name != added.name));
        attributes.extend(added);
        Ok(())
    }

    /// The options, if the cache is enabled. Adds a note if options have no effect without it.
    pub fn finish(self, notes: &mut Vec<String>) -> Result<Option<DiskOptions>, Problem> {
        if self.is_on {
            return Ok(Some(self.options));
        }
        if self.options.offline {
            let why = "needs a disk cache";
            return Err(Problem::new("option 'offline'", why).hint("add cache=disk"));
        }
        if self.is_mentioned {
            notes.push("options of the disk cache have no effect without cache=disk".into());
        }
        Ok(None)
    }
}

fn attribute(text: &str) -> Result<DigestAttribute, String> {
    let mut parts = text.splitn(3, ':');
    let (kind, form, name) = (parts.next(), parts.next(), parts.next());
    let kind = match kind {
        Some("md5") => DigestKind::Md5,
        Some("sha1") => DigestKind::Sha1,
        Some("sha256") => DigestKind::Sha256,
        Some("blake3") => DigestKind::Blake3,
        _ => return Err("must begin with md5, sha1, sha256 or blake3".to_owned()),
    };
    let is_hex = match form {
        Some("hex") => true,
        Some("raw") => false,
        _ => return Err("needs hex or raw after the digest, as in sha256:hex:user.NAME".into()),
    };
    let name = name.filter(|name| {
        let own = name.strip_prefix("user.").unwrap_or_default();
        !own.is_empty() && !own.starts_with("sshoal.") && name.len() <= MAX_ATTRIBUTE_NAME_BYTES
    });
    let name = name.ok_or("needs a name that begins with 'user.', but not with 'user.sshoal.'")?;
    Ok(DigestAttribute { name: name.to_owned(), kind, is_hex })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_mentioned_by_digest_form_and_name() {
        let told = attribute("sha256:raw:user.a:b").unwrap();
        let wanted = DigestAttribute {
            name: "user.a:b".to_owned(),
            kind: DigestKind::Sha256,
            is_hex: false,
        };
        assert_eq!(told, wanted);
        for text in [
            "",
            "sha512:hex:user.x",
            "md5:base64:user.x",
            "md5:hex",
            "md5:hex:trusted.x",
            "md5:hex:user.",
            "md5:hex:user.sshoal.x",
        ] {
            assert!(attribute(text).is_err(), "{text}");
        }
        assert!(attribute(&format!("md5:hex:user.{}", "x".repeat(251))).is_err());
    }

    #[test]
    fn patterns_are_paths_below_the_root() {
        let mut draft = DiskDraft::default();
        draft.add_immutable("/src/*/:rel?").unwrap();
        let mut wanted = SubTrees::default();
        ["src/*", "rel?"].iter().for_each(|pattern| wanted.add(pattern.as_bytes()));
        assert_eq!(draft.options.immutable, wanted);
        for list in ["/", "", "a::b", "a/../b", "./a", "a//b"] {
            assert!(draft.add_immutable(list).is_err(), "{list}");
        }
    }
}
