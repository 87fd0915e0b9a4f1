//! Names of files that are not whole.
//!
//! `.NAME.sshoal-TTTTTTTTTTTTSS`: the file's own name (cut where the whole would get too long), a
//! tag of what is being copied (full name, size and second of last change), and the span.
//!
//! The **span** is what makes an interrupted copy safe to continue without a record beside it.
//! Pieces of a large file arrive out of order, so a file of N bytes may have holes; but no piece is
//! sent that lies further than 2^span bytes behind the first byte which has not been acknowledged.
//! So everything more than 2^span bytes before the end is there. Span 0 says that the file was
//! never meant to be continued; [`SPAN_OF_STREAM`] that it came in a stream by names.
//!
//! The tag makes what was begun of another version of the file have another name.

use base::{Attr, Name};

/// Between the file's name and the tag.
const MARK: &[u8] = b".sshoal-";

/// Hexadecimal digits of tag and span.
const DIGITS: usize = 14;

/// Longest name in bytes; nearly all file systems have this limit.
const NAME_MAX: usize = 255;

/// Longest part of the file's own name.
const STEM_MAX: usize = NAME_MAX - 1 - MARK.len() - DIGITS;

/// The span of a file that comes in order, in one piece after another: the smallest that large files
/// have. What is behind it is compared when the file is gone on with.
pub const SPAN_IN_ORDER: u8 = 20;

/// The span of what another machine's tar writes. Nothing of it is relied on, and it is a name that
/// nobody else writes to: a tar whose link has gone may go on for a while, and would put a cut-off
/// file in the place of one that the run has made.
pub const SPAN_OF_STREAM: u8 = 0xff;

/// Largest span that is believed: nobody sends so far ahead.
const SPAN_MAX: u8 = 40;

/// What there is of a file from an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Its temporary name.
    pub file: Name,
    /// Of what.
    pub tag: u64,
    /// See the [module](self).
    pub span: u8,
    /// Its length in bytes.
    pub size: u64,
    /// It is a regular file that its owner alone may read, as an earlier run has left it.
    pub ours: bool,
}

impl Partial {
    /// Takes `file` for one, with the part of its own name that it has.
    #[must_use]
    pub fn parse<'a>(file: &'a Name, attr: &Attr) -> Option<(&'a [u8], Partial)> {
        let bytes = file.as_bytes();
        let (begin, digits) = bytes.split_at_checked(bytes.len().checked_sub(DIGITS)?)?;
        let stem = begin.strip_suffix(MARK)?.strip_prefix(b".")?;
        let digits = std::str::from_utf8(digits).ok()?;
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if stem.is_empty() || !digits.bytes().all(lower) {
            return None;
        }
        let number = u64::from_str_radix(digits, 16).ok()?;
        let partial = Partial {
            file: file.clone(),
            tag: number >> 8,
            span: (number & 0xff) as u8,
            size: attr.size,
            ours: attr.kind == base::FileKind::Regular && attr.perm == 0o600,
        };
        Some((stem, partial))
    }

    /// Up to where it can be relied on when it is continued, in bytes.
    #[must_use]
    pub fn reliable(&self) -> u64 {
        if !self.ours || self.span == 0 || self.span > SPAN_MAX {
            return 0;
        }
        self.size.saturating_sub(1 << self.span)
    }
}

/// The part of `name` that its temporary names have.
#[must_use]
pub fn stem(name: &Name) -> &[u8] {
    let bytes = name.as_bytes();
    if bytes.len() <= STEM_MAX {
        return bytes;
    }
    // Not within a character, since some file systems take UTF-8 only.
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let end = (0..=STEM_MAX).rev().find(|end| text.is_char_boundary(*end));
            &bytes[..end.unwrap_or(0)]
        }
        Err(_) => &bytes[..STEM_MAX],
    }
}

