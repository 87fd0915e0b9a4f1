//! Splits the list of options after `-o`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Splits at commas. A backslash makes the next byte literal, or, followed by three octal digits up
/// to `\377`, denotes that byte; all else, including quotes, is literal. This is the rule of
/// libfuse and sshfs. Empty words, as in `a,,b`, are dropped.
pub fn split(list: &OsStr) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut word = Vec::new();
    let mut rest = list.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tail) {
            (b',', _) => words.push(std::mem::take(&mut word)),
            (b'\\', &[a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                word.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = &tail[3..];
            }
            (b'\\', &[next, ..]) => {
                word.push(next);
                rest = &tail[1..];
            }
            _ => word.push(byte),
        }
    }
    words.push(word);
    words.into_iter().filter(|word| !word.is_empty()).map(OsString::from_vec).collect()
}

/// Splits a word at its first `=`.
pub fn name_and_value(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (word, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(list: &str) -> Vec<String> {
        split(OsStr::new(list)).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn commas_part_and_backslashes_keep() {
        assert_eq!(words("a,b=c,d"), ["a", "b=c", "d"]);
        assert_eq!(words(r"Ciphers=x\,y,z"), ["Ciphers=x,y", "z"]);
        assert_eq!(words(r"fsname=a\\b"), [r"fsname=a\b"]);
        assert_eq!(words(r"p=a\040b\1"), ["p=a b1"]);
        assert_eq!(words(r"p=\477"), ["p=477"]);
        assert_eq!(words(r"end\"), [r"end\"]);
        assert_eq!(
            words(r#"ProxyCommand="ssh -W %h:%p gate""#),
            [r#"ProxyCommand="ssh -W %h:%p gate""#]
        );
        assert_eq!(words(",a,,b,"), ["a", "b"]);
        assert_eq!(words(""), Vec::<String>::new());
    }

    #[test]
    fn a_name_ends_at_the_first_equals_sign() {
        let parts = |word| name_and_value(OsStr::new(word));
        assert_eq!(parts("a"), (OsStr::new("a"), None));
        assert_eq!(parts("a="), (OsStr::new("a"), Some(OsStr::new(""))));
        assert_eq!(parts("a=b=c"), (OsStr::new("a"), Some(OsStr::new("b=c"))));
    }

    proptest! {
        #[test]
        fn what_was_escaped_comes_back(
            wanted in prop::collection::vec(prop::collection::vec(1u8.., 1..8), 0..5)
        ) {
            let escape = |word: &Vec<u8>| {
                word.iter().flat_map(|byte| match byte {
                    b',' | b'\\' => vec![b'\\', *byte],
                    _ => vec![*byte],
                }).collect::<Vec<u8>>()
            };
            let list = wanted.iter().map(escape).collect::<Vec<_>>().join(&b',');
            let got = split(OsStr::from_bytes(&list));
            let got: Vec<Vec<u8>> = got.into_iter().map(OsString::into_vec).collect();
            prop_assert_eq!(got, wanted);
        }
    }
}
