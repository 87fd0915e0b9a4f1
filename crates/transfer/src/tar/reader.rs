//! Parses the bytes of an archive into members: `ustar`, with the extensions of pax and of GNU tar.
//!
//! This reader is our own, because the bytes come from a server that may be hostile: all headers
//! before a member take no more memory than [`EXTENSION_LIMIT_BYTES`] together, and there are no
//! more than [`EXTENSION_LIMIT`]; values of extended attributes may hold any byte, and are kept
//! only where they are wanted; sparse files have the one form that current tars write (pax 1.0).
//!
//! Names are not checked here, but by `unpack` and `by_name`.

use std::io::{self, BufRead, Read};

use base::Timestamp;

use crate::options::Xattrs;

use super::member::{BLOCK_BYTES, Kind, Member, checksum, padding};

/// Bytes of all headers of extensions before one member: a path, a link's target and some extended
/// attributes, of at most 64 KiB each on Linux.
pub(super) const EXTENSION_LIMIT_BYTES: u64 = 1 << 20;

/// How many of these headers there may be: today's tars write one of pax, or two of GNU's.
pub(super) const EXTENSION_LIMIT: usize = 16;

/// Extended attributes of one member. On Linux a file has names for 64 KiB at most.
const XATTR_LIMIT: usize = 1 << 12;

/// Most pieces of a sparse file. One with more is refused; it takes 16 bytes for each.
const SPARSE_LIMIT_PIECES: usize = 1 << 18;

/// A piece of a sparse file that has data: where it begins, and how long it is.
pub(super) type Piece = (u64, u64);

/// Reads members one after another.
pub(super) struct Reader<R> {
    input: R,
    xattrs: Xattrs,
    /// Of the current member's data, not read yet.
    left_bytes: u64,
    padding_bytes: usize,
}

