//! The page: complete, and it fetches and runs nothing.

use std::collections::HashSet;

use bench::report::html;

use super::{fixture, hostile};

#[test]
fn the_page_is_one_file_with_names_that_occur_once() {
    let page = html(&fixture());
    for outside in ["http://", "https://", "src=", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ";
    assert!(page.contains(policy), "the browser is not told to fetch nothing");
    let mut seen = HashSet::new();
    for id in page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(seen.insert(id), "{id} twice");
    }
    assert!(seen.len() > 30, "{}", seen.len());
    assert!(page.len() < 400_000, "{} bytes", page.len());
}

#[test]
fn each_measure_has_a_chart_with_a_title_and_a_description() {
    let results = fixture();
    let page = html(&results);
    assert_eq!(page.matches("<svg ").count(), results.measures.len());
    assert_eq!(page.matches("<desc ").count(), results.measures.len());
    assert!(page.matches("<rect class=\"bar\"").count() > results.measures.len());
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let page = html(&hostile());
    for tag in ["<script", "<img", "</style></svg>", "<b>\u{7}"] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert!(page.contains("&lt;script"), "names are shown as text");
}

#[test]
fn a_run_without_samples_is_still_a_page() {
    let mut results = fixture();
    results.samples.clear();
    results.partial = Some("interrupted before the first sample".to_owned());
    let page = html(&results);
    assert_eq!(page.matches("<svg ").count(), 0);
    assert!(page.contains("interrupted before the first sample"));
}
