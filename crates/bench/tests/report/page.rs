//! The page in headless Chromium: laid out, readable, and it fetches and runs nothing.

use std::collections::HashSet;

use bench::report::html;

use super::browser::{Frame, Theme, measure, picture};
use super::{fixture, hostile};

/// Widths of a phone and of a desk, in pixels.
const PHONE: u32 = 390;
const DESK: u32 = 1280;

/// Pixels below which text of a chart cannot be read on a phone.
const LEAST_TEXT: f64 = 10.0;

fn expect_charts(frame: &Frame) {
    let results = fixture();
    let bars = results.measures.len();
    let others = results.subjects.len() - 1 + 3;
    assert_eq!(frame.charts.len(), bars + others, "bars, ratios, and three latencies");
    for chart in &frame.charts {
        let title = &chart.title;
        assert!(chart.left >= 0.0 && chart.right <= frame.width, "{title}: {chart:?}");
        assert!(chart.right - chart.left > 250.0 && chart.height > 40.0, "{title}: {chart:?}");
        assert!(chart.marks > 0, "{title} shows nothing");
        assert!(chart.text_height >= LEAST_TEXT, "{title}: {chart:?}");
        assert_eq!(chart.misplaced, [""; 0], "{title} at {} px", frame.width);
        assert!(!chart.description.is_empty(), "{title} says nothing to a screen reader");
    }
}

fn expect_quiet(frame: &Frame) {
    assert_eq!(frame.scripts, 0);
    assert_eq!(frame.resources, 0, "something was fetched");
    assert_eq!(frame.suspects, [""; 0]);
    assert_eq!(frame.dead_links, [""; 0]);
}

#[test]
fn charts_are_laid_out_on_a_phone_and_on_a_desk() {
    let page = html(&fixture());
    let frames = measure(&[(&page, PHONE), (&page, DESK)], Theme::Light);
    assert_eq!(frames.len(), 2);
    for frame in &frames {
        expect_charts(frame);
        expect_quiet(frame);
        assert!(frame.content_width <= frame.width, "the page scrolls sideways: {frame:?}");
        assert_eq!(frame.background, "rgb(255, 255, 255)");
    }
}

#[test]
fn the_page_is_dark_for_who_wants_that() {
    let page = html(&fixture());
    let frame = &measure(&[(&page, DESK)], Theme::Dark)[0];
    let parts = frame.background.trim_matches(|char: char| !char.is_ascii_digit());
    let parts: Vec<u8> = parts.split(", ").map(|part| part.parse().unwrap()).collect();
    assert!(parts.iter().all(|&part| part < 64), "{}", frame.background);
    expect_charts(frame);
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let page = html(&hostile());
    let frame = &measure(&[(&page, PHONE)], Theme::Light)[0];
    expect_quiet(frame);
    assert!(frame.content_width <= frame.width, "the page scrolls sideways: {frame:?}");
    let titles: Vec<&str> = frame.charts.iter().map(|chart| chart.title.as_str()).collect();
    assert!(titles.iter().any(|title| title.contains("<script")), "shown as text: {titles:?}");
}

#[test]
fn a_picture_has_something_on_it() {
    let page = html(&fixture());
    let themes = [Theme::Light, Theme::Dark].map(|theme| picture(&page, DESK, theme));
    let empty = picture("<!DOCTYPE html><title>empty</title>", DESK, Theme::Light);
    for png in &themes {
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
        // Width and height are the first fields of the first chunk.
        assert_eq!(png[16..20], DESK.to_be_bytes());
        assert!(png.len() > 10 * empty.len(), "{} bytes, empty {}", png.len(), empty.len());
    }
    assert!(themes[0] != themes[1], "light and dark are the same");
}

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
    assert!(seen.len() > 60, "{}", seen.len());
    assert!(page.len() < 400_000, "{} bytes", page.len());
}

#[test]
fn a_run_without_samples_is_still_a_page() {
    let mut results = fixture();
    results.samples.clear();
    results.partial = Some("interrupted before the first sample".to_owned());
    let frame = &measure(&[(&html(&results), PHONE)], Theme::Light)[0];
    assert_eq!(frame.charts.len(), 0);
    assert_eq!(frame.scripts + frame.resources, 0);
    assert_eq!(frame.dead_links, [""; 0]);
}
