//! "Did you mean …?"

use super::option_table::{self, MountOption};
use super::ssh_keywords;

/// The mount option or keyword of ssh that a misspelled name most likely stands for.
pub fn nearest_option(name: &str) -> Option<&'static str> {
    let options = option_table::all().flat_map(MountOption::names);
    let options = options.filter(|name| !name.ends_with('*'));
    nearest(name, options.chain(ssh_keywords::all()))
}

/// The candidate that a misspelled word most likely stands for, if any is similar enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    // One error in three letters; a word of one or two letters is similar to too many others.
    let max_errors = word.chars().count() / 3;
    candidates
        .into_iter()
        .map(|candidate| {
            let errors = strsim::damerau_levenshtein(&word, &candidate.to_ascii_lowercase());
            (errors, candidate)
        })
        .filter(|(errors, _)| *errors <= max_errors)
        .min_by_key(|(errors, _)| *errors)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_words_are_recognized_and_other_words_are_not() {
        let words = ["reconnect", "noreconnect", "direct_io", "ro"];
        assert_eq!(nearest("reconect", words), Some("reconnect"));
        assert_eq!(nearest("Reconnetc", words), Some("reconnect"));
        assert_eq!(nearest("directio", words), Some("direct_io"));
        assert_eq!(nearest("colour", words), None);
        assert_eq!(nearest("xy", words), None);
        assert_eq!(nearest("", words), None);
    }
}
