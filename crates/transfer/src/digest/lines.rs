//! The lines of `sha256sum` and of programs like it: digest, space, another space or `*`, name.

use std::borrow::Cow;

use crate::shell::unescape;

/// The digest of a file, and the name that the program shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The digest.
    pub digest: Vec<u8>,
    /// The name, without escapes.
    pub name: Cow<'a, [u8]>,
    /// The program has shown the name with escapes: the line begins with a backslash.
    pub is_escaped: bool,
}

/// The lines of `output` that have a digest of `len` bytes; all others are left out.
pub fn parse(output: &[u8], len: usize) -> impl Iterator<Item = Line<'_>> {
    output.split(|byte| *byte == b'\n').filter_map(move |text| line(text, len))
}

fn line(text: &[u8], len: usize) -> Option<Line<'_>> {
    let rest = text.strip_prefix(b"\\");
    let is_escaped = rest.is_some();
    let (digits, rest) = rest.unwrap_or(text).split_at_checked(2 * len)?;
    let name = rest.strip_prefix(b"  ").or(rest.strip_prefix(b" *"))?;
    let name = if is_escaped { unescape(name)?.into() } else { name.into() };
    Some(Line { digest: digest(digits)?, name, is_escaped })
}

/// The bytes that hexadecimal digits stand for.
pub(crate) fn digest(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    digits.chunks(2).map(byte).collect()
}
