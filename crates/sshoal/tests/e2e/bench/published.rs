//! Each published comparison, repeated in one run at the smallest scale. Where a comparison has many
//! variants of a subject, those are left out that do nothing that another one does not do.

use std::collections::BTreeMap;

use bench::results::{Outcome, Results};

use super::scene::{Scene, assert_all_measured, read};

/// A comparison that was repeated.
struct Repeated {
    results: Results,
    /// The report in Markdown.
    report: String,
    /// What was printed.
    printed: String,
}

impl Repeated {
    /// Repeats it. `optional` are beginnings of the names of subjects that may be missing here.
    #[track_caller]
    fn new(name: &str, scale: &str, optional: &[&str], words: &[&str]) -> Repeated {
        let scene = Scene::new();
        let out = scene.path("out");
        let all = ["--repeat", name, "--scale", scale, "--quick", "--rounds", "1", "--no-control"];
        let all = [&all[..], words, &["--out", out.to_str().unwrap()]].concat();
        let ended = scene.run(&all);
        assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
        let results = bench::run::read(&out).unwrap();
        assert_eq!((results.settings.repeats.as_deref(), results.settings.rounds), (Some(name), 1));
        for left_out in &results.left_out {
            eprintln!("{} left out: {}", left_out.name, left_out.why);
            let may_be = optional.iter().any(|begin| left_out.name.starts_with(begin));
            assert!(may_be, "{left_out:?}");
        }
        let report = read(out.join("report.md"));
        assert!(report.contains(&format!("As published: {name}")), "{report}");
        Repeated { results, report, printed: ended.stdout }
    }

    /// All measured subjects in order, those that may be missing excepted: the rows. Each of this
    /// program's has a value for all that it did.
    #[track_caller]
    fn assert_subjects(&self, wanted: &[&str], optional: &[&str]) {
        let names = self.results.subjects.iter().map(|subject| subject.name.as_str());
        let is_optional = |name: &&str| optional.iter().any(|begin| name.starts_with(begin));
        let names: Vec<&str> = names.filter(|name| !is_optional(name)).collect();
        assert_eq!(names, wanted);
        for name in names.iter().filter(|name| name.starts_with("sshoal")) {
            assert_all_measured(&self.results, name);
        }
    }

    /// A table of the published ones: its columns, and its rows by their names.
    #[track_caller]
    fn table(&self, caption: &str) -> (Vec<String>, BTreeMap<String, Vec<String>>) {
        let published =
            self.report.split("\n## ").find(|it| it.starts_with("As published")).unwrap();
        let begin = format!("| {caption} |");
        let mut lines = published.lines().skip_while(|line| !line.starts_with(&begin));
        let cells = |line: &str| -> Vec<String> {
            let inner = line.trim_start_matches("| ").trim_end_matches(" |").replace('\\', "");
            inner.split(" | ").map(str::to_owned).collect()
        };
        let header = cells(lines.next().unwrap_or_else(|| panic!("{caption}: {published}")));
        let rows = lines.skip(1).take_while(|line| !line.is_empty()).map(|line| {
            let mut row = cells(line);
            let name = row.remove(0);
            (name, row)
        });
        (header[1..].to_vec(), rows.collect())
    }

    /// A published table has these columns, and these subjects have a figure in each.
    #[track_caller]
    fn assert_table(&self, caption: &str, columns: &[&str], subjects: &[&str]) {
        let (header, rows) = self.table(caption);
        assert_eq!(header, columns, "{caption}");
        for subject in subjects {
            let row = rows.get(*subject).unwrap_or_else(|| panic!("{subject}: {rows:?}"));
            let is_figure = |cell: &String| {
                cell.trim_start_matches('*').starts_with(|first: char| first.is_ascii_digit())
            };
            assert!(row.iter().all(is_figure), "{caption}, {subject}: {row:?}");
        }
    }
}

/// Peers that `scripts/setup.sh --bench` installs, or that are not packaged.
const OPTIONAL: &[&str] = &["nfs-user", "sshfsm"];

/// The columns of iozone.
const IOZONE: [&str; 8] = [
    "write, MB/s",
    "rewrite, MB/s",
    "read, cold, MB/s",
    "reread, hot, MB/s",
    "random-read, direct, /s",
    "random-read-all, cold, /s",
    "random-write, direct, /s",
    "random-write-all, /s",
];

#[test]
fn sshfs_iozone() {
    let peers = "nfs-user,sshfs,sshfs:opt4,sshoal:opt2,sshoal:opt4";
    let repeated = Repeated::new("sshfs-iozone", "0.0001", OPTIONAL, &["--peers", peers]);
    let sshfs = ["sshfs", "sshfs:opt4"];
    let ours = ["sshoal", "sshoal:opt2", "sshoal:opt4"];
    repeated.assert_subjects(&[&ours[..1], &sshfs, &ours[1..]].concat(), OPTIONAL);
    repeated.assert_table("file systems and tests", &IOZONE, &ours);
    // The lengths of both files differ, as published.
    let quantities = &repeated.results.settings.quantities;
    assert!(quantities["iozone.sequential_bytes"] > quantities["iozone.random_bytes"]);
    repeated.assert_table("data that compress", &IOZONE, &["sshoal", "sshoal:opt4"]);
    let (_, rows) = repeated.table("file systems and tests");
    assert!(rows["sshfs"][0].contains("[43.2 1.00×]"), "{rows:?}");
    assert!(repeated.report.contains("## CPU over time"), "{}", repeated.report);
}

