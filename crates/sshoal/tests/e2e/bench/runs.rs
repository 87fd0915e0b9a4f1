//! Runs that go well.

use std::fs::File;
use std::process::Stdio;

use bench::results::Outcome;
use bench::run::Files;

use crate::process::Process;
use crate::world::World;

use super::scene::{LIMIT, Scene, assert_all_measured, read};

#[test]
fn a_run_measures_everybody_and_writes_its_report() {
    let scene = Scene::new();
    let out = scene.path("out");
    let words = ["--quick", "--rounds", "1", "--size", "1M", "--work", "latency,iozone,files"];
    let peers = ["--peers", "sshfs,floor,local", "--out", out.to_str().unwrap()];
    let ended = scene.run(&[&words[..], &peers[..]].concat());
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    let results = bench::run::read(&out).unwrap();
    assert_eq!(results.partial, None);
    let names: Vec<&str> = results.subjects.iter().map(|subject| subject.name.as_str()).collect();
    assert_eq!(names, ["sshoal", "sshfs", "ssh-cat", "sftp-raw", "local", "sshfs (control)"]);
    for name in names {
        assert_all_measured(&results, name);
    }
    let is_verified = |measure: &str| {
        let samples = results.samples.iter().filter(move |sample| sample.measure == measure);
        samples.into_iter().all(|sample| match &sample.outcome {
            Outcome::Measured(measured) => measured.verified,
            Outcome::Failed { .. } => false,
        })
    };
    assert!(is_verified("iozone.read") && is_verified("iozone.write"));
    assert_eq!(results.settings.reference, "sshfs");
    assert_eq!(results.settings.works, ["iozone", "latency", "files"]);
    assert!(results.settings.command.iter().any(|word| word == "latency,iozone,files"));
    assert_eq!(results.link.name, "loopback");
    assert!(results.link.measured_rtt_us.is_some());
    assert!(results.environment.cpus > 0);
    assert!(ended.stderr.contains("round 1 of 1: latency: sshfs (control)"), "{}", ended.stderr);
    assert!(ended.stdout.contains("report.html"), "{}", ended.stdout);
    let html = read(out.join("report.html"));
    assert!(html.contains("<svg") && html.contains("sshfs (control)"), "no charts");
    assert!(read(out.join("report.md")).contains("sshfs (control)"));
}

#[test]
fn results_are_written_although_they_cannot_be_printed() {
    let scene = Scene::new();
    let out = scene.path("out");
    let words = ["--quick", "--rounds", "1", "--peers", "none", "--work", "files"];
    let mut command = scene.command(&words);
    command.arg("--out").arg(&out).stderr(Stdio::null());
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let status = Process::spawn(&mut command).wait(LIMIT);
    assert_eq!(status.code(), Some(1));
    scene.assert_clean();
    assert_all_measured(&bench::run::read(&out).unwrap(), "sshoal");
    assert!(read(out.join("report.html")).contains("<svg"));
}

#[test]
fn a_comparison_reports_a_regression() {
    let scene = Scene::new();
    let (mut results, _) = scene.results(0, &["--peers", "none", "--work", "latency"]);
    let out = scene.path("out");
    let out = out.to_str().unwrap();
    let same = scene.run(&["--compare", out, "--with", out]);
    assert_eq!(same.status.code(), Some(0), "{}{}", same.stdout, same.stderr);
    for sample in &mut results.samples {
        if let Outcome::Measured(measured) = &mut sample.outcome {
            measured.value *= 100.0;
        }
    }
    let slow = scene.path("slow");
    Files::new(&slow).unwrap().write(&results).unwrap();
    let slow = slow.to_str().unwrap();
    let slower = scene.run(&["--compare", out, "--with", slow]);
    assert_eq!(slower.status.code(), Some(3), "{}{}", slower.stdout, slower.stderr);
    // And of a run that is compared as soon as it has ended.
    let words = ["--quick", "--rounds", "1", "--peers", "none", "--work", "latency"];
    let faster = scene.run(&[&words[..], &["--compare", slow]].concat());
    assert_eq!(faster.status.code(), Some(0), "{}{}", faster.stdout, faster.stderr);
    assert!(faster.stdout.contains("--out DIR"), "{}", faster.stdout);
}

