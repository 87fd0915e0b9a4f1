//! The measurements, in their order: nothing here decides anything.

use std::ffi::OsString;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::approach::{self, Login, Met, Settings};
use super::facts::Facts;
use super::findings::{self, Findings, Path, Sessions};
use super::flow::{Figures, Ground, LIMIT, Timing, Trial};
use super::kexinit::Offer;
use crate::corpus;
use crate::executor::{Background, Executor};
use crate::failure::Failure;
use crate::place::script;
use crate::report::number::counted;
use crate::server::Server;

/// Numbers of connections that are tried. More logins at once than ten a server may refuse.
const CONNECTIONS: [u32; 4] = [1, 2, 4, 8];

/// Sessions over one connection; `MaxSessions` is ten, as it comes.
const SHARED_SESSIONS: u32 = 4;

/// Samples of each trial. On a long link each takes several seconds, and is steady.
const ROUNDS: usize = 5;
const ROUNDS_OF_LONG_LINKS: usize = 3;
const LONG_RTT_US: f64 = 20_000.0;

/// Text for the compression: enough files that zlib's 32 KiB window is passed many times.
const TEXT_FILES: u32 = 80;
const NOISE_BYTES: u64 = 1 << 20;
const SEED: u64 = 1;

/// Names in the server's directory.
const TEXT: &str = "advise-text";
const NOISE: &str = "advise-noise";

/// Prints a file again and again, until nobody listens.
const REPEAT: &str = r#"while cat -- "$1"; do :; done"#;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Samples of each trial; `None` for as many as suit the link.
    pub(super) rounds: Option<usize>,
    /// Length of a sample on a link of no length.
    pub(super) window: Duration,
}

impl Effort {
    /// For advice that is to be believed.
    pub const FULL: Effort = Effort { rounds: None, window: Duration::from_millis(500) };

    /// For a first look: great differences show.
    pub const QUICK: Effort = Effort { rounds: Some(3), window: Duration::from_millis(100) };
}

/// What does not depend on what comes of it.
struct Run<'a> {
    server: &'a Server,
    executor: &'a Executor,
    tell: &'a mut dyn FnMut(&str),
    effort: Effort,
}

/// Measures all that the advice rests on.
pub(super) fn measure(
    server: &Server,
    executor: &Executor,
    tell: &mut dyn FnMut(&str),
    effort: Effort,
) -> Result<Findings, Failure> {
    Run { server, executor, tell, effort }.measure()
}

/// Both ends, before anything is measured.
struct Ends {
    settings: Settings,
    /// Where there is a direct connection.
    met: Option<Met>,
    login: Login,
    /// That both support, in the order of `ssh -Q`.
    ciphers: Vec<String>,
}

impl Ends {
    fn offer(&self) -> &Offer {
        self.met.as_ref().map_or(&self.login.offer, |met| &met.offer)
    }

    fn address(&self) -> Option<String> {
        self.met.as_ref().map(|met| met.address.to_string())
    }
}

