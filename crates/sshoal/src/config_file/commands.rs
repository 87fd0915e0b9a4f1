//! `sshoal config check` and `sshoal config show`.

use std::ffi::OsStr;
use std::fmt::Write;
use std::process::ExitCode;

use super::{Configuration, Places, show};
use crate::report::{EXIT_FAILURE, EXIT_OK, printable};

/// Tells all mistakes, on standard error, or how many mounts there are. 1 if there is a mistake.
pub fn check(program: &str) -> anyhow::Result<ExitCode> {
    let places = Places::of_environment();
    let configuration = Configuration::load(&places)?;
    if configuration.documents.is_empty() {
        return crate::print(&none(&places));
    }
    let mut faults = 0;
    let mut text = String::new();
    for document in &configuration.documents {
        for fault in &document.faults {
            eprintln!("{program}: {}", fault.problem);
        }
        faults += document.faults.len();
        let mounts = document.entries.len();
        let plural = if mounts == 1 { "" } else { "s" };
        let found = match document.faults.len() {
            0 => "no mistake".to_owned(),
            1 => "1 mistake".to_owned(),
            many => format!("{many} mistakes"),
        };
        let _ = writeln!(text, "{}: {mounts} mount{plural}, {found}", printable(&document.path));
    }
    crate::print(&text)?;
    Ok(ExitCode::from(if faults == 0 { EXIT_OK } else { EXIT_FAILURE }))
}

/// Shows one mount, or all, as they result from the files.
pub fn show(name: Option<&str>) -> anyhow::Result<ExitCode> {
    let places = Places::of_environment();
    let configuration = Configuration::load(&places)?;
    let names = match name {
        Some(name) => vec![name],
        None if configuration.documents.is_empty() => return crate::print(&none(&places)),
        None => configuration.names(),
    };
    let mut text = String::new();
    for (index, name) in names.into_iter().enumerate() {
        // Fails for one with a mistake in it: what would be shown would not be what results.
        configuration.find(OsStr::new(name))?;
        let (document, entry) = configuration.entry(OsStr::new(name))?;
        text += if index > 0 { "\n" } else { "" };
        text += &show::mount(document, entry, &configuration.settings(document, entry));
    }
    crate::print(&text)
}

fn none(places: &Places) -> String {
    let paths: Vec<String> = places.all().map(printable).collect();
    format!("There is no configuration: looked for {}\n", paths.join(" and "))
}
