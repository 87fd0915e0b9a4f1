//! Names of files that are not whole.
//!
//! `.NAME.sshoal-TTTTTTTTTTTTSSMMMMMMNNNNNNNNNNNN`, all digits hexadecimal:
//!
//! | part | meaning |
//! |---|---|
//! | `NAME` | the file's own name; a long one is cut, and ends with a digest of the whole name |
//! | `T` | the tag of the version: name, size and second of last change |
//! | `S` | the span |
//! | `M` | the boot of the machine in which it was written ([`MachineRun`]) |
//! | `N` | a number that no other temporary file has |
//!
//! The number makes a temporary file the property of one run. Another run continues it only after
//! it has renamed it to a name of its own: the rename is atomic. The run that created the file
//! finds that its name is gone, and never gives the final name to a file that it does not own.
//!
//! The **span** makes an interrupted copy safe to continue without any other record. Pieces of a
//! large file arrive out of order, so a file of N bytes may have holes. But no piece is sent that
//! lies further than 2^span bytes after the first byte which has not been acknowledged. So
//! everything more than 2^span bytes before the end is present. Span 0 means that the file is never
//! continued; [`SPAN_OF_STREAM`] means that it was written by a stream by names. The rule also
//! holds where a run that was taken for dead goes on writing: two runs write the same bytes of one
//! version, and neither truncates the file.
//!
//! The tag gives temporary files of other versions other names. A loss of power may leave holes
//! anywhere: the length of a file that was written in another boot of the machine proves nothing.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Attr, Name, stable_hash};

/// Between the file's name and the digits.
const MARK: &[u8] = b".sshoal-";

/// Hexadecimal digits of tag and span.
const TAG_DIGITS: usize = 14;

/// Hexadecimal digits of the machine's run, and of the number.
const MACHINE_DIGITS: usize = 6;
const NUMBER_DIGITS: usize = 12;

/// All of them.
pub(crate) const DIGITS: usize = TAG_DIGITS + MACHINE_DIGITS + NUMBER_DIGITS;

/// Limit of a name, in bytes, of nearly all file systems.
const NAME_MAX: usize = 255;

/// Longest part of the file's own name.
const STEM_MAX: usize = NAME_MAX - 1 - MARK.len() - DIGITS;

/// What a stem that was cut ends with: `~` and 8 hexadecimal digits.
const CUT_BYTES: usize = 9;

/// The span of a file that comes in order, in one piece after another: the smallest that large
/// files have. What is behind it is compared when the file is gone on with.
pub const SPAN_IN_ORDER: u8 = 20;

/// The span of what another machine's tar writes. Nothing of it is relied on.
pub const SPAN_OF_STREAM: u8 = 0xff;

/// The largest valid span: no run sends that far ahead.
const SPAN_MAX: u8 = 40;

/// One boot of a machine: 24 bits of a digest of its identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineRun(u32);

impl MachineRun {
    /// Not known. Never the same as another one.
    pub const UNKNOWN: MachineRun = MachineRun(0);

    /// The run that [`base::Remote::write_verifier`] has named. What is too short for an identifier
    /// is none: a pool of gateways counts losses, and starts at zero in each process.
    pub fn of(named: Option<&[u8]>) -> MachineRun {
        match named {
            Some(named) if named.len() >= 16 => {
                MachineRun(((stable_hash(named) >> 40) as u32).max(1))
            }
            _ => MachineRun::UNKNOWN,
        }
    }

    /// That of this machine.
    pub fn here() -> MachineRun {
        static HERE: LazyLock<MachineRun> = LazyLock::new(|| {
            let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            MachineRun::of(Some(id.trim_ascii()))
        });
        *HERE
    }

    /// Whether both are known, and the same.
    pub fn is_same(self, other: MachineRun) -> bool {
        self == other && self != MachineRun::UNKNOWN
    }
}

/// A temporary file of an earlier run, or of another one in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Its temporary name.
    pub file: Name,
    /// Of what.
    pub tag: u64,
    /// See the [module](self).
    pub span: u8,
    /// When it was written.
    pub machine: MachineRun,
    /// Its length in bytes.
    pub size: u64,
    /// Whose it is, as a number of the machine that it is on.
    pub uid: u32,
    /// It is a regular file that its owner alone may read, as an earlier run has left it.
    pub ours: bool,
}

