//! The tables of published comparisons, in all three forms.

use bench::measure::Measure;
use bench::published::PUBLISHED;
use bench::report::{html, markdown, text};
use bench::results::{CpuTrace, Outcome, ProcessTrace, Results, Sample, Wire};

use super::FIXTURE;

/// The made-up run as one that repeats this comparison. Its rsync is scp with its own cipher; each
/// sample has bytes on the link and CPU over time.
fn repeating(name: &str) -> Results {
    let text = FIXTURE
        .replace("\"rsync\"", "\"scp:Compression=no\"")
        .replace("files.out.aes128-gcm", "files.in.default");
    let mut results: Results = serde_json::from_str(&text).unwrap();
    results.settings.repeats = Some(name.to_owned());
    for sample in &mut results.samples {
        if let Outcome::Measured(measured) = &mut sample.outcome {
            let bytes = measured.bytes;
            measured.wire = Some(Wire { to_server_bytes: 10_000_000, from_server_bytes: bytes });
            let process = |side: &str, process: &str, cpus: [f64; 3]| ProcessTrace {
                side: side.to_owned(),
                process: process.to_owned(),
                cpus: cpus.to_vec(),
            };
            let processes = vec![
                process("client", "ssh", [0.75, 0.5, 0.25]),
                process("server", "sftp-server", [0.1, 0.2, 0.15]),
            ];
            measured.cpu_trace = Some(CpuTrace { at_s: vec![0.25, 0.5, 0.75], processes });
        }
    }
    results
}

/// The lines from the one that contains `begin` to the next empty one.
fn paragraph<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| !line.contains(begin));
    let found: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    assert!(!found.is_empty(), "{begin} in\n{text}");
    found
}

fn line<'a>(lines: &[&'a str], begin: &str) -> &'a str {
    lines
        .iter()
        .find(|line| line.starts_with(begin))
        .unwrap_or_else(|| panic!("{begin}: {lines:#?}"))
}

#[test]
fn file_systems_are_rows_of_one_table_with_published_figures_in_brackets() {
    let results = repeating("sshfs-iozone");
    let markdown = markdown(&results);
    let table = paragraph(&markdown, "| file systems and tests | write, MB/s |");
    assert!(table[0].ends_with("| random-write, direct, /s |"), "{}", table[0]);
    let sshfs = line(&table, "| sshfs |");
    assert!(sshfs.contains("261 (259–261) \\[43.2 1.00×\\]"), "{sshfs}");
    assert!(sshfs.contains("\\[about 49.5 1.00×\\]"), "{sshfs}");
    assert!(sshfs.contains("\\[–\\]"), "no figure is known: {sshfs}");
    assert!(!line(&table, "| rclone |").contains('['), "the source does not have it");
    let text = text(&results);
    let table = paragraph(&text, "file systems and tests");
    assert!(line(&table, "sshfs  ").contains("261 [43.2 1.00×]"), "{table:#?}");
    assert!(text.contains("https://www.admin-magazine.com/HPC/Articles/Sharing-Data-with-SSHFS"));
    let page = html(&results);
    assert!(page.contains("<span class=\"aside\">[43.2 1.00×]</span>"));
}

#[test]
fn runs_have_real_user_and_system_time_and_their_means_are_sorted() {
    let results = repeating("copy-ciphers");
    let text = text(&results);
    let runs = paragraph(&text, "copied to the server: each run");
    let scp = line(&runs, "scp:Compression=no, default, run 1");
    assert!(scp.ends_with("1.09   0.837      1.02  52.2 / 12.7 / 6.50"), "{scp}");
    assert!(line(&runs, "scp:Compression=no, default, run 4").ends_with("–"), "{runs:#?}");
    assert!(!runs.iter().any(|line| line.contains("control")), "{runs:#?}");
    let means = paragraph(&text, "copied to the server: means");
    let at = |name: &str| means.iter().position(|line| line.starts_with(name)).unwrap();
    assert!(at("local") < at("sshoal") && at("sshoal") < at("sshfs"), "{means:#?}");
    let scp = line(&means, "scp:Compression=no, default");
    assert!(scp.contains("1.00×") && scp.contains("49.8"), "{scp}");
    let markdown = markdown(&results);
    assert!(markdown.contains(
        "| scp:Compression=no, default, run 2 | 1.12 | 0.844 | 1.03 | 47.9 / 12.6 / 6.81 |"
    ));
    assert!(html(&results).contains("<th scope=\"row\">scp:Compression=no, default, run 2</th>"));
}

#[test]
fn file_systems_are_rows_beside_builds() {
    // The local disk is never cold.
    let mut results = repeating("large-build");
    let cold = "build.generated.cold";
    let as_cached = format!("{cold}-as-cached");
    let measure = results.measures.iter().find(|measure| measure.id == cold).unwrap();
    results.measures.push(Measure { id: as_cached.clone(), ..measure.clone() });
    let of_disk = |it: &&mut Sample| it.subject == "local" && it.measure == cold;
    results.samples.iter_mut().filter(of_disk).for_each(|it| it.measure = as_cached.clone());
    let markdown = markdown(&results);
    let builds = paragraph(&markdown, "| builds and file systems | ");
    assert!(!builds[0].contains("as-cached"), "{builds:#?}");
    assert!(line(&builds, "| sshoal |").contains("5.24"), "{builds:#?}");
    assert!(line(&builds, "| local |").contains("as cached"), "{builds:#?}");
}