/// What extension headers said of the member that follows them.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<Timestamp>,
    sparse_path: Option<Vec<u8>>,
    sparse_bytes: Option<u64>,
    sparse_version: (Option<u64>, Option<u64>),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<R: BufRead> Reader<R> {
    /// Reads `input`, and these extended attributes of it.
    pub(super) fn new(input: R, xattrs: Xattrs) -> Reader<R> {
        Reader { input, xattrs, left_bytes: 0, padding_bytes: 0 }
    }

    /// The next member; what was not read of the one before is passed over. `None` behind the
    /// mark that ends an archive.
    ///
    /// # Errors
    /// `UnexpectedEof` where the archive ends before its mark, `InvalidData` where it is none.
    pub(super) fn next(&mut self) -> io::Result<Option<Member>> {
        self.pass_over()?;
        let mut extensions = Extensions::default();
        let (mut count, mut left) = (0, EXTENSION_LIMIT_BYTES);
        loop {
            let header = self.block()?;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            if number(&header[148..156]) != Some(u64::from(checksum(&header))) {
                return Err(broken("not an archive: a checksum is wrong"));
            }
            let size = number(&header[124..136]).ok_or_else(|| broken("a size is no number"))?;
            let letter = header[156];
            if !matches!(letter, b'x' | b'g' | b'L' | b'K') {
                return self.member(&header, size, extensions).map(Some);
            }
            let Some(rest) = left.checked_sub(size) else {
                return Err(broken("a header is longer than any that makes sense"));
            };
            (count, left) = (count + 1, rest);
            if count > EXTENSION_LIMIT {
                return Err(broken("a file has more headers than any that makes sense"));
            }
            let bytes = self.extension(size)?;
            match letter {
                b'x' => extensions.take(&bytes, self.xattrs)?,
                b'L' => extensions.path = Some(without_nul(bytes)),
                b'K' => extensions.link = Some(without_nul(bytes)),
                // Of the whole archive: nothing of it is used.
                _ => {}
            }
        }
    }

    /// The current member's data, as far as they are not read.
    pub(super) fn data(&mut self) -> impl BufRead + '_ {
        Data(self)
    }

    /// The map at the beginning of a sparse member's data. What follows are the pieces.
    pub(super) fn sparse_map(&mut self, file_bytes: u64) -> io::Result<Vec<Piece>> {
        let bad = || broken("the map of a sparse file is wrong");
        let before = self.left_bytes;
        let count = self.decimal_line()?;
        let mut pieces = Vec::new();
        let (mut end, mut stored) = (0, 0u64);
        for _ in 0..count {
            let (at, len) = (self.decimal_line()?, self.decimal_line()?);
            if at < end || pieces.len() == SPARSE_LIMIT_PIECES {
                return Err(bad());
            }
            end = at.checked_add(len).filter(|end| *end <= file_bytes).ok_or_else(bad)?;
            stored += len;
            pieces.push((at, len));
        }
        let over = padding(before - self.left_bytes) as u64;
        io::copy(&mut self.data().take(over), &mut io::sink())?;
        if stored != self.left_bytes { Err(bad()) } else { Ok(pieces) }
    }

    /// What is behind the archive, up to the end of the stream.
    pub(super) fn into_rest(self) -> R {
        self.input
    }

    fn decimal_line(&mut self) -> io::Result<u64> {
        let mut line = Vec::new();
        self.data().take(24).read_until(b'\n', &mut line)?;
        line.pop_if(|last| *last == b'\n')
            .and_then(|_| decimal(&line))
            .ok_or_else(|| broken("the map of a sparse file is wrong"))
    }

    fn pass_over(&mut self) -> io::Result<()> {
        let rest = self.left_bytes + self.padding_bytes as u64;
        let passed = io::copy(&mut (&mut self.input).take(rest), &mut io::sink())?;
        (self.left_bytes, self.padding_bytes) = (0, 0);
        if passed < rest { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn block(&mut self) -> io::Result<[u8; BLOCK_BYTES]> {
        let mut block = [0; BLOCK_BYTES];
        self.input.read_exact(&mut block)?;
        Ok(block)
    }

    /// A header's data, of a length that was checked.
    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        self.input.read_exact(&mut bytes)?;
        self.input.read_exact(&mut [0; BLOCK_BYTES][..padding(size)])?;
        Ok(bytes)
    }

    fn member(
        &mut self,
        header: &[u8; BLOCK_BYTES],
        size: u64,
        extensions: Extensions,
    ) -> io::Result<Member> {
        let path = extensions.path.unwrap_or_else(|| name(header));
        let kind = match header[156] {
            // An old archive's directory is a file whose name ends so.
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'5' => Kind::Directory,
            other => Kind::Other(other),
        };
        let is_sparse = extensions.sparse_version == (Some(1), Some(0));
        let owner = |at: std::ops::Range<usize>| {
            number(&header[at]).and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX)
        };
        // Links have no data, whatever their size says.
        let has_data = !matches!(kind, Kind::HardLink | Kind::Symlink | Kind::Directory);
        let stored_bytes = if has_data { extensions.size.unwrap_or(size) } else { 0 };
        // A length that no file has would also overflow what is computed with it.
        if stored_bytes > i64::MAX as u64 || extensions.sparse_bytes > Some(i64::MAX as u64) {
            return Err(broken("a file is longer than any that there is"));
        }
        self.left_bytes = stored_bytes;
        self.padding_bytes = padding(stored_bytes);
        Ok(Member {
            path: extensions.sparse_path.filter(|_| is_sparse).unwrap_or(path),
            kind,
            link: extensions.link.unwrap_or_else(|| until_nul(&header[157..257]).to_vec()),
            perm: number(&header[100..108]).unwrap_or(0) as u32 & 0o7777,
            uid: extensions.uid.unwrap_or_else(|| owner(108..116)),
            gid: extensions.gid.unwrap_or_else(|| owner(116..124)),
            mtime: extensions
                .mtime
                .unwrap_or_else(|| Timestamp::from_secs(signed(&header[136..148]).unwrap_or(0))),
            stored_bytes,
            sparse_bytes: extensions.sparse_bytes.filter(|_| is_sparse),
            device: device(header),
            xattrs: extensions.xattrs,
        })
    }
}

/// The current member's data.
struct Data<'a, R>(&'a mut Reader<R>);

impl<R: BufRead> Read for Data<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let read = available.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Data<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let left = self.0.left_bytes;
        if left == 0 {
            return Ok(&[]);
        }
        let available = self.0.input.fill_buf()?;
        if available.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = available.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        Ok(&available[..len])
    }

    fn consume(&mut self, bytes: usize) {
        self.0.input.consume(bytes);
        self.0.left_bytes -= bytes as u64;
    }
}

