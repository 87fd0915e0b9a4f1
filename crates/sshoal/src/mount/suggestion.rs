//! "Did you mean …?"

/// The candidate that a misspelled word most likely stands for, if any is near enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    // One slip in every three letters; a word of one or two letters is like too many others.
    let most_slips = word.chars().count() / 3;
    candidates
        .into_iter()
        .map(|candidate| {
            let slips = strsim::damerau_levenshtein(&word, &candidate.to_ascii_lowercase());
            (slips, candidate)
        })
        .filter(|(slips, _)| *slips <= most_slips)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_forgiven_and_other_words_are_not() {
        let words = ["reconnect", "noreconnect", "direct_io", "ro"];
        assert_eq!(nearest("reconect", words), Some("reconnect"));
        assert_eq!(nearest("Reconnetc", words), Some("reconnect"));
        assert_eq!(nearest("directio", words), Some("direct_io"));
        assert_eq!(nearest("colour", words), None);
        assert_eq!(nearest("xy", words), None);
        assert_eq!(nearest("", words), None);
    }
}
