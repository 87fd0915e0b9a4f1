//! Quoting of words for the login shell of a remote host.
//!
//! The user of that host chooses the shell: sh, dash, bash, zsh, ksh, busybox, fish, csh or tcsh.
//! Their rules differ. Within single quotes, a quote ends the word in all of them; fish takes a
//! backslash before a quote or a backslash as an escape, and csh takes `!` for its history. Outside
//! of quotes, a backslash makes the next byte an ordinary one in all of them, except a newline: sh
//! removes both, and csh has no other way to write one. So a word with a newline cannot be written
//! for all of them.

/// `bytes` as one word for any login shell; `None` if they contain a newline or NUL.
pub fn quote(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut word = Vec::with_capacity(bytes.len() + 2);
    word.push(b'\'');
    for byte in bytes {
        match byte {
            b'\n' | 0 => return None,
            b'\'' | b'\\' | b'!' => word.extend_from_slice(&[b'\'', b'\\', *byte, b'\'']),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    Some(word)
}

/// As [`quote`], but without quotes if no byte can mean something to a shell. `bytes` are not empty.
pub fn word(bytes: &[u8]) -> Option<Vec<u8>> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,".contains(byte);
    if bytes.iter().all(is_plain) { Some(bytes.to_vec()) } else { quote(bytes) }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use proptest::prelude::*;

    use super::quote;

    /// The shells that `scripts/setup.sh` installs, each with the words of its command line.
    const SHELLS: [&[&str]; 7] = [
        &["sh", "-c"],
        &["dash", "-c"],
        &["bash", "-c"],
        &["busybox", "sh", "-c"],
        &["zsh", "-f", "-c"],
        &["fish", "--no-config", "-c"],
        &["tcsh", "-f", "-c"],
    ];

    /// Separates the words of one command; a shell and `printf` leave it unchanged.
    const MARK: &[u8] = b"\x01:";

    /// The words as a program that the shell starts receives them.
    fn read_by(shell: &[&str], words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut line = b"printf %s".to_vec();
        for word in words {
            line.push(b' ');
            line.extend(quote(&[word, MARK].concat()).unwrap());
        }
        // The `printf` of a shell, if it has one, repeats its format for each word.
        let output = Command::new(shell[0])
            .args(&shell[1..])
            .arg(OsStr::from_bytes(&line))
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap_or_else(|error| panic!("{} (scripts/setup.sh installs it): {error}", shell[0]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{shell:?}: {said}");
        let text = output.stdout;
        let mut read = Vec::new();
        let mut rest = &text[..];
        while let Some(end) = rest.windows(MARK.len()).position(|it| it == MARK) {
            read.push(rest[..end].to_vec());
            rest = &rest[end + MARK.len()..];
        }
        assert!(rest.is_empty(), "{shell:?}: {:?}", rest.escape_ascii().to_string());
        read
    }

    fn assert_read(words: &[Vec<u8>]) {
        for shell in SHELLS {
            let read = read_by(shell, words);
            for (word, read) in words.iter().zip(&read) {
                assert_eq!(
                    word.escape_ascii().to_string(),
                    read.escape_ascii().to_string(),
                    "{shell:?}"
                );
            }
            assert_eq!(words.len(), read.len(), "{shell:?}");
        }
    }

    #[test]
    fn cve_2020_15778_every_shell_reads_a_word_as_it_was() {
        let words = [
            "",
            "a b",
            "it's $x",
            "a\\'(touch x)\\'b",
            "a\\",
            "\\\\",
            "\\'",
            "'",
            "''",
            "!",
            "!!",
            "!x",
            "a!b",
            "\\!",
            "'!'",
            "$(touch x)",
            "`touch x`",
            "{a,b}",
            "*",
            "?",
            "[a]",
            "~",
            "~root",
            "=ls",
            "#",
            "a#b",
            ";",
            "|",
            "&",
            "<",
            ">",
            "(",
            ")",
            "%",
            "^a^b",
            "-n",
            "\t",
            "\r",
            "\x1b[2J",
            "\u{e4}\u{6771}",
            "\"",
            "$HOME",
            "%self",
            "@",
            "a=b",
            "\\n",
            "\\t\\0",
            "x\\'",
            "''\\''",
        ];
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        assert_read(&words);
    }

    #[test]
    fn newlines_and_nul_cannot_be_quoted() {
        assert_eq!(quote(b"a\nb"), None);
        assert_eq!(quote(b"a\0b"), None);
        assert_eq!(quote(b"").unwrap(), b"''");
        assert_eq!(quote(b"it's").unwrap(), br"'it'\''s'");
    }

    proptest! {
        // One process of a shell reads many words.
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn words_of_special_bytes_are_read_as_they_were(
            words in prop::collection::vec("[a-c'\\\\!$`\"(){}\\[\\]*?~#;|&<>%^@= \t\r-]{0,12}", 40..60),
        ) {
            assert_read(&words.into_iter().map(String::into_bytes).collect::<Vec<_>>());
        }
    }
}
