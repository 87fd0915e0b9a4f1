//! Whether a stream is compressed, and how.
//!
//! The server may have the programs `zstd` and `gzip`; this side has libraries without C.
//! Measurements decide whether compression pays: the rate of the link, and how much the first
//! megabytes shrink.

mod members;

use std::fmt;
use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;

pub(crate) use members::Encoder;

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `zstd -1`
    Zstd,
    /// `gzip -1`
    Gzip,
}

impl Method {
    /// The method that a program has; its name on the command line, too.
    pub fn from_name(name: &str) -> Option<Method> {
        match name {
            "zstd" => Some(Method::Zstd),
            "gzip" => Some(Method::Gzip),
            _ => None,
        }
    }

    /// As [`Method::from_name`] has it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Zstd => "zstd",
            Method::Gzip => "gzip",
        }
    }

    /// On a link of this rate or a faster one it would hold the archive up, in bytes a second. One
    /// core compresses text by `zstd -1` at 300 MB/s and more, by `gzip -1` at 60 to 100 MB/s.
    fn pays_below(self) -> f64 {
        match self {
            Method::Zstd => 80e6,
            Method::Gzip => 30e6,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compress {
    /// What was measured decides.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Always, so.
    Always(Method),
}

/// What does not shrink to this part is not worth the work.
const WORTH: f64 = 0.75;

/// The method that might pay on a link of that rate, of those that the server has.
pub(crate) fn candidate(rate_bytes_per_s: f64, available: &[Method]) -> Option<Method> {
    let pays = |method: &Method| rate_bytes_per_s < method.pays_below();
    [Method::Zstd, Method::Gzip]
        .into_iter()
        .find(|method| available.contains(method) && pays(method))
}

/// Whether so many bytes were worth compressing to so many.
pub(crate) fn is_worth(raw_bytes: u64, compressed_bytes: u64) -> bool {
    (compressed_bytes as f64) < raw_bytes as f64 * WORTH
}

/// What a stream of that kind is, decompressed.
///
/// # Errors
/// Where it does not begin as one.
pub(crate) fn decoder<'a>(
    method: Option<Method>,
    input: impl BufRead + 'a,
) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match method {
        None => Box::new(input),
        Some(Method::Gzip) => Box::new(MultiGzDecoder::new(input)),
        Some(Method::Zstd) => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(input);
            Box::new(decoder.map_err(|error| io::Error::other(error.to_string()))?)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn compression_is_for_links_that_are_slower_than_it() {
        let both = [Method::Zstd, Method::Gzip];
        assert_eq!(candidate(20e6, &both), Some(Method::Zstd));
        assert_eq!(candidate(20e6, &[Method::Gzip]), Some(Method::Gzip));
        assert_eq!(candidate(50e6, &[Method::Gzip]), None);
        assert_eq!(candidate(400e6, &both), None);
        assert_eq!(candidate(1e6, &[]), None);
        assert!(is_worth(1000, 400) && !is_worth(1000, 990));
    }

    #[test]
    fn what_gzip_writes_is_read_again() {
        let text = "so and so ".repeat(100_000).into_bytes();
        let mut encoder = Encoder::new(true, Vec::new(), None);
        encoder.write_all(&text).unwrap();
        let packed = encoder.finish().unwrap();
        assert!(packed.len() < text.len() / 10);
        let mut unpacked = Vec::new();
        decoder(Some(Method::Gzip), &packed[..]).unwrap().read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == text);
    }
}
