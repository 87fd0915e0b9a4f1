//! Where a path of a mount is, and how to reach its hosts.

use serde::{Deserialize, Serialize};

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

/// How a mount connects to one of its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The source, as the status shows it.
    pub source: String,
    /// The directory at the host: absolute, unless only the server knows its home directory.
    pub directory: Bytes,
    /// The user, if the source names one.
    pub user: Option<String>,
    /// The name or address.
    pub name: String,
    /// The port, if the source names one.
    pub port: Option<u16>,
    /// `-o ssh_command`; `None` for a mount that does not use ssh.
    pub ssh_command: Option<Bytes>,
    /// The options of ssh.
    pub arguments: Vec<Bytes>,
    /// `-o sftp_server`.
    pub sftp_server: Option<String>,
    /// The mount logs in with a password, which is not sent.
    pub has_password: bool,
}

/// Bytes that need not be valid text. They are sent as hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "hex")] pub Vec<u8>);

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

    #[test]
    fn connections_are_what_they_were() {
        let connection = Connection {
            source: "h:".into(),
            directory: Bytes(b"/a".to_vec()),
            user: Some("me".into()),
            name: "h".into(),
            port: Some(7),
            ssh_command: Some(Bytes(b"ssh".to_vec())),
            arguments: vec![Bytes(vec![0xff])],
            sftp_server: None,
            has_password: false,
        };
        let text = serde_json::to_string(&connection).unwrap();
        assert_eq!(
            text,
            r#"{"source":"h:","directory":"2f61","user":"me","name":"h","port":7,"ssh_command":"737368","arguments":["ff"],"sftp_server":null,"has_password":false}"#
        );
        assert_eq!(serde_json::from_str::<Connection>(&text).unwrap(), connection);
    }
}
