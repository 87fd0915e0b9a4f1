//! Who and what is admitted, and why a run does not begin.

use std::path::Path;
use std::sync::Arc;

use crate::executor::Executor;
use crate::results::LeftOut;
use crate::run::tests::fake::{Refused, Scene};
use crate::size::{Scale, Size};
use crate::subject::Subject;

use crate::published::PUBLISHED;
use crate::workload;

use super::prepare::{self, Candidate};
use super::{Host, Refusal, Request};

fn admit(
    subjects: Vec<Arc<dyn Subject>>,
    described: bool,
) -> (Result<Vec<String>, Refusal>, Vec<LeftOut>) {
    let mut left_out = Vec::new();
    let candidates = subjects.into_iter().map(|subject| Candidate { subject, described }).collect();
    let admitted = prepare::admit(candidates, &mut left_out, &Executor::new());
    let names = admitted.map(|admitted| admitted.iter().map(|one| one.info().name).collect());
    (names, left_out)
}

#[test]
fn a_peer_that_is_not_installed_is_left_out_and_named() {
    let mut scene = Scene::new(&["sshoal", "sshfs"], &[]);
    scene.refuse("sshfs", Refused::Check);
    let (admitted, left_out) = admit(scene.subjects(), false);
    assert_eq!(admitted, Ok(vec!["sshoal".to_owned()]));
    assert_eq!(left_out[0].name, "sshfs");
    scene.refuse("sshoal", Refused::Check);
    let refusal = admit(scene.subjects(), false).0.unwrap_err();
    assert_eq!(refusal.to_string(), "no subject is left to measure");
}

#[test]
fn what_the_user_describes_has_to_be_there() {
    let mut scene = Scene::new(&["mine"], &[]);
    scene.refuse("mine", Refused::Check);
    let (refused, left_out) = admit(scene.subjects(), true);
    let refusal = refused.unwrap_err();
    assert_eq!(refusal.to_string(), "subject 'mine': is not installed");
    assert_eq!(refusal.hint(), Some("install it"));
    assert_eq!(left_out, []);
}

#[test]
fn names_are_unique() {
    let scene = Scene::new(&["a", "b", "a"], &[]);
    let refusal = admit(scene.subjects(), false).0.unwrap_err();
    assert_eq!(refusal.to_string(), "subject 'a': asked for twice");
}

#[test]
fn the_reference_is_among_the_subjects_and_has_a_control() {
    let mut subjects = Scene::new(&["sshoal", "sshfs", "rclone"], &[]).subjects();
    let refusal = prepare::reference(&mut subjects, Some("scp"), true).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "reference 'scp': not among the subjects: sshoal, sshfs, rclone"
    );
    assert_eq!(prepare::reference(&mut subjects, Some("rclone"), false).unwrap(), "rclone");
    assert_eq!(subjects.len(), 3);
    assert_eq!(prepare::reference(&mut subjects, None, true).unwrap(), "sshfs");
    let control = subjects.last().unwrap().info();
    assert_eq!(control.name, "sshfs (control)");
    assert_eq!(control.control_of.as_deref(), Some("sshfs"));
    assert_eq!(subjects.last().unwrap().storage().name(), "storage of sshfs");
}

#[test]
fn works_are_known_by_name() {
    let size = Size::of(Scale::Quick);
    let mut scene = Scene::new(&["a"], &["one"]);
    let works = |scene: &Scene, asked: Option<&str>, left_out: &mut Vec<LeftOut>| {
        let asked = asked.map(|name| vec![name.to_owned()]);
        let all = vec![scene.workload()];
        prepare::works(asked.as_deref(), all, &size, left_out).map(|works| works.len())
    };
    let mut left_out = Vec::new();
    assert_eq!(works(&scene, None, &mut left_out), Ok(1));
    assert_eq!(works(&scene, Some("fake"), &mut left_out), Ok(1));
    let refusal = works(&scene, Some("fkae"), &mut left_out).unwrap_err();
    assert_eq!(refusal.hint(), Some("did you mean 'fake'?"));
    let refusal = works(&scene, Some("x\u{1b}"), &mut left_out).unwrap_err();
    assert_eq!(refusal.to_string(), "work 'x\\u{1b}': there is no such work");
    let refusal = prepare::works(Some(&[]), vec![scene.workload()], &size, &mut left_out);
    let refusal = refusal.map(drop).unwrap_err();
    assert_eq!(refusal.to_string(), "no work is left to do: none was named");
    let nothing = Scene::new(&["a"], &[]);
    let refusal = works(&nothing, Some("fake"), &mut left_out).unwrap_err();
    assert!(refusal.to_string().starts_with("no work is left"), "it has no steps: {refusal}");
    scene.refuse("fake", Refused::Check);
    let refusal = works(&scene, None, &mut left_out).unwrap_err();
    assert_eq!(refusal.to_string(), "no work is left to do: fake: is not installed");
}

