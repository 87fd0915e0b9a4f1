//! Where a path of a mount is, and how to reach it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The place of one path of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The source that has the path, escaped.
    pub source: String,
    /// The path at the host: absolute, unless only the server knows its home directory.
    pub path: Bytes,
    /// The host; `None` for a local directory.
    pub host: Option<Host>,
}

/// A host, and how to run a command there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The user, if the source names one.
    pub user: Option<String>,
    /// The name or address.
    pub name: String,
    /// The port, if the source names one.
    pub port: Option<u16>,
    /// ssh and its options, without the host; `None` for a mount that does not use ssh.
    pub ssh: Option<Vec<Bytes>>,
}

/// Bytes that need not be valid text. They are sent as hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.map(Bytes).ok_or_else(|| D::Error::custom("no hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_what_they_were() {
        let host = Host {
            user: None,
            name: "h".into(),
            port: None,
            ssh: Some(vec![Bytes(b"ssh".to_vec()), Bytes(vec![0xff])]),
        };
        let place = Place { source: "h:".into(), path: Bytes(b"/a".to_vec()), host: Some(host) };
        let text = serde_json::to_string(&place).unwrap();
        assert_eq!(
            text,
            r#"{"source":"h:","path":"2f61","host":{"user":null,"name":"h","port":null,"ssh":["737368","ff"]}}"#
        );
        assert_eq!(serde_json::from_str::<Place>(&text).unwrap(), place);
    }
}
