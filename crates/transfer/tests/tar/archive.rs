//! Archives as nobody's tar would make them.

use std::fmt::Write as _;

pub const FILE: u8 = b'0';
pub const HARD: u8 = b'1';
pub const LINK: u8 = b'2';
pub const CHAR: u8 = b'3';
pub const DIR: u8 = b'5';
pub const FIFO: u8 = b'6';

/// A header, with a length that need not be true.
pub fn header(name: &str, kind: u8, link: &str, size: u64) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut text = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    text(0, name);
    text(100, "0000755");
    text(124, &format!("{size:011o}"));
    text(136, "14000000000");
    text(157, link);
    text(257, "ustar");
    text(263, "00");
    header[156] = kind;
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    let mut field = String::new();
    write!(field, "{sum:06o}").unwrap();
    header[148..154].copy_from_slice(field.as_bytes());
    header[154] = 0;
    header
}

/// One member: name, kind, target of a link. Files have seven bytes.
pub type Member<'a> = (&'a str, u8, &'a str);

/// A whole archive.
pub fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, kind, link) in members {
        let content: &[u8] = if *kind == FILE { b"planted" } else { b"" };
        archive.extend(header(name, *kind, link, content.len() as u64));
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}
