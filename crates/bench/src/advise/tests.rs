//! A whole run against a private server, and the text of advice.

use sandbox::sshd::{Options, Sshd};

use super::*;
use crate::link::LinkSpec;

#[test]
fn advice_on_a_private_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
    let executor = Executor::new();
    let mut told = Vec::new();
    let mut tell = |line: &str| told.push(line.to_owned());
    let found = findings(&server, &executor, &mut tell, true).unwrap();
    assert!(!told.is_empty());
    assert!(found.server.starts_with("OpenSSH_"), "{found:#?}");
    // OpenSSH offers six ciphers by default, and the client has them all.
    assert!(found.ciphers.len() >= 3, "{found:#?}");
    for figures in &found.ciphers {
        assert!(figures.failure.is_none() && figures.bytes_per_s > 0.0, "{figures:?}");
        assert!(figures.slowest_bytes_per_s <= figures.fastest_bytes_per_s, "{figures:?}");
    }
    assert!(found.ciphers.iter().any(|it| it.name == found.ssh_cipher), "{found:#?}");
    assert_eq!(found.sessions.len(), 4);
    assert!(found.sessions.iter().all(|tried| tried.bytes_per_s > 0.0), "{found:#?}");
    let figures = found.compressed.as_ref().unwrap();
    assert!(figures.failure.is_none() && figures.bytes_per_s > 0.0, "{figures:?}");
    // It has left nothing.
    let left: Vec<_> = std::fs::read_dir(server.storage().root()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let text = items::text(&found);
    for figures in &found.ciphers {
        assert!(text.contains(&figures.name), "{text}");
    }
    assert!(!found.is_network && text.contains("share this machine's processors"), "{text}");
}

#[test]
fn advice_on_a_host_that_has_one_cipher_and_no_compression() {
    let settings = ["Ciphers aes128-ctr", "Compression no"];
    let options = Options { settings: settings.map(str::to_owned).into(), ..Options::default() };
    let sshd = Sshd::start(options).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let executor = Executor::new();
    let at = dir.path().to_str();
    let server = Server::host("testhost", at, Some(&sshd.config_path()), None, &executor).unwrap();
    let findings = findings(&server, &executor, &mut |_| (), true).unwrap();
    let names: Vec<&str> = findings.ciphers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["aes128-ctr"]);
    assert_eq!((findings.ssh_cipher.as_str(), findings.is_network), ("aes128-ctr", true));
    assert_eq!((findings.compressed.as_ref(), findings.link_bytes_per_s), (None, None));
    assert!(findings.sessions[3].bytes_per_s > 0.0, "{findings:#?}");
    assert!(findings.rtt_us > 0.0);
}

#[test]
fn sshoal_prefers_aes_unless_the_user_has_chosen() {
    let offer = |ciphers: &[&str]| Handshake {
        cipher: "b".to_owned(),
        ciphers: ciphers.iter().map(|&name| name.to_owned()).collect(),
        ..Handshake::default()
    };
    let both = offer(&[items::AES_CIPHER, "b"]);
    assert_eq!(sshoal_cipher(&both, false, true), items::AES_CIPHER);
    assert_eq!(sshoal_cipher(&both, true, true), "b");
    assert_eq!(sshoal_cipher(&both, false, false), "b");
    assert_eq!(sshoal_cipher(&offer(&["b"]), false, true), "b");
}

#[test]
fn an_interrupt_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
    let executor = Executor::new();
    let interrupt = executor.clone();
    let mut tell = |line: &str| {
        if line.contains("ciphers") {
            interrupt.interrupt();
        }
    };
    assert_eq!(advise(&server, &executor, &mut tell, true).unwrap_err(), Failure::Interrupted);
}
