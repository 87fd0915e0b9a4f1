//! A whole run against a private server, and the text of advice.

use sandbox::sshd::{Options, Sshd};

use super::*;
use crate::link::LinkSpec;

/// Each trial once and shortly: the test is that it works.
const LITTLE: Effort = Effort { rounds: Some(1), window: Duration::from_millis(50) };

#[test]
fn advice_on_a_private_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::private(&LinkSpec::loopback(), dir.path()).unwrap();
    let executor = Executor::new();
    let mut told = Vec::new();
    let mut tell = |line: &str| told.push(line.to_owned());
    let advice = advise(&server, &executor, &mut tell, LITTLE).unwrap();
    let found = &advice.findings;
    assert!(!told.is_empty());
    assert!(found.server.starts_with("OpenSSH_"), "{found:#?}");
    // OpenSSH offers six ciphers by default, and the client has them all.
    assert!(found.ciphers.len() >= 3, "{found:#?}");
    for figures in &found.ciphers {
        assert!(figures.failure.is_none() && figures.bytes_per_s > 0.0, "{figures:?}");
        assert!(figures.slowest_bytes_per_s <= figures.fastest_bytes_per_s, "{figures:?}");
    }
    assert!(found.cipher(&found.ssh_cipher).is_some(), "{found:#?}");
    assert_eq!(found.sessions.len(), 4);
    assert!(found.sessions.iter().all(|tried| tried.bytes_per_s > 0.0), "{found:#?}");
    let figures = found.compressed.as_ref().unwrap();
    assert!(figures.failure.is_none() && figures.bytes_per_s > 0.0, "{figures:?}");
    // It has left nothing.
    let left: Vec<_> = std::fs::read_dir(server.storage().root()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let text = advice.to_string();
    for item in &advice.items {
        assert!(text.contains(&item.setting), "{text}");
    }
    let json = serde_json::to_value(&advice).unwrap();
    assert_eq!(json["items"].as_array().unwrap().len(), advice.items.len());
    assert_eq!(json["findings"]["path"], "loopback");
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
    let findings = advise(&server, &executor, &mut |_| (), LITTLE).unwrap().findings;
    let names: Vec<&str> = findings.ciphers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["aes128-ctr"]);
    assert_eq!((findings.ssh_cipher.as_str(), findings.path), ("aes128-ctr", Path::Network));
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
    let server = Server::private(&LinkSpec::loopback(), dir.path()).unwrap();
    let executor = Executor::new();
    let interrupt = executor.clone();
    let mut tell = |line: &str| {
        if line.contains("ciphers") {
            interrupt.interrupt();
        }
    };
    assert_eq!(advise(&server, &executor, &mut tell, LITTLE).unwrap_err(), Failure::Interrupted);
}

#[test]
fn no_line_is_wider_than_a_terminal() {
    let long = "word ".repeat(60) + &"x".repeat(300);
    let findings = Findings {
        host: long.clone(),
        server: long.clone(),
        ciphers: vec![Figures { failure: Some(long.clone()), ..Figures::default() }],
        ..Findings::default()
    };
    let verdicts = [Verdict::Matters, Verdict::NotHere, Verdict::Unknown];
    let item = |verdict| Item {
        setting: "setting".to_owned(),
        verdict,
        found: long.clone(),
        why: long.clone(),
        to_type: Vec::new(),
    };
    let advice = Advice { findings, items: verdicts.map(item).into() };
    let text = advice.to_string();
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest}\n{text}");
    for verdict in verdicts {
        assert!(text.contains(&verdict.words().to_uppercase()), "{text}");
    }
    let nothing = Advice { items: Vec::new(), ..advice };
    assert!(nothing.to_string().contains("No setting would be faster"));
}