/// Of what: FNV-1a of the name, the size and the second of last change, cut to 48 bits.
#[must_use]
pub fn tag(name: &Name, attr: &Attr) -> u64 {
    let size = attr.size.to_le_bytes();
    let time = attr.mtime.secs.to_le_bytes();
    let bytes = name.as_bytes().iter().chain(&size).chain(&time);
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, mix) >> 16
}

/// The temporary name of the file `name`, of which a version with `attr` is being copied.
#[must_use]
pub fn name(name: &Name, attr: &Attr, span: u8) -> Name {
    let digits = format!("{:012x}{span:02x}", tag(name, attr));
    let bytes = [b".", stem(name), MARK, digits.as_bytes()].concat();
    Name::new(&bytes).expect("nothing was added that a name must not have")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, Timestamp};
    use proptest::prelude::*;

    fn attr(size: u64, secs: i64) -> Attr {
        let time = Timestamp::from_secs(secs);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o600, size, uid: 0, gid: 0, atime: time, mtime: time }
    }

    #[test]
    fn another_version_has_another_name() {
        let file = Name::new(b"file").unwrap();
        let of = |size, secs| name(&file, &attr(size, secs), 20);
        assert_eq!(of(5, 7), of(5, 7));
        assert_ne!(of(5, 7), of(6, 7));
        assert_ne!(of(5, 7), of(5, 8));
        assert_ne!(of(5, 7), name(&Name::new(b"fild").unwrap(), &attr(5, 7), 20));
    }

    #[test]
    fn only_what_lies_before_the_span_is_relied_on() {
        let file = Name::new(b"file").unwrap();
        let temporary = name(&file, &attr(1 << 30, 7), 20);
        let partial = |size| Partial::parse(&temporary, &attr(size, 9)).unwrap().1;
        assert_eq!(partial(0).reliable(), 0);
        assert_eq!(partial(1 << 20).reliable(), 0);
        assert_eq!(partial((1 << 20) + 5).reliable(), 5);
        let readable = Attr { perm: 0o644, ..attr(1 << 29, 9) };
        assert_eq!(Partial::parse(&temporary, &readable).unwrap().1.reliable(), 0);
        let never = name(&file, &attr(1 << 30, 7), 0);
        assert_eq!(Partial::parse(&never, &attr(1 << 29, 9)).unwrap().1.reliable(), 0);
    }

    #[test]
    fn what_a_stream_has_left_is_known_and_not_relied_on() {
        let file = Name::new(b"file").unwrap();
        let temporary = name(&file, &attr(1 << 30, 7), SPAN_OF_STREAM);
        assert_ne!(temporary, name(&file, &attr(1 << 30, 7), 0));
        let (stem, partial) = Partial::parse(&temporary, &attr(1 << 30, 9)).unwrap();
        assert_eq!((stem, partial.span), (&b"file"[..], SPAN_OF_STREAM));
        assert_eq!(partial.reliable(), 0);
    }

    #[test]
    fn what_only_looks_like_one_is_a_file() {
        for other in ["file", ".file.sshoal-", ".f.sshoal-00000000000", ".f.sshoal-0000000000000G"]
        {
            let other = Name::new(other.as_bytes()).unwrap();
            assert_eq!(Partial::parse(&other, &attr(0, 0)), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn temporary_names_are_short_enough_and_found_again(
            bytes in prop::collection::vec(any::<u8>(), 1..300),
            text in "\\PC{1,200}",
            size in any::<u64>(),
            span in 0..=SPAN_MAX,
        ) {
            for bytes in [bytes, text.into_bytes()] {
                let Ok(file) = Name::new(&bytes) else { continue };
                let attr = attr(size, -3);
                let temporary = name(&file, &attr, span);
                prop_assert!(temporary.as_bytes().len() <= NAME_MAX);
                let (found, partial) = Partial::parse(&temporary, &attr).unwrap();
                prop_assert_eq!(found, stem(&file));
                prop_assert_eq!((partial.tag, partial.span), (tag(&file, &attr), span));
            }
        }
    }
}
