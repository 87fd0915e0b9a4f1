//! What a build has made: its object files and archives, by name and digest.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::corpus::digest_file;
use crate::failure::Failure;

/// Path below the directory of objects → SHA-256.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Objects(BTreeMap<String, String>);

impl Objects {
    /// What is below `dir`. What a build makes for its own use (`scripts`) is no part of it: it
    /// has paths in it.
    pub(super) fn of(dir: &Path) -> io::Result<Objects> {
        let mut found = BTreeMap::new();
        collect(dir, dir, &mut found)?;
        Ok(Objects(found))
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn save(&self, file: &Path) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Err(Failure::failed("the build of the original has made no object files"));
        }
        let text = serde_json::to_vec(self).map_err(|error| Failure::failed(error.to_string()))?;
        Ok(fs::write(file, text)?)
    }

    pub(super) fn load(file: &Path) -> Result<Objects, Failure> {
        serde_json::from_slice(&fs::read(file)?).map_err(|error| Failure::failed(error.to_string()))
    }

    /// Compares what was built with this, which was built from the original. Gives whether all
    /// bytes are equal; where they have to be (`exact`), anything else is a failure.
    pub(super) fn check(&self, built: &Objects, exact: bool) -> Result<bool, Failure> {
        let wrong =
            |name: &str, why: &str| Err(Failure::wrong(format!("{} {why}", name.escape_debug())));
        if let Some(missing) = self.0.keys().find(|&name| !built.0.contains_key(name)) {
            return wrong(missing, "was not built");
        }
        if let Some(added) = built.0.keys().find(|&name| !self.0.contains_key(name)) {
            return wrong(added, "was built, and is not when the original is");
        }
        match self.0.iter().find(|&(name, digest)| built.0[name] != *digest) {
            None => Ok(true),
            Some(_) if !exact => Ok(false),
            Some((name, _)) => wrong(name, "is not like that built from the original"),
        }
    }
}

fn collect(root: &Path, dir: &Path, found: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() && path != root.join("scripts") {
            collect(root, &path, found)?;
        }
        let is_object = path.extension().is_some_and(|extension| extension == "o");
        if kind.is_file() && is_object {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            found.insert(name, digest_file(&path)?);
        }
    }
    Ok(())
}