#[test]
fn merged_and_placed_mounts_a_pool_and_a_given_program_are_measured() {
    let scene = Scene::new();
    let peers = "sshoal-union,sshoal-places,sshoal-pool,sshoal:opt1,sshoal-copy";
    let given = r#"given=exec scp -r "$@" "$FROM" "$TO""#;
    let words = ["--work", "files", "--peers", peers, "--copier", given];
    let (results, _) = scene.results(0, &words);
    for name in peers.split(',').chain(["sshoal", "given"]) {
        assert_all_measured(&results, name);
    }
    let refused = scene.refusal(&["--peers", "none", "--copier", "scp"]);
    assert!(refused.contains("NAME=SCRIPT"), "{refused}");
}

#[test]
fn nfs_without_a_kernel_client_is_measured_or_left_out() {
    let scene = Scene::new();
    let (results, _) = scene.results(0, &["--work", "iozone,fio", "--peers", "nfs-user"]);
    if let Some(left_out) = results.left_out.iter().find(|it| it.name == "nfs-user") {
        eprintln!("nfs-user left out: {}", left_out.why);
        return;
    }
    assert_all_measured(&results, "nfs-user");
    let subject = results.subjects.iter().find(|it| it.name == "nfs-user").unwrap();
    assert!(subject.command.contains("without kernel client"), "{}", subject.command);
    let server_cpu = results.samples.iter().filter(|it| it.subject == "nfs-user").any(|sample| {
        let Outcome::Measured(measured) = &sample.outcome else { return false };
        measured.verified && measured.server.as_ref().is_some_and(|it| it.user_s > 0.0)
    });
    assert!(server_cpu, "the server's CPU time is measured");
}

#[test]
fn a_host_is_measured_through_the_users_own_ssh() {
    let world = World::new();
    let scene = Scene::new();
    let config = world.sshd().config_path();
    let served = world.served("");
    let host = format!("{}:{}", world.sshd().alias(), served.display());
    let words = ["--peers", "none", "--work", "files", "--host", &host];
    let words = [&words[..], &["-F", config.to_str().unwrap()]].concat();
    let (results, _) = scene.results(0, &words);
    assert_all_measured(&results, "sshoal");
    assert!(results.link.name.starts_with("host "), "{}", results.link.name);
    assert_eq!(std::fs::read_dir(&served).unwrap().count(), 0, "nothing is left on the host");
}

#[test]
fn a_mounted_directory_is_measured_as_it_is() {
    let world = World::new();
    let scene = Scene::new();
    let mount = world.mount(&[]);
    let target = format!("net={}", mount.at("").display());
    let (results, _) =
        scene.results(0, &["--peers", "none", "--work", "files", "--target", &target]);
    assert_all_measured(&results, "net");
    assert_eq!(std::fs::read_dir(world.served("")).unwrap().count(), 0, "nothing is left there");
}

#[test]
fn the_list_names_everything() {
    let scene = Scene::new();
    let ended = scene.run(&["--list"]);
    assert_eq!(ended.status.code(), Some(0));
    for name in ["sshoal", "sshfs:opt1", "rclone", "floor", "local", "latency", "iozone", "nas"] {
        let line = format!("\n  {name} ");
        assert!(ended.stdout.contains(&line), "{name}: {}", ended.stdout);
    }
    let mut without = scene.command(&["--list"]);
    without.env("PATH", scene.path_without(&["sshfs"]));
    let ended = crate::process::run(&mut without);
    assert!(ended.stdout.contains("not installed: install the package sshfs"), "{}", ended.stdout);
    // Other peers may be missing too, so their packages may be on that line.
    let install = ended.stdout.lines().find_map(|line| line.strip_prefix("apt-get install "));
    let packages: Vec<&str> = install.into_iter().flat_map(str::split_whitespace).collect();
    assert!(packages.contains(&"sshfs"), "{}", ended.stdout);
}
