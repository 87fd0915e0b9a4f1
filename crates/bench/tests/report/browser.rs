//! Headless Chromium, on files of its own.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize;
use tempfile::TempDir;

/// Seconds after which a browser is given up: a page takes two.
const LIMIT: &str = "120";

/// A theme as Chromium's settings number them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Theme {
    Dark = 0,
    Light = 1,
}

/// What a frame is measured to be: see `measure.js`.
#[derive(Debug, Deserialize)]
pub(crate) struct Frame {
    pub(crate) width: f64,
    /// Of all that is in it: more than its width means that it scrolls sideways.
    pub(crate) content_width: f64,
    pub(crate) background: String,
    pub(crate) scripts: usize,
    pub(crate) resources: usize,
    /// What an element would fetch or run: `src`, `on…`, links to elsewhere.
    pub(crate) suspects: Vec<String>,
    pub(crate) charts: Vec<Chart>,
    pub(crate) dead_links: Vec<String>,
}

/// One SVG with a title.
#[derive(Debug, Deserialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) height: f64,
    /// Bars, dots and curves with an extent.
    pub(crate) marks: usize,
    /// Height of its text on the screen.
    pub(crate) text_height: f64,
    /// Texts that reach out of it, or into another.
    pub(crate) misplaced: Vec<String>,
}

/// Shows pages side by side in frames of the given widths, and measures them.
pub(crate) fn measure(pages: &[(&str, u32)], theme: Theme) -> Vec<Frame> {
    let dir = tempfile::tempdir().unwrap();
    let mut wrapper = "<!DOCTYPE html><meta charset=utf-8><body>".to_owned();
    for (page, width) in pages {
        let page = page.replace('&', "&amp;").replace('"', "&quot;");
        wrapper += &format!(
            "<iframe style='width:{width}px;height:900px;border:0' srcdoc=\"{page}\"></iframe>"
        );
    }
    wrapper += &format!("<pre id=found></pre><script>{}</script>", include_str!("measure.js"));
    let file = dir.path().join("wrapper.html");
    fs::write(&file, wrapper).unwrap();
    let output = chromium(&dir, theme, &["--dump-dom"], &file);
    let dom = String::from_utf8(output.stdout).unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = words.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert_eq!(complaints, [""; 0], "the browser complains");
    let found = dom
        .split_once("<pre id=\"found\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(found, _)| found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        .unwrap_or_else(|| panic!("nothing was measured: {words}"));
    serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error} in {found}"))
}

/// A picture of a page, as the bytes of a PNG.
pub(crate) fn picture(page: &str, width: u32, theme: Theme) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (file, png) = (dir.path().join("page.html"), dir.path().join("page.png"));
    fs::write(&file, page).unwrap();
    let size = format!("--window-size={width},1600");
    let to = format!("--screenshot={}", png.display());
    let output = chromium(&dir, theme, &[&size, &to], &file);
    fs::read(&png).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn chromium(dir: &TempDir, theme: Theme, options: &[&str], page: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.args([LIMIT, program()]);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--disable-background-networking", "--no-first-run", "--hide-scrollbars"]);
    command.arg("--enable-logging=stderr");
    command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
    command.arg(format!("--blink-settings=preferredColorScheme={}", theme as u8));
    command.args(options).arg(format!("file://{}", page.display()));
    command.env("HOME", dir.path());
    let output = command.output().expect("timeout(1) is there");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "chromium: {}: {words}", output.status);
    output
}

fn program() -> &'static str {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(is_there).unwrap_or_else(|| {
        panic!("the report is tested in a browser: install the package chromium (make setup)")
    })
}