impl Partial {
    /// Takes `file` for one, with the part of its own name that it has.
    pub fn parse<'a>(file: &'a Name, attr: &Attr) -> Option<(&'a [u8], Partial)> {
        let bytes = file.as_bytes();
        let (begin, digits) = bytes.split_at_checked(bytes.len().checked_sub(DIGITS)?)?;
        let stem = begin.strip_suffix(MARK)?.strip_prefix(b".")?;
        let digits = std::str::from_utf8(digits).ok()?;
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if stem.is_empty() || !digits.bytes().all(lower) {
            return None;
        }
        let number = u64::from_str_radix(&digits[..TAG_DIGITS], 16).ok()?;
        let machine = &digits[TAG_DIGITS..TAG_DIGITS + MACHINE_DIGITS];
        let partial = Partial {
            file: file.clone(),
            tag: number >> 8,
            span: (number & 0xff) as u8,
            machine: MachineRun(u32::from_str_radix(machine, 16).ok()?),
            size: attr.size,
            uid: attr.uid,
            ours: attr.kind == base::FileKind::Regular && attr.perm == 0o600,
        };
        Some((stem, partial))
    }

    /// Up to where it can be relied on when it is continued, in bytes: in the same run of the
    /// machine, and if it is of the login's own making.
    pub fn reliable(&self) -> u64 {
        if !self.ours || !self.lasts() {
            return 0;
        }
        self.size.saturating_sub(1 << self.span)
    }

    /// Whether it was meant to be continued. A run uses no other spans, but the server may have
    /// chosen the name: with a smaller span than that of a piece no piece could be sent.
    pub fn lasts(&self) -> bool {
        (SPAN_IN_ORDER..=SPAN_MAX).contains(&self.span)
    }
}

/// The part of `name` that its temporary names have. No two names have the same.
pub fn stem(name: &Name) -> Cow<'_, [u8]> {
    let bytes = name.as_bytes();
    if bytes.len() <= STEM_MAX {
        return Cow::Borrowed(bytes);
    }
    let most = STEM_MAX - CUT_BYTES;
    // Not within a character, since some file systems take UTF-8 only.
    let begin = match std::str::from_utf8(bytes) {
        Ok(text) => {
            let end = (0..=most).rev().find(|end| text.is_char_boundary(*end));
            &bytes[..end.unwrap_or(0)]
        }
        Err(_) => &bytes[..most],
    };
    let whole = format!("~{:08x}", stable_hash(bytes) >> 32);
    Cow::Owned([begin, whole.as_bytes()].concat())
}

/// What all temporary names of the file `name` begin with; [`DIGITS`] follow.
pub(crate) fn begin(name: &Name) -> Vec<u8> {
    [b".", &stem(name)[..], MARK].concat()
}

/// What a name begins with that may be temporary, as [`begin`] returns it.
pub(crate) fn begin_of(file: &[u8]) -> Option<&[u8]> {
    let begin = &file[..file.len().checked_sub(DIGITS)?];
    begin.ends_with(MARK).then_some(begin)
}

/// Of what: a digest of the name, the size and the second of last change, cut to 48 bits.
pub fn tag(name: &Name, attr: &Attr) -> u64 {
    let size = attr.size.to_le_bytes();
    let time = attr.mtime.secs.to_le_bytes();
    stable_hash(name.as_bytes().iter().chain(&size).chain(&time)) >> 16
}

/// A temporary name of the file `name`, of which a version with `attr` is being copied, to a
/// machine that is in this run. No other call gives the same, in this process or in another one.
pub fn name(name: &Name, attr: &Attr, span: u8, machine: MachineRun) -> Name {
    let tag = tag(name, attr);
    let digits = format!("{tag:012x}{span:02x}{:06x}{:012x}", machine.0, number());
    let bytes = [&begin(name)[..], digits.as_bytes()].concat();
    Name::new(&bytes).expect("nothing was added that a name must not have")
}

