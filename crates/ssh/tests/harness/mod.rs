//! What the tests of connections share.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sandbox::sshd::Sshd;
use ssh::{Config, Connection, Destination, Dialer, Error, Failure, StderrHook};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What a hook heard.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    pub(crate) fn hook(&self) -> StderrHook {
        let heard = self.0.clone();
        Arc::new(move |words| heard.lock().unwrap().extend_from_slice(words.as_bytes()))
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }
}

/// A connection to a private server, with all else as it comes.
pub(crate) fn config_of(sshd: &Sshd) -> Config {
    let destination = Destination::new(None, sshd.alias(), None).unwrap();
    let args = vec![OsString::from("-F"), sshd.config_path().into()];
    Config { args, ..Config::new(destination) }
}

/// A connection for programs that do not connect.
pub(crate) fn nowhere() -> Config {
    Config::new(Destination::new(None, "host.invalid", None).unwrap())
}

pub(crate) fn dialer(config: Config, heard: &Heard) -> Dialer {
    Dialer::new(config, heard.hook()).unwrap()
}

/// Says hello in SFTP, and wants to be greeted.
pub(crate) async fn greet(connection: &mut Connection) -> io::Result<()> {
    let Connection { reader, writer, .. } = connection;
    // SSH_FXP_INIT, version 3; answered by SSH_FXP_VERSION, 3, and extensions.
    writer.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).await?;
    let length = reader.read_u32().await?;
    let mut packet = vec![0; length as usize];
    reader.read_exact(&mut packet).await?;
    assert_eq!(packet[..5], [2, 0, 0, 0, 3]);
    Ok(())
}

/// Why there is no SFTP by this configuration.
pub(crate) async fn failure(config: Config) -> Failure {
    let mut connection = dialer(config, &Heard::default()).connect().await.unwrap();
    let error = greet(&mut connection).await.expect_err("a greeting where none should be");
    match connection.diagnosis.explain().await {
        Error::Ssh(failure) => failure,
        other => panic!("{error}, but then {other}"),
    }
}

/// All that a program writes to its stdout and to its stderr.
pub(crate) async fn output(config: Config) -> (String, String) {
    let mut connection = dialer(config, &Heard::default()).connect().await.unwrap();
    let mut text = String::new();
    connection.reader.read_to_string(&mut text).await.unwrap();
    connection.diagnosis.ended().await;
    (text, connection.diagnosis.words())
}

/// Writes a shell script and returns its name.
pub(crate) fn script(dir: &Path, name: &str, body: &str) -> String {
    let path = dir.join(name);
    sandbox::write_program(&path, format!("#!/bin/sh\n{body}")).unwrap();
    path.into_os_string().into_string().unwrap()
}

/// A client's configuration that names a key which the server does not know.
pub(crate) fn without_keys(sshd: &Sshd) -> PathBuf {
    let text = fs::read_to_string(sshd.config_path()).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("IdentityFile")).collect();
    let path = sshd.dir().join("config_without_keys");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    path
}

/// Children of this process, zombies too, that have this name and a path in their arguments.
pub(crate) fn children_named(name: &str, path: &Path) -> Vec<u32> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((left, right)) = stat.rsplit_once(") ") else { continue };
        let mut fields = right.split(' ');
        let is_zombie = fields.next() == Some("Z");
        let is_child = fields.next() == Some(&own);
        let is_named = left.ends_with(&format!("({name}"));
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has_path = String::from_utf8_lossy(&arguments).contains(path.to_str().unwrap());
        if is_child && is_named && (has_path || is_zombie) {
            found.push(pid);
        }
    }
    found
}
