//! Formats members as the bytes of an archive: `ustar` headers, and pax ones for larger values.
//!
//! Pure: headers are appended to a buffer, and the caller sends the data after them.

use base::Timestamp;

use super::member::{BLOCK_BYTES, Kind, Member, checksum, padding};
use super::reader::Piece;

/// Largest number of eleven octal digits.
const OCTAL_11: u64 = (1 << 33) - 1;

/// Largest number of seven octal digits.
const OCTAL_7: u64 = (1 << 21) - 1;

/// Appends the member's headers. Its data, `stored_bytes` of them, and [`padding`] follow.
pub(super) fn append(archive: &mut Vec<u8>, member: &Member) {
    let extensions = extensions(member);
    if !extensions.is_empty() {
        let stored_bytes = extensions.len() as u64;
        let (path, kind) = (b"././@PaxHeader".to_vec(), Kind::Other(b'x'));
        append_header(archive, &Member { path, kind, stored_bytes, ..Member::default() });
        archive.extend_from_slice(&extensions);
        append_padding(archive, stored_bytes);
    }
    append_header(archive, member);
}

/// The map with which a sparse member's data begin, padded.
pub(super) fn sparse_map(pieces: &[Piece]) -> Vec<u8> {
    let mut map = format!("{}\n", pieces.len()).into_bytes();
    for (at, len) in pieces {
        map.extend_from_slice(format!("{at}\n{len}\n").as_bytes());
    }
    let bytes = map.len() as u64;
    append_padding(&mut map, bytes);
    map
}

/// Appends the zeros that follow `bytes` of data.
pub(super) fn append_padding(archive: &mut Vec<u8>, bytes: u64) {
    archive.resize(archive.len() + padding(bytes), 0);
}

/// Appends the mark that ends an archive.
pub(super) fn append_end(archive: &mut Vec<u8>) {
    archive.resize(archive.len() + 2 * BLOCK_BYTES, 0);
}

/// What does not fit is cut: the extensions have it whole.
fn append_header(archive: &mut Vec<u8>, member: &Member) {
    let kind = match member.kind {
        Kind::File => b'0',
        Kind::HardLink => b'1',
        Kind::Symlink => b'2',
        Kind::Directory => b'5',
        Kind::Other(letter) => letter,
    };
    let secs = u64::try_from(member.mtime.secs).unwrap_or(0);
    let mut header = [0; BLOCK_BYTES];
    let mut text = |at: usize, room: usize, bytes: &[u8]| {
        let len = bytes.len().min(room);
        header[at..at + len].copy_from_slice(&bytes[..len]);
    };
    text(0, 100, &member.path);
    text(100, 8, format!("{:07o}", member.perm).as_bytes());
    text(108, 8, format!("{:07o}", u64::from(member.uid).min(OCTAL_7)).as_bytes());
    text(116, 8, format!("{:07o}", u64::from(member.gid).min(OCTAL_7)).as_bytes());
    text(124, 12, format!("{:011o}", member.stored_bytes.min(OCTAL_11)).as_bytes());
    text(136, 12, format!("{:011o}", secs.min(OCTAL_11)).as_bytes());
    text(156, 1, &[kind]);
    text(157, 100, &member.link);
    text(257, 8, b"ustar\x0000");
    if matches!(kind, b'3' | b'4') {
        text(329, 8, format!("{:07o}", rustix::fs::major(member.device)).as_bytes());
        text(337, 8, format!("{:07o}", rustix::fs::minor(member.device)).as_bytes());
    }
    let sum = format!("{:06o}\0 ", checksum(&header));
    header[148..156].copy_from_slice(sum.as_bytes());
    archive.extend_from_slice(&header);
}

/// The records of what an `ustar` header cannot hold.
fn extensions(member: &Member) -> Vec<u8> {
    let mut records = Vec::new();
    if let Some(bytes) = member.sparse_bytes {
        record(&mut records, b"GNU.sparse.major", b"1");
        record(&mut records, b"GNU.sparse.minor", b"0");
        record(&mut records, b"GNU.sparse.name", &member.path);
        record(&mut records, b"GNU.sparse.realsize", bytes.to_string().as_bytes());
    }
    if member.path.len() > 100 {
        record(&mut records, b"path", &member.path);
    }
    if member.link.len() > 100 {
        record(&mut records, b"linkpath", &member.link);
    }
    if member.stored_bytes > OCTAL_11 {
        record(&mut records, b"size", member.stored_bytes.to_string().as_bytes());
    }
    for (key, id) in [(&b"uid"[..], member.uid), (b"gid", member.gid)] {
        if u64::from(id) > OCTAL_7 {
            record(&mut records, key, id.to_string().as_bytes());
        }
    }
    let Timestamp { secs, nanos } = member.mtime;
    if nanos > 0 || !(0..=OCTAL_11 as i64).contains(&secs) {
        record(&mut records, b"mtime", time(member.mtime).as_bytes());
    }
    for (name, value) in &member.xattrs {
        record(&mut records, &[b"SCHILY.xattr.", escaped(name).as_slice()].concat(), value);
    }
    records
}

/// The name of an extended attribute in a key, which an `=` would end: as GNU tar writes it.
fn escaped(name: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b'%' => b"%25".to_vec(),
        b'=' => b"%3D".to_vec(),
        byte => vec![*byte],
    };
    name.iter().flat_map(escape).collect()
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(format!("{len} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn time(time: Timestamp) -> String {
    match (time.secs < 0, time.nanos) {
        (_, 0) => time.secs.to_string(),
        (false, nanos) => format!("{}.{nanos:09}", time.secs),
        // A sign is of the whole number.
        (true, nanos) => format!("-{}.{:09}", -(time.secs + 1), 1_000_000_000 - nanos),
    }
}