/// A number of 48 bits that no other call gives, in this process or in another one.
pub(crate) fn number() -> u64 {
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("sshoal"));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    FIRST.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) & 0xffff_ffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, Timestamp};
    use proptest::prelude::*;

    const HERE: MachineRun = MachineRun(7);

    fn attr(size: u64, secs: i64) -> Attr {
        let time = Timestamp::from_secs(secs);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o600, size, uid: 0, gid: 0, atime: time, mtime: time, inode: None }
    }

    fn parse(file: &Name, attr: &Attr) -> Partial {
        Partial::parse(file, attr).unwrap().1
    }

    #[test]
    fn another_version_has_another_tag_and_each_file_another_name() {
        let file = Name::new(b"file").unwrap();
        let of = |size, secs| parse(&name(&file, &attr(size, secs), 20, HERE), &attr(0, 0)).tag;
        assert_eq!(of(5, 7), of(5, 7));
        assert_ne!(of(5, 7), of(6, 7));
        assert_ne!(of(5, 7), of(5, 8));
        assert_ne!(of(5, 7), tag(&Name::new(b"fild").unwrap(), &attr(5, 7)));
        let name = || name(&file, &attr(5, 7), 20, HERE);
        assert_ne!(name(), name());
    }

    #[test]
    fn long_names_that_begin_alike_have_stems_of_their_own() {
        for begin in ["a", "\u{e9}"] {
            let long = begin.repeat(250 / begin.len());
            let of = |last: &str| Name::new(format!("{long}{last}").as_bytes()).unwrap();
            let (one, other) = (of("1"), of("2"));
            assert_ne!(stem(&one), stem(&other));
            assert!(std::str::from_utf8(&stem(&one)).is_ok());
            let temporary = name(&one, &attr(1, 2), 0, HERE);
            assert_eq!(Partial::parse(&temporary, &attr(0, 0)).unwrap().0, &stem(&one)[..]);
        }
    }

    #[test]
    fn only_what_lies_before_the_span_is_relied_on() {
        let file = Name::new(b"file").unwrap();
        let temporary = name(&file, &attr(1 << 30, 7), 20, HERE);
        let partial = |size| parse(&temporary, &attr(size, 9));
        assert_eq!(partial(0).reliable(), 0);
        assert_eq!(partial(1 << 20).reliable(), 0);
        assert_eq!(partial((1 << 20) + 5).reliable(), 5);
        let readable = Attr { perm: 0o644, ..attr(1 << 29, 9) };
        assert_eq!(parse(&temporary, &readable).reliable(), 0);
        for span in [0, 1, SPAN_IN_ORDER - 1, SPAN_OF_STREAM] {
            let never = parse(&name(&file, &attr(1 << 30, 7), span, HERE), &attr(1 << 29, 9));
            assert_eq!((never.span, never.reliable()), (span, 0));
        }
    }

    #[test]
    fn a_run_of_a_machine_is_told_from_others_and_from_none() {
        let one = MachineRun::of(Some(b"2c1f7f0a-1111-4c4c-8888-123456789abc"));
        let other = MachineRun::of(Some(b"2c1f7f0a-1111-4c4c-8888-123456789abd"));
        assert!(one.is_same(one) && !one.is_same(other));
        assert!(!MachineRun::UNKNOWN.is_same(MachineRun::UNKNOWN));
        assert_eq!(MachineRun::of(Some(&0u64.to_ne_bytes())), MachineRun::UNKNOWN);
        assert!(MachineRun::here().is_same(MachineRun::here()));
        let file = Name::new(b"file").unwrap();
        assert_eq!(parse(&name(&file, &attr(1, 1), 20, one), &attr(1, 1)).machine, one);
    }

    #[test]
    fn what_only_looks_like_one_is_a_file() {
        let digits = "0".repeat(DIGITS - 1);
        for other in [
            "file",
            ".file.sshoal-",
            &format!(".f.sshoal-{digits}"),
            &format!(".f.sshoal-{digits}G"),
            &format!("..sshoal-{digits}0"),
        ] {
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
                let temporary = name(&file, &attr, span, HERE);
                prop_assert!(temporary.as_bytes().len() <= NAME_MAX);
                let (found, partial) = Partial::parse(&temporary, &attr).unwrap();
                prop_assert_eq!(found, &stem(&file)[..]);
                prop_assert_eq!((partial.tag, partial.span), (tag(&file, &attr), span));
                prop_assert_eq!(partial.machine, HERE);
            }
        }
    }
}