/// Without a link, a pool would fail in each of its steps.
#[test]
fn what_breaks_the_second_link_is_left_out_where_there_is_none() {
    let size = Size::of(Scale::Quick);
    let left = |subjects: &[&str]| {
        let mut works: Vec<Box<dyn workload::Workload>> =
            vec![Box::new(workload::tree::Tree), Box::new(workload::failover::Failover)];
        let mut left_out = Vec::new();
        let subjects = Scene::new(subjects, &[]).subjects();
        prepare::without_second_link(&mut works, &size, &subjects, &mut left_out).unwrap();
        (works.len(), left_out)
    };
    let reason = LeftOut::new("failover", "it needs a simulated link").with_remedy("--link lan");
    assert_eq!(left(&["sshoal", "sshoal-pool"]), (1, vec![reason]));
    assert_eq!(left(&["sshoal", "sshfs"]), (2, vec![]));
}

#[test]
fn there_has_to_be_room() {
    let size = Size::of(Scale::Quick);
    let dir = tempfile::tempdir().unwrap();
    let check = |needed, free_bytes, scratch: &Path| {
        let mut scene = Scene::new(&["a", "b"], &[]);
        scene.room(needed, free_bytes);
        let subjects = scene.subjects();
        let places = subjects.iter().map(|subject| subject.storage());
        prepare::check_space(&size, &[scene.workload(), scene.workload()], places, scratch)
    };
    let gib = 1 << 30;
    assert_eq!(check((gib, 0), 3 * gib, dir.path()), Ok(()));
    // Two works of a gigabyte, and a margin.
    let refusal = check((gib, 0), 2 * gib, dir.path()).unwrap_err();
    assert_eq!(refusal.to_string(), "storage of a: 2.0 GiB are free, and the works need 2.1 GiB");
    let refusal = check((0, u64::MAX / 4), u64::MAX, dir.path()).unwrap_err();
    assert!(refusal.to_string().starts_with("scratch directory "), "{refusal}");
    assert!(refusal.hint().is_some());
    let gone = check((0, 0), gib, Path::new("/no/such/directory"));
    assert!(gone.unwrap_err().to_string().starts_with("\"/no/such/directory\": "));
}

#[test]
fn lists_and_command_lines_are_understood_before_there_is_a_server() {
    let mut request = Request { scale: Scale::Quick, ..Request::default() };
    assert!(prepare::understand(&request).is_ok());
    request.peers = Some("sshfs,floor,sshoal:max_conns=1,cache=no".to_owned());
    assert!(prepare::understand(&request).is_ok());
    request.commands = vec![("x".to_owned(), "prog -o 'a b'".to_owned())];
    assert!(prepare::understand(&request).is_ok());
    request.commands = vec![("x".to_owned(), "prog -o 'a b".to_owned())];
    let Err(refusal) = prepare::understand(&request) else { panic!("a quote is open") };
    assert!(refusal.to_string().starts_with("subject 'x': not a command line"), "{refusal}");
    request.commands.clear();
    request.peers = Some("sshfz".to_owned());
    let Err(refusal) = prepare::understand(&request) else { panic!("no such subject") };
    assert!(refusal.to_string().contains("did you mean 'sshfs'"), "{refusal}");
}

#[test]
fn hosts() {
    let host = |text| Host::parse(text).map(|host| (host.destination, host.directory));
    let some = |destination: &str, directory: Option<&str>| {
        Ok((destination.to_owned(), directory.map(str::to_owned)))
    };
    assert_eq!(host("h"), some("h", None));
    assert_eq!(host("me@h:"), some("me@h", None));
    assert_eq!(host("me@h:/srv/a:b"), some("me@h", Some("/srv/a:b")));
    assert_eq!(host("me@[::1]:dir"), some("me@::1", Some("dir")));
    assert_eq!(host("[fe80::1%eth0]"), some("fe80::1%eth0", None));
    for text in ["", ":dir", "@h", "-oProxyCommand=x", "me@-x", "[::1", "[::1]x", "me@"] {
        assert!(host(text).is_err(), "{text}");
    }
}

#[test]
fn each_published_comparison_can_be_planned() {
    for published in &PUBLISHED {
        let request = Request { scale: Scale::Quick, ..Request::default() };
        let request = published.fill(request, 1e-6);
        assert!(prepare::understand(&request).is_ok(), "{}", published.name);
        assert_eq!(request.repeats.map(|it| it.name), Some(published.name));
        assert!(request.link.is_some(), "{}: its link is not understood", published.name);
        let size = request.size();
        assert_eq!(size.file_bytes, 1 << 20, "{}: the least that there is", published.name);
        let (all, mut left_out) = (workload::all(), Vec::new());
        let names: Vec<&str> = all.iter().map(|work| work.name()).collect();
        assert!(published.works.iter().all(|name| names.contains(name)), "{}", published.name);
        // Of works whose programs are not installed here, too.
        let steps: Vec<String> = all
            .iter()
            .filter(|work| published.works.contains(&work.name()))
            .flat_map(|work| work.steps(&size))
            .map(|step| step.measure.id)
            .collect();
        for tabled in published.tables {
            assert!(steps.iter().any(|id| tabled.has(id)), "{}: {steps:?}", tabled.caption);
        }
        let planned = prepare::works(request.works.as_deref(), all, &size, &mut left_out);
        if let Err(refusal) = planned {
            assert!(refusal.to_string().contains("not installed"), "{refusal}");
        }
    }
}