impl Extensions {
    /// Reads the records `LENGTH KEY=VALUE\n`.
    fn take(&mut self, mut records: &[u8], wanted: Xattrs) -> io::Result<()> {
        let bad = || broken("an extended header is wrong");
        while !records.is_empty() {
            let blank = records.iter().take(20).position(|byte| *byte == b' ').ok_or_else(bad)?;
            let len = decimal(&records[..blank]).and_then(|len| usize::try_from(len).ok());
            let len = len.filter(|len| *len > blank + 1 && *len <= records.len());
            let (record, rest) = records.split_at(len.ok_or_else(bad)?);
            let record = record[blank + 1..].strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            self.record(&record[..equals], &record[equals + 1..], wanted).ok_or_else(bad)?;
            records = rest;
        }
        Ok(())
    }

    /// `None` when a value that counts makes no sense.
    fn record(&mut self, key: &[u8], value: &[u8], wanted: Xattrs) -> Option<()> {
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value)?),
            b"uid" => self.uid = Some(u32::try_from(decimal(value)?).ok()?),
            b"gid" => self.gid = Some(u32::try_from(decimal(value)?).ok()?),
            b"mtime" => self.mtime = Some(time(value)?),
            b"GNU.sparse.major" => self.sparse_version.0 = Some(decimal(value)?),
            b"GNU.sparse.minor" => self.sparse_version.1 = Some(decimal(value)?),
            b"GNU.sparse.name" => self.sparse_path = Some(value.to_vec()),
            b"GNU.sparse.realsize" => self.sparse_bytes = Some(decimal(value)?),
            _ => {
                let name = key.strip_prefix(b"SCHILY.xattr.").map(unescaped);
                if let Some(name) = name.filter(|name| wanted.takes(name)) {
                    if self.xattrs.len() == XATTR_LIMIT {
                        return None;
                    }
                    self.xattrs.push((name, value.to_vec()));
                }
            }
        }
        Some(())
    }
}

/// The name of an extended attribute, in which GNU tar writes `=` and `%` as `%3D` and `%25`, and
/// libarchive others, too.
fn unescaped(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    let mut rest = key;
    while let Some((&first, behind)) = rest.split_first() {
        let digit = |at: usize| char::from(*behind.get(at)?).to_digit(16);
        let escaped = (first == b'%').then(|| Some(digit(0)? << 4 | digit(1)?)).flatten();
        name.push(escaped.map_or(first, |byte| byte as u8));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    name
}

/// The number of a device, 0 where it is none.
fn device(header: &[u8; BLOCK_BYTES]) -> u64 {
    let part = |at: std::ops::Range<usize>| {
        number(&header[at]).and_then(|part| u32::try_from(part).ok()).unwrap_or(0)
    };
    match header[156] {
        b'3' | b'4' => rustix::fs::makedev(part(329..337), part(337..345)),
        _ => 0,
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

fn without_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(until_nul(&bytes).len());
    bytes
}

/// The name in a header, with what `ustar` has of it elsewhere.
fn name(header: &[u8; BLOCK_BYTES]) -> Vec<u8> {
    let (name, prefix) = (until_nul(&header[..100]), until_nul(&header[345..500]));
    // GNU tar's own format has other things there, and another mark.
    if prefix.is_empty() || &header[257..263] != b"ustar\0" {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// Octal digits between blanks and NULs, or a binary number behind a set bit.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        return signed(field).and_then(|number| u64::try_from(number).ok());
    }
    let digits = until_nul(field).trim_ascii();
    digits.iter().try_fold(0u64, |sum, digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// As [`number`], of times, which may be before 1970.
fn signed(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 == 0 {
        return number(field).and_then(|number| i64::try_from(number).ok());
    }
    // Two's complement, of which the highest bit was the mark: twelve bytes at most.
    let first = i128::from(field[0] & 0x7f) - if field[0] & 0x40 == 0 { 0 } else { 0x80 };
    let number = field[1..].iter().fold(first, |sum, byte| (sum << 8) | i128::from(*byte));
    i64::try_from(number).ok()
}

/// `SECONDS`, `SECONDS.FRACTION`, perhaps negative.
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = i64::try_from(decimal(whole.as_bytes())?).ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos = decimal(digits.as_bytes())? as u32;
    Some(match (is_negative, nanos) {
        (false, nanos) => Timestamp { secs: whole, nanos },
        (true, 0) => Timestamp::from_secs(-whole),
        (true, nanos) => Timestamp { secs: -whole - 1, nanos: 1_000_000_000 - nanos },
    })
}
