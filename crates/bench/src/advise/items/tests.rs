//! What follows from findings, setting by setting.

use super::*;

fn measured(name: &str, mb: f64, cpu: f64) -> Figures {
    Figures {
        name: name.to_owned(),
        bytes_per_s: mb * 1e6,
        slowest_bytes_per_s: mb * 0.98e6,
        fastest_bytes_per_s: mb * 1.02e6,
        client_cpu_s_per_gb: Some(cpu),
        ..Figures::default()
    }
}

fn several(rates: [f64; 4]) -> Vec<Figures> {
    let sessions = [1, 2, 4, 8].into_iter().zip(rates);
    sessions.map(|(connections, mb)| Figures { connections, ..measured("n", mb, 1.0) }).collect()
}

/// A short network that is not full.
fn near() -> Findings {
    Findings {
        is_network: true,
        rtt_us: 200.0,
        ciphers: vec![
            measured("aes128-gcm@openssh.com", 60.0, 1.0),
            measured("chacha20-poly1305@openssh.com", 59.0, 2.0),
            measured("aes128-ctr", 58.0, 1.5),
        ],
        ssh_cipher: "chacha20-poly1305@openssh.com".into(),
        sshoal_cipher: "aes128-gcm@openssh.com".into(),
        sessions: several([60.0, 60.0, 61.0, 60.0]),
        compressed: Some(measured("text", 30.0, 1.0)),
        ..Findings::default()
    }
}

/// A network of 100 ms.
fn far() -> Findings {
    Findings { rtt_us: 100_000.0, ..near() }
}

fn verdict(item: &Item) -> &str {
    item.verdict
}

#[test]
fn only_what_matters_is_to_be_typed() {
    for found in [Findings::default(), near(), far()] {
        for item in [ciphers(&found), sessions(&found), compression(&found)] {
            assert_eq!(item.to_type.is_empty(), item.verdict != MATTERS, "{item:?}");
        }
    }
}

#[test]
fn a_cipher_that_is_cheaper_or_faster_is_named() {
    let item = ciphers(&near());
    assert_eq!(verdict(&item), MATTERS);
    // sshoal takes it already.
    assert!(item.to_type.iter().all(|line| !line.starts_with("sshoal")), "{item:?}");
    assert!(item.to_type[0].contains("ssh -o Ciphers=aes128-gcm@openssh.com"), "{item:?}");
    let untold = Findings { sshoal_cipher: near().ssh_cipher, ..near() };
    assert!(ciphers(&untold).to_type[0].starts_with("sshoal -o Ciphers=aes128-gcm"));
    let told = Findings { ssh_cipher: "aes128-gcm@openssh.com".into(), ..near() };
    assert_eq!(verdict(&ciphers(&told)), NOT_HERE);
    assert_eq!(verdict(&ciphers(&Findings::default())), UNKNOWN);
}

#[test]
fn the_default_of_sshoal_is_named_by_its_own_name() {
    assert!(ciphers(&near()).why.contains("it is the default of sshoal"));
    let mut found = near();
    found.ciphers.insert(0, measured("aes256-gcm@openssh.com", 60.5, 0.9));
    let item = ciphers(&found);
    let why = "aes256-gcm@openssh.com: aes128-gcm@openssh.com, the default of sshoal, is as good";
    assert!(item.why.starts_with(why), "{item:?}");
}

#[test]
fn several_sessions_matter_where_one_window_is_too_small() {
    assert_eq!(verdict(&sessions(&near())), NOT_HERE);
    let found = Findings {
        sessions: several([20.0, 40.0, 78.0, 117.0]),
        link_bytes_per_s: Some(125e6),
        ..far()
    };
    let item = sessions(&found);
    assert_eq!(item.verdict, MATTERS);
    assert!(item.to_type[0].contains("max_conns=8"), "{item:?}");
    assert!(item.why.contains("holds several of them"), "{item:?}");
    assert!(item.why.contains("21.0 MB/s at most"), "{item:?}");
    let mut unsteady = several([60.0, 110.0, 112.0, 111.0]);
    for tried in &mut unsteady {
        tried.slowest_bytes_per_s = 1e6;
    }
    let item = sessions(&Findings { sessions: unsteady, ..near() });
    assert_eq!(item.verdict, UNKNOWN);
    // On a short link it is the processors.
    let item = sessions(&Findings { sessions: several([60.0, 110.0, 112.0, 111.0]), ..near() });
    assert!(item.to_type[0].contains("max_conns=2") && item.why.contains("processors"), "{item:?}");
}