#[test]
fn mux_iozone() {
    let peers = "nfs-user,sshfs,sshfsm,sshoal-union,sshoal-places,sshoal-pool";
    let repeated = Repeated::new("mux-iozone", "0.00001", OPTIONAL, &["--peers", peers]);
    let of_two = ["sshoal-union", "sshoal-places", "sshoal-pool"];
    repeated.assert_subjects(&[&["sshoal", "sshfs"], &of_two[..]].concat(), OPTIONAL);
    repeated.assert_table("file systems and tests", &IOZONE, &[&["sshoal"], &of_two[..]].concat());
    let losses = ["reset, direct, s", "silence, direct, s"];
    repeated.assert_table("one of two hosts goes away", &losses, &of_two);
    // A mount of one host has no part in that.
    let (_, rows) = repeated.table("one of two hosts goes away");
    assert_eq!(rows.len(), of_two.len(), "{rows:?}");
    // A mount of this program counts its requests.
    for sample in repeated.results.samples.iter().filter(|it| it.measure.starts_with("failover.")) {
        let Outcome::Measured(measured) = &sample.outcome else { panic!("{sample:?}") };
        let requests = measured.requests.as_ref().expect("they were counted");
        assert!(requests.kernel["read"] > 0 && requests.server["read"] > 0, "{requests:?}");
    }
}

#[test]
fn large_build() {
    let repeated = Repeated::new("large-build", "0.005", &[], &[]);
    let cached = ["sshoal:cache=disk", "sshoal:cache=disk,consistency=immutable"];
    let modes =
        ["sshoal:consistency=immutable", "sshoal:served=helper,consistency=watch", "sshoal-direct"];
    let peers = ["local", "sshfs", "sshfs:opt1"];
    repeated.assert_subjects(&[&["sshoal"], &peers[..], &cached, &modes].concat(), &[]);
    let columns = [
        "smaller.cold, s",
        "smaller.again, hot, s",
        "smaller.remounted, cold, s",
        "larger.cold, s",
        "larger.again, hot, s",
        "larger.remounted, cold, s",
    ];
    let caption = "builds and file systems";
    repeated.assert_table(caption, &columns, &cached);
    let (_, rows) = repeated.table(caption);
    for name in ["sshoal", "local"].iter().chain(&modes) {
        let row = &rows[*name];
        for (number, cell) in row.iter().enumerate() {
            assert_eq!(cell.starts_with('–'), columns[number].contains("remounted"), "{row:?}");
        }
    }
}

#[test]
fn nas() {
    let peers = "nfs-user,sshfs,sshfs:ctr,sshoal:Ciphers=aes128-ctr";
    let repeated = Repeated::new("nas", "0.00001", OPTIONAL, &["--peers", peers]);
    let sshfs = ["sshfs", "sshfs:ctr"];
    let ours = ["sshoal", "sshoal:Ciphers=aes128-ctr"];
    repeated.assert_subjects(&[&ours[..1], &sshfs, &ours[1..]].concat(), OPTIONAL);
    let jobs = ["write-all, direct", "read-all, direct", "randwrite-all, direct"];
    let jobs = [&jobs[..], &["randread-all, direct"]].concat();
    let copies = ["media.copy_out, cold", "media.copy_in"];
    let caption = "file systems and tests";
    let columns = [
        "write-all, direct, MB/s",
        "read-all, direct, MB/s",
        "randwrite-all, direct, /s",
        "randread-all, direct, /s",
        "media.copy_out, cold, s",
        "media.copy_in, s",
    ];
    repeated.assert_table(caption, &columns, &ours);
    let details = |what: &str| format!("{caption}: {what}");
    repeated.assert_table(&details("MB/s"), &copies, &ours);
    let both = [&jobs[..], &copies].concat();
    repeated.assert_table(&details("percent of one CPU, client / server"), &both, &ours);
}

#[test]
fn copy_ciphers() {
    let words = ["--peers", "scp:Compression=no,sshoal-copy", "--ciphers", "aes128-ctr"];
    let words = [&words[..], &["--trace-cpu"]].concat();
    let repeated = Repeated::new("copy-ciphers", "0.001", &[], &words);
    let results = &repeated.results;
    assert_eq!((&*results.link.name, &*results.settings.reference), ("lan", "scp:Compression=no"));
    let subjects = ["scp:Compression=no", "sshoal-copy"];
    repeated.assert_subjects(&subjects, &[]);
    assert_all_measured(results, subjects[0]);
    for sample in &results.samples {
        let Outcome::Measured(measured) = &sample.outcome else { panic!("{sample:?}") };
        let wire = measured.wire.expect("the simulated link counts bytes");
        let data = match sample.measure.starts_with("files.in.") {
            true => wire.to_server_bytes,
            false => wire.from_server_bytes,
        };
        // Not compressed, and once.
        assert!(data > measured.bytes && data < measured.bytes * 2, "{sample:?}");
        let trace = measured.cpu_trace.as_ref().expect("it was asked for");
        assert!(!trace.at_s.is_empty(), "{sample:?}");
    }
    let means = "copied to the server: means of the runs";
    assert!(repeated.printed.contains(means), "{}", repeated.printed);
    let header = ["real s", "user s", "system s", "published"];
    let runs = ["scp:Compression=no, aes128-ctr, run 1", "sshoal-copy, aes128-ctr, run 1"];
    let (columns, rows) = repeated.table("copied to the server: each run");
    assert_eq!(columns, header);
    assert!(runs.iter().all(|run| rows.contains_key(*run)), "{rows:?}");
}
