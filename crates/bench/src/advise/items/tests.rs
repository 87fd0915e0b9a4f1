//! What follows from findings, setting by setting.

use super::*;
use crate::advise::Verdict;
use crate::advise::facts::{Facts, Interface};
use crate::advise::findings::{Path, Sessions};
use crate::advise::flow::Figures;

fn figures(name: &str, mb: f64, cpu: f64) -> Figures {
    Figures {
        name: name.to_owned(),
        bytes_per_s: mb * 1e6,
        slowest_bytes_per_s: mb * 0.98e6,
        fastest_bytes_per_s: mb * 1.02e6,
        client_cpu_s_per_gb: Some(cpu),
        ..Figures::default()
    }
}

fn sessions(rates: [f64; 4]) -> Vec<Sessions> {
    let sessions = [1, 2, 4, 8].into_iter().zip(rates);
    sessions
        .map(|(connections, mb)| Sessions { connections, figures: figures("n", mb, 1.0) })
        .collect()
}

/// Kernels as they come.
fn usual() -> Facts {
    Facts {
        aes: Some(true),
        rmem_max: Some(212_992),
        wmem_max: Some(212_992),
        tcp_rmem: Some([4096, 131_072, 6_291_456]),
        tcp_wmem: Some([4096, 16_384, 4_194_304]),
        moderate_rcvbuf: Some(true),
        window_scaling: Some(true),
        sack: Some(true),
        timestamps: Some(true),
        slow_start_after_idle: Some(true),
        congestion_control: Some("cubic".into()),
        qdisc: Some("fq_codel".into()),
        netdev_max_backlog: Some(1000),
        interface: Some(Interface {
            name: "eth0".into(),
            mtu_bytes: 1500,
            bits_per_s: Some(1_000_000_000),
            wireless: false,
        }),
        ..Facts::default()
    }
}

/// A short network that is not full.
fn near() -> Findings {
    Findings {
        path: Path::Network,
        rtt_us: 200.0,
        ciphers: vec![
            figures("aes128-gcm@openssh.com", 60.0, 1.0),
            figures("chacha20-poly1305@openssh.com", 59.0, 2.0),
            figures("aes128-ctr", 58.0, 1.5),
        ],
        ssh_cipher: "chacha20-poly1305@openssh.com".into(),
        sshoal_cipher: "aes128-gcm@openssh.com".into(),
        ssh_mac: "umac-64-etm@openssh.com".into(),
        sessions: sessions([60.0, 60.0, 61.0, 60.0]),
        shared: figures("shared", 60.0, 1.0),
        plain: figures("plain", 60.0, 1.0),
        unmarked: figures("unmarked", 60.0, 1.0),
        compressed_text: Some(figures("text", 30.0, 1.0)),
        compressed_noise: Some(figures("noise", 20.0, 1.0)),
        ipqos: "lowdelay throughput".into(),
        here: usual(),
        there: usual(),
        resent: Some(0.0),
        backlog_dropped: Some(0),
        ..Findings::default()
    }
}

/// A network of 100 ms.
fn far() -> Findings {
    Findings { rtt_us: 100_000.0, ..near() }
}

fn verdict(item: &Item) -> Verdict {
    item.verdict
}

#[test]
fn each_setting_has_one_item_and_only_what_matters_is_to_be_typed() {
    for found in [Findings::default(), near(), far()] {
        let items = all(&found);
        let mut settings: Vec<&str> = items.iter().map(|item| item.setting.as_str()).collect();
        settings.sort_unstable();
        settings.dedup();
        assert_eq!(settings.len(), items.len());
        for item in items {
            assert_eq!(item.to_type.is_empty(), item.verdict != Verdict::Matters, "{item:?}");
        }
    }
}

#[test]
fn a_cipher_that_is_cheaper_or_faster_is_named() {
    let item = ssh::ciphers(&near());
    assert_eq!(verdict(&item), Verdict::Matters);
    // sshoal takes it already.
    assert!(item.to_type.iter().all(|line| !line.starts_with("sshoal")), "{item:?}");
    assert!(item.to_type[0].contains("ssh -o Ciphers=aes128-gcm@openssh.com"), "{item:?}");
    let untold = Findings { sshoal_cipher: near().ssh_cipher, ..near() };
    assert!(ssh::ciphers(&untold).to_type[0].starts_with("sshoal -o Ciphers=aes128-gcm"));
    let told = Findings { ssh_cipher: "aes128-gcm@openssh.com".into(), ..near() };
    assert_eq!(verdict(&ssh::ciphers(&told)), Verdict::NotHere);
    assert_eq!(verdict(&ssh::ciphers(&Findings::default())), Verdict::Unknown);
}

