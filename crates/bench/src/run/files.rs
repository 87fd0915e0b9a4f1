//! The files of a run: `results.json`, `report.html`, `report.md`; of advice: `advice.json`.
//!
//! Each is written under another name and then renamed, so that a reader, and whoever is left
//! after a crash, has a whole one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::advise::Advice;
use crate::report;
use crate::results::{Results, SCHEMA};

/// A directory for them.
#[derive(Clone, Debug)]
pub struct Files {
    dir: PathBuf,
}

impl Files {
    /// In this directory, which is made if it is missing. What it had of an earlier run is
    /// replaced when there is something to replace it by.
    ///
    /// # Errors
    /// When it cannot be made, or nothing can be written there.
    pub fn new(dir: &Path) -> io::Result<Files> {
        fs::create_dir_all(dir)?;
        tempfile::NamedTempFile::new_in(dir)?;
        Ok(Files { dir: dir.to_owned() })
    }

    /// The JSON alone.
    ///
    /// # Errors
    /// Of the file system.
    pub fn keep(&self, results: &Results) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(results)?;
        json.push(b'\n');
        self.replace("results.json", &json)
    }

    /// All of them; their paths.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, results: &Results) -> io::Result<Vec<PathBuf>> {
        self.keep(results)?;
        self.replace("report.html", report::html(results).as_bytes())?;
        self.replace("report.md", report::markdown(results).as_bytes())?;
        let names = ["report.html", "report.md", "results.json"];
        Ok(names.iter().map(|name| self.dir.join(name)).collect())
    }

    /// What advice says and rests on; its path.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write_advice(&self, advice: &Advice) -> io::Result<PathBuf> {
        const NAME: &str = "advice.json";
        let mut json = serde_json::to_vec_pretty(advice)?;
        json.push(b'\n');
        self.replace(NAME, &json)?;
        Ok(self.dir.join(NAME))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let mut file = tempfile::Builder::new()
            .prefix(".sshoal-bench-")
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(&self.dir)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(self.dir.join(name))?;
        Ok(())
    }
}

/// Reads a `results.json`, or the one in a directory.
///
/// # Errors
/// What is wrong with it, for people.
pub fn read(path: &Path) -> Result<Results, String> {
    let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
    let text = fs::read(&file).map_err(|error| format!("{file:?}: {error}"))?;
    #[derive(serde::Deserialize)]
    struct Form {
        schema: u32,
    }
    let form: Form = serde_json::from_slice(&text)
        .map_err(|_| format!("{file:?}: these are no results of a run"))?;
    if form.schema != SCHEMA {
        let schema = form.schema;
        return Err(format!("{file:?}: of form {schema}, and this program reads form {SCHEMA}"));
    }
    serde_json::from_slice(&text).map_err(|error| format!("{file:?}: {error}"))
}
