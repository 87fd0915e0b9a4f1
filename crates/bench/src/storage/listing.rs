//! What the errand [`DIGEST`](super::script::DIGEST) prints, made the digest that the same data
//! have here.
//!
//! A file: `file`, NUL, a line of `sha256sum`. A tree: `tree`, NUL; its directories, each with
//! NUL; an empty one; all that is neither a directory nor a file, each with NUL; an empty one; lines
//! of `sha256sum` for its files. Everything begins with `./`, and `.` is the tree itself.

use crate::corpus::tree::Listing;
use crate::failure::{Failure, Result};

/// The digest that is meant.
pub(super) fn digest(printed: &[u8]) -> Result<String> {
    let odd = || Failure::failed("the listing of the server is not understood");
    // A login shell may print something of its own before.
    let start = |word: &[u8]| printed.windows(word.len()).position(|it| it == word);
    if let Some(at) = start(b"file\0") {
        let line = printed[at + 5..].trim_ascii_end();
        return Ok(checksum(line).ok_or_else(odd)?.0);
    }
    let at = start(b"tree\0").ok_or_else(odd)?;
    Ok(tree(&printed[at + 5..]).ok_or_else(odd)?.digest())
}

fn tree(mut rest: &[u8]) -> Option<Listing> {
    let mut listing = Listing::default();
    loop {
        match next(&mut rest)? {
            b"" => break,
            b"." => (),
            path => listing.directory(relative(path)?),
        }
    }
    if !next(&mut rest)?.is_empty() {
        return None;
    }
    for line in rest.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let (digest, path) = checksum(line)?;
        listing.file(relative(&path)?, &digest);
    }
    Some(listing)
}

/// Takes the words before the next NUL.
fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == 0)?;
    let word = &rest[..end];
    *rest = &rest[end + 1..];
    Some(word)
}

fn relative(path: &[u8]) -> Option<&[u8]> {
    path.strip_prefix(b"./")
}

/// `DIGEST  NAME`. With a backslash before it, backslashes and line ends in the name are escaped.
fn checksum(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let (digest, name) = line.split_at_checked(64)?;
    let digest = std::str::from_utf8(digest).ok()?;
    // The second sign is `*` for a binary file.
    let (sign, name) = name.split_at_checked(2)?;
    let known = digest.bytes().all(|it| it.is_ascii_hexdigit()) && matches!(sign, b"  " | b" *");
    known.then(|| (digest.to_ascii_lowercase(), if escaped { unescape(name) } else { name.into() }))
}

fn unescape(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(&other) => other,
                None => byte,
            },
            byte => byte,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_listing_is_refused() {
        let digest64 = "0123456789abcdef".repeat(4);
        let whole = format!("motd\ntree\0.\0./d\0\0\0{digest64}  ./f\n");
        let expected = {
            let mut listing = Listing::default();
            listing.directory(b"d");
            listing.file(b"f", &digest64);
            listing.digest()
        };
        assert_eq!(digest(whole.as_bytes()).unwrap(), expected);
        for torn in
            ["", "tree\0.\0", "tree\0.\0\0./link\0\0", "tree\0.\0\0\0xyz  ./f\n", "file\0ab"]
        {
            assert!(digest(torn.as_bytes()).is_err(), "{torn:?}");
        }
    }
}