#[test]
fn a_mac_matters_where_the_best_cipher_needs_one() {
    assert_eq!(verdict(&ssh::macs(&near())), Verdict::NotHere);
    let macs =
        vec![figures("umac-64-etm@openssh.com", 300.0, 2.0), figures("hmac-sha1", 100.0, 5.0)];
    let found = Findings { macs: macs.clone(), ..near() };
    assert_eq!(verdict(&ssh::macs(&found)), Verdict::NotHere);
    let item = ssh::macs(&Findings { ssh_mac: "hmac-sha1".into(), macs, ..near() });
    assert_eq!(item.verdict, Verdict::Matters);
    assert_eq!(item.to_type, ["-o MACs=umac-64-etm@openssh.com"]);
}

#[test]
fn several_sessions_matter_where_one_window_is_too_small() {
    assert_eq!(verdict(&ssh::sessions(&near())), Verdict::NotHere);
    let found = Findings {
        sessions: sessions([20.0, 40.0, 78.0, 117.0]),
        link_bytes_per_s: Some(125e6),
        ..far()
    };
    let item = ssh::sessions(&found);
    assert_eq!(item.verdict, Verdict::Matters);
    assert!(item.to_type[0].contains("max_conns=8"), "{item:?}");
    assert!(item.why.contains("holds 6 of them"), "{item:?}");
    assert!(item.found.contains("21.0 MB/s at most"), "{item:?}");
    let mut unsteady = sessions([60.0, 110.0, 112.0, 111.0]);
    for tried in &mut unsteady {
        tried.figures.slowest_bytes_per_s = 1e6;
    }
    let item = ssh::sessions(&Findings { sessions: unsteady, ..near() });
    assert_eq!(item.verdict, Verdict::Unknown);
    // On a short link it is the processors.
    let item =
        ssh::sessions(&Findings { sessions: sessions([60.0, 110.0, 112.0, 111.0]), ..near() });
    assert!(item.to_type[0].contains("max_conns=2") && item.why.contains("processors"), "{item:?}");
}

#[test]
fn a_shared_connection_matters_to_those_who_have_one() {
    assert_eq!(verdict(&ssh::shared_connection(&near())), Verdict::NotHere);
    let slow = Findings { shared: figures("shared", 30.0, 1.0), ..near() };
    assert_eq!(verdict(&ssh::shared_connection(&slow)), Verdict::NotHere);
    let item = ssh::shared_connection(&Findings { has_shared_connection: true, ..slow });
    assert_eq!(item.verdict, Verdict::Matters);
    let refused = Figures { failure: Some("no".into()), ..Figures::default() };
    let item = ssh::shared_connection(&Findings { shared: refused, ..near() });
    assert_eq!(item.verdict, Verdict::Unknown);
}

#[test]
fn compression_matters_on_slow_links_and_where_it_is_on_in_vain() {
    assert_eq!(verdict(&ssh::compression(&near())), Verdict::NotHere);
    let slow = Findings { plain: figures("plain", 5.0, 1.0), ..near() };
    assert!(ssh::compression(&slow).to_type[0].starts_with("sshoal -C"));
    let in_vain = Findings { has_compression: true, ..near() };
    assert!(ssh::compression(&in_vain).to_type[0].contains("Compression=no"));
    let none = Findings { compressed_text: None, ..near() };
    assert_eq!(verdict(&ssh::compression(&none)), Verdict::NotHere);
    // By the CPU of the server, one thread can do 50 MB/s.
    let text = Figures { server_cpu_s_per_gb: Some(20.0), ..figures("text", 30.0, 1.0) };
    let item = ssh::compression(&Findings { compressed_text: Some(text), ..near() });
    assert!(item.why.contains("below 50.0 MB/s"), "{item:?}");
}

#[test]
fn marks_matter_where_they_slow_down() {
    assert_eq!(verdict(&ssh::ipqos(&near())), Verdict::NotHere);
    let item = ssh::ipqos(&Findings { unmarked: figures("unmarked", 90.0, 1.0), ..near() });
    assert_eq!(item.to_type, ["sshoal -o IPQoS=none HOST:DIR MOUNTPOINT"]);
}