#[test]
fn compression_matters_on_slow_links_and_where_it_is_on_in_vain() {
    assert_eq!(verdict(&compression(&near())), NOT_HERE);
    let slow = Findings { sessions: several([5.0; 4]), ..near() };
    assert!(compression(&slow).to_type[0].starts_with("sshoal -C"));
    let in_vain = Findings { has_compression: true, ..near() };
    assert!(compression(&in_vain).to_type[0].contains("Compression=no"));
    let none = Findings { compressed: None, ..near() };
    assert_eq!(verdict(&compression(&none)), NOT_HERE);
    // By the CPU of the server, one thread can do 50 MB/s.
    let text = Figures { server_cpu_s_per_gb: Some(20.0), ..measured("text", 30.0, 1.0) };
    let item = compression(&Findings { compressed: Some(text), ..near() });
    assert!(item.why.contains("below 50.0 MB/s"), "{item:?}");
}

fn figures(name: &str, mb: f64, cpu: Option<f64>) -> Figures {
    Figures {
        name: name.to_owned(),
        bytes_per_s: mb * 1e6,
        slowest_bytes_per_s: mb * 0.98e6,
        fastest_bytes_per_s: mb * 1.02e6,
        client_cpu_s_per_gb: cpu,
        ..Figures::default()
    }
}

#[test]
fn a_session_carries_one_window_in_a_round_trip() {
    let long = Findings { rtt_us: 1e5, link_bytes_per_s: Some(125e6), ..Findings::default() };
    assert_eq!(long.ceiling_bytes_per_s(), 20_971_520.0);
    assert_eq!(Findings::default().ceiling_bytes_per_s(), f64::INFINITY);
}

#[test]
fn the_best_cipher_is_the_cheapest_of_the_fastest() {
    let name = |tried: &[Figures], defaults: [&str; 2]| {
        let [sshoal, ssh] = defaults.map(str::to_owned);
        let found = Findings {
            ciphers: tried.to_vec(),
            sshoal_cipher: sshoal,
            ssh_cipher: ssh,
            ..Findings::default()
        };
        found.best_cipher().map(|best| best.name.clone())
    };
    let tried = [
        figures("a", 400.0, Some(1.0)),
        figures("b", 410.0, Some(2.0)),
        figures("c", 200.0, Some(0.5)),
    ];
    assert_eq!(name(&tried, ["", ""]).as_deref(), Some("a"));
    // A default stays, unless it costs more or is slower.
    assert_eq!(name(&tried, ["b", "c"]).as_deref(), Some("a"));
    let alike = [figures("a", 400.0, Some(1.0)), figures("b", 395.0, Some(1.05))];
    assert_eq!(name(&alike, ["x", "b"]).as_deref(), Some("b"));
    // On a slow link the CPU is not known.
    let slow = [figures("a", 10.0, None), figures("b", 9.9, None)];
    assert_eq!(name(&slow, ["b", "a"]).as_deref(), Some("b"));
    let failed = [Figures { failure: Some("no".into()), ..Figures::default() }];
    assert_eq!(name(&failed, ["", ""]), None);
}

#[test]
fn enough_is_the_least_number_that_fills() {
    let sessions = |rates: &[(u32, f64)]| Findings {
        sessions: rates
            .iter()
            .map(|&(connections, mb)| Figures { connections, ..figures("", mb, None) })
            .collect(),
        ..Findings::default()
    };
    let enough = |rates: &[(u32, f64)]| {
        sessions(rates).enough().map(|(one, enough)| (one.connections, enough.connections))
    };
    assert_eq!(enough(&[(1, 20.0), (2, 40.0), (4, 80.0), (8, 117.0)]), Some((1, 8)));
    assert_eq!(enough(&[(1, 20.0), (2, 40.0), (4, 112.0), (8, 117.0)]), Some((1, 4)));
    assert_eq!(enough(&[(1, 100.0), (2, 101.0), (4, 95.0)]), Some((1, 1)));
    // A round that stalled does not hide a rate beyond one window in a round trip.
    let mut far = sessions(&[(1, 10.0), (2, 12.4)]);
    far.sessions[1].slowest_bytes_per_s = 0.2e6;
    far.rtt_us = 206_000.0;
    assert_eq!(far.enough().map(|(_, enough)| enough.connections), Some(2));
    far.rtt_us = 20_000.0;
    assert_eq!(far.enough().map(|(_, enough)| enough.connections), Some(1));
    // Eight that failed have no say.
    assert_eq!(enough(&[(1, 20.0), (2, 40.0), (8, 0.0)]), Some((1, 2)));
    assert_eq!(enough(&[(1, 0.0), (2, 1.0)]), None);
}

#[test]
fn no_line_is_wider_than_a_terminal() {
    let long = "word ".repeat(60) + &"x".repeat(300);
    let findings = Findings {
        host: long.clone(),
        server: long.clone(),
        ciphers: vec![Figures { failure: Some(long), ..Figures::default() }],
        ..Findings::default()
    };
    for findings in [findings, near(), far()] {
        let text = text(&findings);
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 100, "{widest}\n{text}");
        for setting in ["\nCiphers: ", "\nmax_conns: ", "\nCompression: "] {
            assert!(text.contains(setting), "{text}");
        }
    }
}