impl Run<'_> {
    fn measure(mut self) -> Result<Findings, Failure> {
        (self.tell)("looking at both ends");
        let ends = self.look()?;
        let mut found = self.before(&ends)?;
        let usual = if found.rtt_us < LONG_RTT_US { ROUNDS } else { ROUNDS_OF_LONG_LINKS };
        let rounds = self.effort.rounds.unwrap_or(usual);
        let rtt = Duration::from_secs_f64(found.rtt_us / 1e6);
        let timing = Timing::of(rtt, self.effort.window);
        let ground = Ground::new(self.server, self.executor, timing, rounds)?;
        self.ciphers(&ground, &ends.ciphers, &mut found)?;
        let Some(best) = found.best_cipher().map(|best| best.name.clone()) else {
            let why = found.ciphers.iter().find_map(|figures| figures.failure.clone());
            let why = why.unwrap_or_else(|| "both ends have none in common".to_owned());
            return Err(Failure::failed(format!("no cipher works: {why}")));
        };
        if needs_mac(&best) {
            let known = approach::known("mac", self.executor)?;
            let macs = findings::common(&known, &ends.offer().macs);
            self.macs(&ground, &best, &macs, &mut found)?;
        }
        self.sessions(&ground, &best, &mut found)?;
        let compresses = ends.offer().compression.iter().any(|name| name.starts_with("zlib"));
        self.settings(&ground, &best, compresses, &mut found)?;
        self.afterwards(&ends, &mut found)?;
        Ok(found)
    }

    fn look(&self) -> Result<Ends, Failure> {
        let settings = Settings::ask(self.server, self.executor)?;
        let met = approach::meet(&settings).ok();
        let login = Login::watch(self.server, self.executor)?;
        let mut ends = Ends { settings, met, login, ciphers: Vec::new() };
        let known = approach::known("cipher", self.executor)?;
        ends.ciphers = findings::common(&known, &ends.offer().ciphers);
        Ok(ends)
    }

    /// All that is read and not measured.
    fn before(&self, ends: &Ends) -> Result<Findings, Failure> {
        let (settings, login) = (&ends.settings, &ends.login);
        let link = self.server.link_report();
        let is_private = self.server.is_private();
        let is_plain = link.asked_rtt_us.is_none() && link.asked_bytes_per_s.is_none();
        let here = Facts::here(ends.address().as_deref(), self.executor)?;
        let there = Facts::there(self.server, self.executor)?;
        let chosen = settings.ciphers != self.plain_settings()?.ciphers;
        Ok(Findings {
            host: link.name.clone(),
            server: ends.offer().version.clone(),
            path: match (is_private, is_plain) {
                (false, _) => Path::Network,
                (true, true) => Path::Loopback,
                (true, false) => Path::Simulated,
            },
            rtt_us: match (&ends.met, link.measured_rtt_us) {
                // A connection to the forwarder says nothing of what is behind it.
                (_, Some(rtt_us)) if is_private => rtt_us,
                (Some(met), through_ssh) => met.rtt_us.min(through_ssh.unwrap_or(f64::MAX)),
                (None, through_ssh) => through_ssh.unwrap_or(0.0),
            },
            link_bytes_per_s: link.measured_bytes_per_s.filter(|_| is_private),
            sshoal_cipher: findings::sshoal_cipher(&login.cipher, chosen, here.aes, &ends.ciphers),
            ssh_cipher: login.cipher.clone(),
            ssh_mac: findings::common(&settings.macs, &ends.offer().macs)
                .first()
                .cloned()
                .unwrap_or_default(),
            has_compression: settings.compression,
            ipqos: settings.ipqos.clone(),
            has_shared_connection: settings.shared,
            here,
            there,
            ..Findings::default()
        })
    }

    /// What ssh would do without any configuration.
    fn plain_settings(&self) -> Result<Settings, Failure> {
        let mut command = Command::new("ssh");
        command.args(["-G", "-F", "none", "localhost"]);
        Settings::said(command, self.executor)
    }

    fn ciphers(
        &mut self,
        ground: &Ground<'_>,
        names: &[String],
        found: &mut Findings,
    ) -> Result<(), Failure> {
        (self.tell)(&format!("measuring {} ciphers", names.len()));
        let server = self.server;
        let trials: Vec<Trial<'_>> = names
            .iter()
            .map(|name| zeros(name.clone(), 1, move || server.ssh(Some(name))))
            .collect();
        found.ciphers = ground.compare(&trials)?;
        found.ciphers.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
        Ok(())
    }

    fn macs(
        &mut self,
        ground: &Ground<'_>,
        cipher: &str,
        names: &[String],
        found: &mut Findings,
    ) -> Result<(), Failure> {
        (self.tell)(&format!("measuring {} MACs", names.len()));
        let server = self.server;
        let trials: Vec<Trial<'_>> = names
            .iter()
            .map(|name| {
                let option = format!("MACs={name}");
                zeros(name.clone(), 1, move || {
                    let mut ssh = server.ssh(Some(cipher));
                    ssh.args(["-o", &option]);
                    ssh
                })
            })
            .collect();
        found.macs = ground.compare(&trials)?;
        found.macs.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
        Ok(())
    }

    /// Several connections, and several sessions over one.
    fn sessions(
        &mut self,
        ground: &Ground<'_>,
        cipher: &str,
        found: &mut Findings,
    ) -> Result<(), Failure> {
        (self.tell)("measuring several sessions at once");
        let master = match Master::start(self.server, cipher, self.executor) {
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            master => master,
        };
        let ssh = || self.server.ssh(Some(cipher));
        let name = |number: u32| counted(number.into(), "connection");
        let mut trials: Vec<Trial<'_>> =
            CONNECTIONS.map(|number| zeros(name(number), number, ssh)).into();
        if let Ok(master) = &master {
            let over_one = || {
                let mut ssh = self.server.ssh(None);
                ssh.arg("-S").arg(&master.socket);
                // A session that is refused would be given a connection of its own, silently.
                ssh.args(["-o", "ProxyCommand=false"]);
                ssh
            };
            trials.push(zeros("one connection".to_owned(), SHARED_SESSIONS, over_one));
        }
        let mut figures = ground.compare(&trials)?.into_iter();
        let of = |connections| {
            Some(Sessions { connections, figures: figures.next().unwrap_or_default() })
        };
        found.sessions = CONNECTIONS.into_iter().map_while(of).collect();
        let shared = figures.next().unwrap_or_else(|| Figures {
            failure: master.as_ref().err().map(ToString::to_string),
            ..Figures::default()
        });
        // The master's CPU is not that of the programs that were started.
        found.shared = Figures { client_cpu_s_per_gb: None, server_cpu_s_per_gb: None, ..shared };
        Ok(())
    }

    /// Compression and marks, against the same without them.
    fn settings(
        &mut self,
        ground: &Ground<'_>,
        cipher: &str,
        compresses: bool,
        found: &mut Findings,
    ) -> Result<(), Failure> {
        (self.tell)("measuring compression and IPQoS");
        let server = self.server;
        let place = server.place();
        let dir = sandbox::private_dir("sshoal-advise-")?;
        if compresses {
            place.put(&text(dir.path())?, FilePath::new(TEXT))?;
            let noise = corpus::file(dir.path(), NOISE, NOISE_BYTES, SEED)?;
            place.put(&noise, FilePath::new(NOISE))?;
        }
        let with = |option: &'static str| {
            move || {
                let mut ssh = server.ssh(Some(cipher));
                ssh.args(["-o", option]);
                ssh
            }
        };
        let mut trials = vec![
            zeros("plain".to_owned(), 1, with("Compression=no")),
            zeros("IPQoS=none".to_owned(), 1, with("IPQoS=none")),
        ];
        if compresses {
            trials.push(self.repeated(cipher, TEXT));
            trials.push(self.repeated(cipher, NOISE));
        }
        let figures = ground.compare(&trials);
        if compresses {
            for name in [TEXT, NOISE] {
                // The whole directory is removed soon.
                let _ = place.remove(FilePath::new(name));
            }
        }
        let mut figures = figures?.into_iter();
        found.plain = figures.next().unwrap_or_default();
        found.unmarked = figures.next().unwrap_or_default();
        found.compressed_text = figures.next();
        found.compressed_noise = figures.next();
        Ok(())
    }

    /// What the kernels have counted meanwhile.
    fn afterwards(&self, ends: &Ends, found: &mut Findings) -> Result<(), Failure> {
        let here = Facts::here(ends.address().as_deref(), self.executor)?;
        let there = Facts::there(self.server, self.executor)?;
        let both = [(&here, &found.here), (&there, &found.there)];
        found.resent = both
            .iter()
            .filter_map(|(after, before)| after.resent_since(before))
            .max_by(f64::total_cmp);
        let dropped = |(after, before): &(&Facts, &Facts)| {
            Some(after.backlog_dropped?.saturating_sub(before.backlog_dropped?))
        };
        found.backlog_dropped = both.iter().filter_map(dropped).max();
        Ok(())
    }

    /// A file of the server's directory without end, compressed.
    fn repeated(&self, cipher: &str, file: &str) -> Trial<'static> {
        let mut words = vec![OsString::from("ssh")];
        words.extend(self.server.ssh_options(Some(cipher)));
        words.extend(["-o".into(), "Compression=yes".into(), self.server.destination().into()]);
        let path = self.server.place().root().join(file);
        let command = move || script::command(Some(&words), REPEAT, &[path.as_os_str()]);
        Trial { name: file.to_owned(), commands: Box::new(move || vec![command()]), windows: 3 }
    }
}

