//! Quoting of words for a shell, batch files of sftp, `rsync -e` and lftp. Names are bytes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// One word for a POSIX shell, as it is when nothing in it is special.
pub(crate) fn shell_quoted(word: &OsStr) -> OsString {
    single(word, b"'\\''")
}

/// A command line as a user would type it.
pub(crate) fn shown_command<Word: AsRef<OsStr>>(words: &[Word]) -> String {
    let quoted =
        words.iter().map(|word| shell_quoted(word.as_ref()).to_string_lossy().into_owned());
    quoted.collect::<Vec<_>>().join(" ")
}

/// A path or a name for messages.
pub(crate) fn shown(text: impl AsRef<OsStr>) -> String {
    base::printable(text.as_ref().as_bytes())
}

/// One word for `rsync -e`, which knows quotes, and in them the quote doubled, but no backslash.
pub(crate) fn rsync_word(word: &OsStr) -> OsString {
    single(word, b"''")
}

/// In single quotes, unless nothing in it is special; `quote` stands for a quote.
fn single(word: &OsStr, quote: &[u8]) -> OsString {
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"_-./=:@%+,".contains(&byte);
    if !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.to_owned();
    }
    enclosed(word, b'\'', |byte, quoted| match byte {
        b'\'' => quoted.extend_from_slice(quote),
        byte => quoted.push(byte),
    })
}

/// One word for lftp and for a batch file of sftp, where it names a local file.
pub(crate) fn double(word: &OsStr) -> OsString {
    enclosed(word, b'"', |byte, quoted| {
        if matches!(byte, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(byte);
    })
}

/// A name with escaped wildcards, for scp, which expands patterns on the server.
pub(crate) fn no_pattern(word: &OsStr) -> OsString {
    let mut escaped = Vec::with_capacity(word.len());
    for &byte in word.as_bytes() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    OsString::from_vec(escaped)
}

/// Parts with nothing between them.
pub(crate) fn joined(parts: &[&OsStr]) -> OsString {
    parts.join(OsStr::new(""))
}

fn enclosed(word: &OsStr, quote: u8, mut put: impl FnMut(u8, &mut Vec<u8>)) -> OsString {
    let mut quoted = vec![quote];
    word.as_bytes().iter().for_each(|&byte| put(byte, &mut quoted));
    quoted.push(quote);
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_and_others_come_back_from_a_shell() {
        assert_eq!(shell_quoted("/srv/data-1".as_ref()), "/srv/data-1");
        for word in ["", "a b", "it's", "$HOME `id` \"x\" \\", "*", "~root", "#", "line\nbreak"] {
            let mut script = OsString::from("printf %s ");
            script.push(shell_quoted(word.as_ref()));
            let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes());
        }
    }

    #[test]
    fn each_language_has_its_own_escapes() {
        assert_eq!(rsync_word("a 'b'".as_ref()), "'a ''b'''");
        assert_eq!(double("a \"b\\".as_ref()), r#""a \"b\\""#);
        assert_eq!(no_pattern("a*[b]?".as_ref()), r"a\*\[b\]\?");
    }
}
