//! docs/benchmarking.md and docs/results are in step with the file's form.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::FIXTURE;

fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.insert(name.clone());
                names(value, into);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, into)),
        _ => {}
    }
}

#[test]
fn every_field_is_documented() {
    let text = include_str!("../../../../docs/benchmarking.md");
    let mut fields = BTreeSet::new();
    names(&serde_json::from_str(FIXTURE).unwrap(), &mut fields);
    assert!(fields.len() > 80, "{}", fields.len());
    let missing: Vec<_> =
        fields.iter().filter(|field| !text.contains(&format!("`{field}`"))).collect();
    assert_eq!(missing, [""; 0], "add them to docs/benchmarking.md");
}

#[test]
fn the_published_results_are_readable() {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results"));
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let results: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    assert!(!results.is_empty());
    for path in results {
        let read = bench::run::read(&path);
        assert!(read.is_ok(), "{}", read.unwrap_err());
    }
}
