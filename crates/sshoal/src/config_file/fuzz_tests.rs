//! Any text as a configuration file.

use std::ffi::OsStr;
use std::path::Path;

use super::{Configuration, Places, document};

/// Body of a fuzz target: any text as a configuration file. Each error is reported at one of its
/// lines, and each mount is found, or refused with a reason.
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let document = document::read(Path::new("/c"), &text, Some(Path::new("/home/ann")));
    let lines = text.split('\n').count();
    for fault in &document.faults {
        let shown = fault.problem.to_string();
        let line = shown.strip_prefix("/c:").and_then(|rest| rest.split(':').next());
        let line: usize = line.and_then(|line| line.parse().ok()).expect("a place");
        assert!((1..=lines).contains(&line), "{shown}");
    }
    let places = Places { system: "/c".into(), user: None, home: Some("/home/ann".into()) };
    let configuration = Configuration { documents: vec![document], places };
    for name in configuration.names() {
        let found = configuration.find(OsStr::new(name));
        assert!(found.is_ok_and(|mount| mount.name == *name) || !configuration.is_sound());
    }
}

impl Configuration {
    /// Whether it contains no error.
    fn is_sound(&self) -> bool {
        self.documents.iter().all(|document| document.faults.is_empty())
    }
}
