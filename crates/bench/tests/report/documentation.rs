//! docs/benchmarking.md is in step with the file's form.

use std::collections::BTreeSet;

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