#[test]
fn buffers_matter_where_they_are_below_the_window_of_ssh_and_limit() {
    assert_eq!(verdict(&tcp::buffers(&far())), Verdict::NoLonger);
    let small = Facts { tcp_rmem: Some([4096, 87_380, 262_144]), ..usual() };
    // 128 KiB in flight: 1.3 MB/s at 100 ms, 655 MB/s at 0.2 ms.
    let item = tcp::buffers(&Findings { here: small.clone(), ..far() });
    assert_eq!(item.verdict, Verdict::Matters);
    assert!(
        item.to_type[0].contains("tcp_rmem") && item.to_type[0].ends_with("(here)"),
        "{item:?}"
    );
    let item = tcp::buffers(&Findings { here: small.clone(), ..near() });
    assert_eq!(item.verdict, Verdict::NotHere);
    let far_loopback = Findings { here: small, path: Path::Loopback, ..far() };
    assert_eq!(verdict(&tcp::buffers(&far_loopback)), Verdict::NotHere);
    let writes = Facts { tcp_wmem: Some([4096, 16_384, 65_536]), ..usual() };
    let item = tcp::buffers(&Findings { there: writes, ..far() });
    assert!(item.to_type[0].contains("tcp_wmem"), "{item:?}");
    assert!(item.to_type[0].ends_with("(at the server)"), "{item:?}");
    let unscaled = Facts { window_scaling: Some(false), ..usual() };
    assert_eq!(verdict(&tcp::buffers(&Findings { there: unscaled, ..far() })), Verdict::Matters);
    assert_eq!(verdict(&tcp::buffers(&Findings::default())), Verdict::Unknown);
}

#[test]
fn switches_that_are_off_are_named_with_their_end() {
    assert_eq!(verdict(&tcp::switches(&near())), Verdict::NoLonger);
    let off = Facts { sack: Some(false), ..usual() };
    let item = tcp::switches(&Findings { there: off.clone(), ..near() });
    assert_eq!(item.to_type, ["sysctl -w net.ipv4.tcp_sack=1        (at the server)"]);
    let item = tcp::switches(&Findings { there: off, path: Path::Loopback, ..near() });
    assert_eq!(item.verdict, Verdict::NotHere);
    assert_eq!(verdict(&tcp::switches(&Findings::default())), Verdict::Unknown);
}

#[test]
fn congestion_control_matters_on_long_links_with_losses() {
    let lossy = Findings { resent: Some(0.01), ..far() };
    let item = tcp::congestion_control(&lossy);
    assert_eq!(item.verdict, Verdict::Matters);
    assert_eq!(item.to_type.len(), 2);
    assert_eq!(verdict(&tcp::congestion_control(&far())), Verdict::NotHere);
    let short = Findings { resent: Some(0.01), ..near() };
    assert_eq!(verdict(&tcp::congestion_control(&short)), Verdict::NotHere);
    let bbr = || Facts { congestion_control: Some("bbr".into()), ..usual() };
    let item = tcp::congestion_control(&Findings { here: bbr(), ..lossy.clone() });
    assert!(item.to_type.len() == 1 && item.to_type[0].ends_with("(at the server)"), "{item:?}");
    let item = tcp::congestion_control(&Findings { here: bbr(), there: bbr(), ..lossy });
    assert_eq!(item.verdict, Verdict::NotHere);
}

#[test]
fn the_rest_of_tcp() {
    let item = tcp::slow_start(&far());
    assert_eq!((item.verdict, item.to_type.len()), (Verdict::Matters, 2));
    assert_eq!(verdict(&tcp::slow_start(&near())), Verdict::NotHere);
    let bbr = Facts { congestion_control: Some("bbr".into()), ..usual() };
    assert_eq!(tcp::slow_start(&Findings { there: bbr.clone(), ..far() }).to_type.len(), 1);
    let item = tcp::slow_start(&Findings { here: bbr.clone(), there: bbr, ..far() });
    assert_eq!(item.verdict, Verdict::NotHere);
    assert_eq!(verdict(&tcp::backlog(&near())), Verdict::NotHere);
    let dropped = Findings { backlog_dropped: Some(3), ..near() };
    assert_eq!(verdict(&tcp::backlog(&dropped)), Verdict::Matters);
    assert_eq!(verdict(&tcp::qdisc(&near())), Verdict::NoLonger);
    assert_eq!(verdict(&tcp::socket_limits(&near())), Verdict::NoLonger);
}

#[test]
fn large_frames_matter_where_the_wire_is_full() {
    assert_eq!(verdict(&tcp::mtu(&near())), Verdict::NotHere);
    let full = Findings { sessions: sessions([110.0, 112.0, 112.0, 112.0]), ..near() };
    let item = tcp::mtu(&full);
    assert_eq!(item.to_type, ["ip link set dev eth0 mtu 9000"]);
    assert!(item.why.contains("5.16 %"), "{item:?}");
    assert_eq!(verdict(&tcp::mtu(&Findings { path: Path::Simulated, ..full })), Verdict::NotHere);
    assert_eq!(verdict(&tcp::mtu(&Findings::default())), Verdict::Unknown);
}

#[test]
fn sizes_have_the_unit_that_suits_them() {
    assert_eq!(
        (size(12.0), size(2048.0), size(2097152.0)),
        ("12.0 bytes".to_owned(), "2.00 KiB".to_owned(), "2.00 MiB".to_owned())
    );
    assert_eq!(both(Some(1), Some(1)), "1");
    assert_eq!(both(Some("a"), None), "a here, unknown at the server");
}
