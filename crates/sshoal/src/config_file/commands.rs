//! `sshoal config check` and `sshoal config show`.

use std::ffi::OsStr;
use std::fmt::Write;
use std::process::ExitCode;

use cli::{EXIT_FAILURE, EXIT_OK, printable};

use super::{Configuration, Places, show};

/// Prints all errors of the configuration files to standard error, and the number of mounts of each
/// file. The exit code is 1 if there is an error.
pub fn check(program: &str) -> anyhow::Result<ExitCode> {
    let places = Places::of_environment();
    let configuration = Configuration::load(&places)?;
    if configuration.documents.is_empty() {
        return cli::print(&none(&places));
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
            0 => "no errors".to_owned(),
            1 => "1 error".to_owned(),
            many => format!("{many} errors"),
        };
        let _ = writeln!(text, "{}: {mounts} mount{plural}, {found}", printable(&document.path));
    }
    cli::print(&text)?;
    Ok(ExitCode::from(if faults == 0 { EXIT_OK } else { EXIT_FAILURE }))
}

/// Prints the resulting settings of one mount, or of all.
pub fn show(name: Option<&str>) -> anyhow::Result<ExitCode> {
    let places = Places::of_environment();
    let configuration = Configuration::load(&places)?;
    let names = match name {
        Some(name) => vec![name],
        None if configuration.documents.is_empty() => return cli::print(&none(&places)),
        None => configuration.names(),
    };
    let mut text = String::new();
    for (index, name) in names.into_iter().enumerate() {
        // Fails for a mount with an error: the settings shown would not be those in effect.
        configuration.find(OsStr::new(name))?;
        let (document, entry) = configuration.entry(OsStr::new(name))?;
        text += if index > 0 { "\n" } else { "" };
        text += &show::mount(document, entry, &configuration.settings(document, entry));
    }
    cli::print(&text)
}

fn none(places: &Places) -> String {
    let paths: Vec<String> = places.all().map(printable).collect();
    format!("No configuration file; searched {}\n", paths.join(" and "))
}
