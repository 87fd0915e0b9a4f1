//! Bodies of the fuzz targets (`fuzz/`): they read data of a server as a run does, and assert the
//! invariants. The tests run them for a second with mutated seeds.

use std::io::Read;

use base::shell::quote;

use crate::compress::{self, Encoder, Method};
pub use crate::tar::fuzz_tests::{listing, tar_reader, unpack};

/// Most of a stream that is decompressed, in bytes: a few bytes may stand for many.
const MOST_BYTES: u64 = 4 << 20;

/// Any bytes as a stream of zstd.
pub fn zstd(data: &[u8]) {
    if let Ok(decoder) = compress::decoder(Some(Method::Zstd), data) {
        let _ = std::io::copy(&mut decoder.take(MOST_BYTES), &mut std::io::sink());
    }
}

/// Any bytes as a stream of gzip, and compressed and back.
pub fn gzip(data: &[u8]) {
    if let Ok(decoder) = compress::decoder(Some(Method::Gzip), data) {
        let _ = std::io::copy(&mut decoder.take(MOST_BYTES), &mut std::io::sink());
    }
    let mut encoder = Encoder::new(true, Vec::new(), None);
    std::io::Write::write_all(&mut encoder, data).expect("memory takes everything");
    let compressed = encoder.finish().expect("memory takes everything");
    let mut back = Vec::new();
    let decoder = compress::decoder(Some(Method::Gzip), &compressed[..]).expect("gzip");
    decoder.take(MOST_BYTES).read_to_end(&mut back).expect("what was compressed is read");
    assert_eq!(back, data);
}

/// Any name as a word of a shell: it is that one word and nothing else.
pub fn quoting(data: &[u8]) {
    let is_word = !data.iter().any(|byte| matches!(byte, b'\n' | 0));
    assert_eq!(quote(data).is_some(), is_word);
    let name: Vec<u8> = data.iter().copied().filter(|byte| !matches!(byte, b'\n' | 0)).collect();
    let quoted = quote(&name).expect("it has no newline and no NUL");
    assert_eq!(words(&quoted), Some(vec![name.clone()]));
    let line = [b"cat ".as_slice(), &quoted, b" 'x'"].concat();
    assert_eq!(words(&line), Some(vec![b"cat".to_vec(), name, b"x".to_vec()]));
}

/// What a POSIX shell makes of a simple command (POSIX.1-2017, XCU 2.2 and 2.3), as far as it is
/// quoted by quotes and backslashes: its words. `None` where a character outside of these means
/// something else to a shell, or a quote is open at the end.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut rest = line.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b' ' => words.extend(word.take()),
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        b'\'' => break,
                        byte => word.push(byte),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        b'"' => break,
                        b'$' | b'`' => return None,
                        b'\\' => match rest.next()? {
                            byte @ (b'$' | b'`' | b'"' | b'\\') => word.push(byte),
                            b'\n' => {}
                            byte => word.extend([b'\\', byte]),
                        },
                        byte => word.push(byte),
                    }
                }
            }
            b'\\' => match rest.next()? {
                b'\n' => {}
                byte => word.get_or_insert_default().push(byte),
            },
            byte if byte.is_ascii_alphanumeric() || b"%+,-./:@_".contains(&byte) => {
                word.get_or_insert_default().push(byte);
            }
            // Operators, expansions, patterns, comments, assignments, blanks; and what is no
            // ASCII may be a blank of the locale.
            _ => return None,
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use testkit::mutated::each;

    use super::*;
    use crate::tar::fuzz_tests::seeds;

    const TIME: Duration = Duration::from_secs(1);

    #[test]
    fn archives_are_read() {
        each(&[&seeds::archive()], TIME, tar_reader);
    }

    #[test]
    fn archives_are_unpacked_inside() {
        let whole = [&[7], &seeds::archive()[..]].concat();
        each(&[&whole, b"\0"], TIME, unpack);
    }

    #[test]
    fn listings_are_heard() {
        each(&[seeds::LISTING], TIME, listing);
    }

    #[test]
    fn streams_are_decompressed() {
        let text = "sixteen letters.".repeat(64);
        let compress = |program: &str| {
            let mut command = Command::new(program);
            command.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().ok()?;
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            Some(child.wait_with_output().unwrap().stdout)
        };
        // A frame of raw and of repeated blocks, where no zstd is here: magic, header, two blocks.
        let frame = b"\x28\xb5\x2f\xfd\x20\x0b\x18\x00\x00abc\x43\x00\x00x";
        let zstds = [compress("zstd").unwrap_or_default(), frame.to_vec()];
        let mut plain = Vec::new();
        let mut decoder = compress::decoder(Some(Method::Zstd), &frame[..]).unwrap();
        decoder.read_to_end(&mut plain).unwrap();
        assert_eq!(plain, b"abcxxxxxxxx", "the seed is one");
        each(&[&zstds[0], &zstds[1]], TIME, zstd);
        each(&[&compress("gzip").unwrap_or_default(), text.as_bytes()], TIME, gzip);
    }

    #[test]
    fn names_are_quoted() {
        each(&[b"it's", b"$(x) `y` \"z\" \\ !\n", b"-n", b"\xff*?[a]~#"], TIME, quoting);
    }

    #[test]
    fn the_model_of_a_shell_refuses_what_means_something() {
        assert_eq!(words(b"a 'b c' \\'"), Some(vec![b"a".into(), b"b c".into(), b"'".into()]));
        for line in ["a;b", "$x", "a'b", "\"$x\"", "*", "a\nb", "x=1", "~", "`a`", "a&", "\\"] {
            assert_eq!(words(line.as_bytes()), None, "{line}");
        }
    }
}
