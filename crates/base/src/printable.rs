//! Makes text from outside safe for terminals and logs. Only this module decides which characters
//! may be shown.
//!
//! Escaped are control characters, which a terminal executes; format characters and the separators
//! of lines and paragraphs (Unicode's `Cf`, `Zl`, `Zp`), which reorder or hide other text; and
//! bytes that are not UTF-8. All other characters are unchanged.

use std::fmt::{self, Write};

/// Unicode's general categories `Cf`, `Zl` and `Zp` (version 16), in order.
const FORMAT: [(u32, u32); 22] = [
    (0xAD, 0xAD),
    (0x600, 0x605),
    (0x61C, 0x61C),
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x2064),
    (0x2066, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001),
    (0xE0020, 0xE007F),
    // Reserved for further format characters.
    (0xFFF0, 0xFFF8),
];

/// Whether a terminal would not simply show `char`.
pub fn is_unprintable(char: char) -> bool {
    let code = u32::from(char);
    char.is_control()
        || code > 0x7F && FORMAT.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// Writes `bytes` and escapes unprintable characters, except those in `kept`.
///
/// # Errors
/// Those of `out`.
pub fn write_printable(out: &mut impl Write, bytes: &[u8], kept: &[char]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if is_unprintable(char) && !kept.contains(&char) {
                write!(out, "{}", char.escape_default())?;
            } else {
                out.write_char(char)?;
            }
        }
        write!(out, "{}", chunk.invalid().escape_ascii())?;
    }
    Ok(())
}

/// `bytes` as one printable line.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    // Writing to a string does not fail.
    let _ = write_printable(&mut text, bytes, &[]);
    text
}

/// `bytes` as printable text with its newlines and tabs. Carriage returns, which a terminal in raw
/// mode adds, are removed.
pub fn printable_lines(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let _ = write_printable(&mut text, bytes, &['\n', '\t', '\r']);
    text.retain(|char| char != '\r');
    text
}

/// [`printable_lines`] for a stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    /// An incomplete character at the end of the last piece.
    rest: Vec<u8>,
}

impl Pieces {
    /// The printable text of the next piece, without an incomplete character at its end.
    pub fn next(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(_) => self.rest.len(),
            // The bytes from here on are decoded again with the next piece: they may be one broken
            // character, or several.
            Err(_) => {
                let tail = self.rest.len().saturating_sub(3);
                let ends = (tail..self.rest.len()).rev().find(|at| self.rest[*at] & 0xC0 == 0xC0);
                ends.filter(|at| is_beginning(&self.rest[*at..])).unwrap_or(self.rest.len())
            }
        };
        let text = printable_lines(&self.rest[..whole]);
        self.rest.drain(..whole);
        text
    }

    /// The rest at the end of the stream.
    pub fn last(&mut self) -> String {
        printable_lines(&std::mem::take(&mut self.rest))
    }
}

/// Whether `bytes` may be the beginning of one character.
fn is_beginning(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

/// Replaces unprintable characters in a JSON text by JSON's own escapes: a parser reads the same
/// value, and the text is safe for a terminal.
pub fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        if is_unprintable(char) && char != '\n' {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(char);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Attack: escape sequences that a terminal executes.
    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            printable(b"\x1b]52;c;x\x07gr\xc3\xbcn\x7f\xc2\x9b\n"),
            "\\u{1b}]52;c;x\\u{7}grün\\u{7f}\\u{9b}\\n"
        );
        assert_eq!(printable(b"a\xff\xc3"), "a\\xff\\xc3");
    }

    /// Attack: a name that is shown as another one.
    #[test]
    fn characters_that_reorder_or_hide_text_are_escaped() {
        assert_eq!(printable("gpj.\u{202e}exe".as_bytes()), "gpj.\\u{202e}exe");
        for hidden in [
            "\u{200b}",
            "\u{2066}",
            "\u{2028}",
            "\u{2029}",
            "\u{feff}",
            "\u{ad}",
            "\u{61c}",
            "\u{e0041}",
        ] {
            let shown = printable(hidden.as_bytes());
            assert!(shown.starts_with("\\u{"), "{shown}");
        }
        for shown in ["e\u{301}", "日本", "🦀", "\u{a0}", "a b"] {
            assert_eq!(printable(shown.as_bytes()), shown);
        }
    }

    #[test]
    fn lines_keep_their_ends() {
        assert_eq!(printable_lines(b"a\r\n\tb\x1b[2J\n"), "a\n\tb\\u{1b}[2J\n");
    }

    #[test]
    fn json_stays_the_same_for_a_parser() {
        assert_eq!(
            printable_json("{\n \"a\": \"\u{9b}\u{202e}\u{e0041}\"\n}"),
            "{\n \"a\": \"\\u009b\\u202e\\udb40\\udc41\"\n}"
        );
    }

    proptest! {
        #[test]
        fn pieces_are_shown_as_the_whole(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select("aü€🦀\n\u{202e}".as_bytes().to_vec())],
                0..40,
            ),
            cuts in prop::collection::vec(0..40usize, 0..6),
        ) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let (mut pieces, mut shown, mut from) = (Pieces::default(), String::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let to = cut.clamp(from, bytes.len());
                shown += &pieces.next(&bytes[from..to]);
                from = to;
            }
            shown += &pieces.last();
            prop_assert!(!shown.chars().any(|char| is_unprintable(char) && !"\n\t".contains(char)));
            prop_assert_eq!(shown, printable_lines(&bytes));
        }
    }
}