#[test]
fn jobs_and_copies_are_columns_of_one_table_with_their_rate_and_cpu() {
    let results = repeating("nas");
    let whole = markdown(&results);
    let table = paragraph(&whole, "| file systems and tests |");
    assert!(table[0].contains("| randread, direct, /s |"), "{table:#?}");
    assert!(table[0].contains("| copy\\_out, cold, s |"), "{table:#?}");
    assert!(line(&table, "| sshfs |").contains("\\[–\\]"), "{table:#?}");
    // The cell of a subject below a heading.
    let cell = |what: &str, subject: &str, heading: &str| {
        let caption = format!("| file systems and tests: {what} |");
        let table = paragraph(&whole, &caption);
        let at = table[0].split('|').position(|name| name.trim() == heading).expect(heading);
        let row = line(&table, &format!("| {subject} |"));
        row.split('|').nth(at).unwrap().trim().to_owned()
    };
    assert_eq!(cell("MB/s", "sshoal", "copy\\_out, cold"), "18.3");
    let cpu = "percent of one CPU, client / server";
    assert_eq!(cell(cpu, "sshoal", "copy\\_out, cold"), "6.83 / 6.07");
}

#[test]
fn the_latency_of_fio_is_in_all_forms() {
    let results = repeating("nas");
    for form in [text(&results), markdown(&results)] {
        let table = paragraph(&form, "single operations: percentiles in µs");
        assert!(table[0].contains("mean") || table[1].contains("mean"), "{table:#?}");
        let fio = table.iter().find(|it| it.contains("sshfs") && it.contains("4370"));
        assert!(fio.is_some_and(|it| it.contains("rand")), "{table:#?}");
    }
    assert!(html(&results).contains("single operations: percentiles"));
}

#[test]
fn steps_have_user_and_system_time_and_bytes_on_the_link() {
    let text = text(&repeating("nas"));
    let steps = paragraph(&text, "each step: user+system time");
    let read = line(&steps, "fio.read, sshoal");
    assert!(read.contains("0.27+0.33") && read.contains("10.0/"), "{read}");
    let without = paragraph(&text_of_fixture(), "each step").join("\n");
    assert!(!without.contains("out/in"), "nothing was counted: {without}");
}

fn text_of_fixture() -> String {
    text(&super::fixture())
}

#[test]
fn cpu_over_time_has_a_chart_for_each_subject_and_its_figures_in_all_forms() {
    let results = repeating("sshfs-iozone");
    let page = html(&results);
    assert_eq!(page.matches("over time</title>").count(), results.subjects.len());
    assert_eq!(page.matches("<polyline ").count(), 2 * results.subjects.len());
    for forms in [text(&results), markdown(&results)] {
        let table = paragraph(&forms, "CPU over time, percent of one CPU").join("\n");
        assert!(table.contains("sshfs, client ssh") && table.contains("75.0"), "{table}");
    }
    assert!(!html(&super::fixture()).contains("CPU over time"), "nothing was sampled");
}

#[test]
fn each_form_of_each_comparison_is_whole() {
    for published in &PUBLISHED {
        let results = repeating(published.name);
        for line in text(&results).lines() {
            assert!(line.chars().count() <= 100, "{}: {line}", published.name);
        }
        let page = html(&results);
        for outside in ["src=", "href=\"http", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(outside), "{}: {outside}", published.name);
        }
        let charts = page.matches("<rect class=\"bar\"").count();
        let own = html(&super::fixture()).matches("<rect class=\"bar\"").count();
        assert!(charts >= own, "{}: each measure still has its chart", published.name);
        let heading = format!("As published: {}", published.name);
        assert!(page.contains(&heading) && markdown(&results).contains(&heading));
    }
    let mut unknown = repeating("of another version");
    assert!(!html(&unknown).contains("As published"));
    unknown.settings.repeats = None;
    assert!(!html(&unknown).contains("As published"));
}

#[test]
fn the_added_fields_are_documented() {
    let documentation = include_str!("../../../../docs/benchmarking.md");
    let value = serde_json::to_value(repeating("nas")).unwrap();
    let sample = value["samples"].as_array().unwrap().iter().find(|it| it["wire"].is_object());
    let sample = sample.expect("one with bytes on the link");
    let mut fields = vec!["wire".to_owned(), "cpu_trace".to_owned(), "repeats".to_owned()];
    for of in [&sample["wire"], &sample["cpu_trace"], &sample["cpu_trace"]["processes"][0]] {
        fields.extend(of.as_object().unwrap().keys().cloned());
    }
    fields.retain(|field| !documentation.contains(&format!("`{field}`")));
    assert_eq!(fields, [""; 0], "add them to docs/benchmarking.md");
}