/// Zeros without end, from so many ssh. No cipher minds what it encrypts.
fn zeros<'a>(name: String, streams: u32, ssh: impl Fn() -> Command + 'a) -> Trial<'a> {
    let one = move || {
        let mut command = ssh();
        // The user's own setting stands in the configuration, and options win.
        command.args(["-o", "Compression=no", "cat /dev/zero"]);
        command
    };
    Trial { name, commands: Box::new(move || (0..streams).map(|_| one()).collect()), windows: 1 }
}

/// One connection for many sessions. Dropping it ends it.
struct Master {
    socket: PathBuf,
    _ssh: Background,
    _dir: tempfile::TempDir,
}

impl Master {
    fn start(server: &Server, cipher: &str, executor: &Executor) -> Result<Master, Failure> {
        // A socket's path may have 108 bytes, and ssh appends some.
        let dir = sandbox::private_dir_in("mux-", FilePath::new("/tmp"))?;
        let socket = dir.path().join("s");
        let mut ssh = server.ssh(Some(cipher));
        ssh.args(["-v", "-N", "-M", "-S"]).arg(&socket);
        let ssh = executor.spawn(ssh)?;
        // It listens on the socket before it says so.
        ssh.wait_for("Entering interactive session", LIMIT)?;
        Ok(Master { socket, _ssh: ssh, _dir: dir })
    }
}

/// The files of a made tree in a row: it compresses as sources do.
fn text(dir: &FilePath) -> Result<PathBuf, Failure> {
    let tree = dir.join("tree");
    corpus::tree::make(&tree, TEXT_FILES, SEED)?;
    let mut whole = Vec::new();
    let mut dirs = vec![tree];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => whole.extend(fs::read(entry.path())?),
                _ => (),
            }
        }
    }
    let path = dir.join(TEXT);
    fs::write(&path, whole)?;
    Ok(path)
}

/// AES-GCM and ChaCha20-Poly1305 authenticate by themselves.
fn needs_mac(cipher: &str) -> bool {
    !cipher.contains("gcm") && !cipher.contains("poly1305")
}
