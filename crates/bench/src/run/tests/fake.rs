//! Subjects and works that do what a test tells them to, and write down what was asked of them.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::results::{LeftOut, Measured, Results, Settings, SubjectInfo};
use crate::run::{Scratch, run};
use crate::size::{Scale, Size};
use crate::step::StepContext;
use crate::storage::Storage;
use crate::subject::{Access, AccessKind, Session, Subject, Tuning};
use crate::workload::{Step, Workload};

/// What a step does with a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Fail,
    Wrong,
    /// Runs a program that does not end.
    Hang,
    /// Is interrupted while it runs.
    Interrupt,
    Panic,
    /// Nothing: it does not concern it.
    Pass,
}

/// What somebody does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refused {
    /// A subject or the workload cannot be measured here.
    Check,
    /// The workload cannot make its data.
    Make,
    /// A storage takes no data.
    Put,
    Start,
    /// A start with a tuning.
    Tuning,
    Forget,
    Stop,
}

/// How everybody behaves.
#[derive(Clone, Debug, Default)]
struct Script {
    acts: HashMap<(String, String), Act>,
    refused: HashSet<(String, Refused)>,
    tunings: HashMap<String, String>,
    /// What the workload needs in a storage and locally.
    space: (u64, u64),
    free_bytes: u64,
}

impl Script {
    fn act(&self, subject: &str, step: &str) -> Option<Act> {
        self.acts.get(&(subject.to_owned(), step.to_owned())).copied()
    }

    fn refuses(&self, name: &str, what: Refused) -> bool {
        self.refused.contains(&(name.to_owned(), what))
    }

    fn check(&self, name: &str) -> Result<(), LeftOut> {
        if !self.refuses(name, Refused::Check) {
            return Ok(());
        }
        let why = "is not installed".to_owned();
        Err(LeftOut { name: name.to_owned(), why, remedy: Some("install it".to_owned()) })
    }
}

/// Lines, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    lines: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Log {
    fn add(&self, line: String) {
        self.lines.0.lock().unwrap().push(line);
        self.lines.1.notify_all();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.0.lock().unwrap().clone()
    }

    /// Lines with this first word.
    pub(crate) fn all(&self, word: &str) -> Vec<String> {
        let begins = |line: &String| line.split(' ').next() == Some(word);
        self.lines().into_iter().filter(begins).collect()
    }

    pub(crate) fn count(&self, word: &str) -> usize {
        self.all(word).len()
    }

    pub(crate) fn seeds(&self) -> Vec<u64> {
        let seed = |line: String| line.rsplit(' ').next().unwrap().parse().unwrap();
        self.all("step").into_iter().map(seed).collect()
    }

    /// Returns when there is such a line.
    pub(crate) fn wait_for(&self, word: &str) {
        let (lines, changed) = &*self.lines;
        let begins = |line: &String| line.split(' ').next() == Some(word);
        let waiting = |lines: &mut Vec<String>| !lines.iter().any(begins);
        drop(changed.wait_while(lines.lock().unwrap(), waiting).unwrap());
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.lines.0.lock().unwrap();
        if lines.last().is_none_or(|line| line.ends_with('\n')) {
            lines.push(String::new());
        }
        lines.last_mut().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A run to be, and what came of it.
pub(crate) struct Scene {
    subjects: Vec<String>,
    steps: Vec<String>,
    script: Script,
    parent: tempfile::TempDir,
    pub(crate) rounds: u32,
    pub(crate) deadline: Duration,
    pub(crate) executor: Executor,
    pub(crate) log: Arc<Log>,
}

impl Scene {
    /// Steps called `cold…` and `hot…` are. Those called `here…` need a storage on this machine,
    /// which no subject has.
    pub(crate) fn new(subjects: &[&str], steps: &[&str]) -> Scene {
        Scene {
            subjects: subjects.iter().map(|&name| name.to_owned()).collect(),
            steps: steps.iter().map(|&name| name.to_owned()).collect(),
            script: Script::default(),
            parent: tempfile::tempdir().unwrap(),
            rounds: 1,
            deadline: Duration::from_secs(600),
            executor: Executor::new(),
            log: Arc::default(),
        }
    }

    pub(crate) fn act(&mut self, subject: &str, step: &str, act: Act) {
        self.script.acts.insert((subject.to_owned(), step.to_owned()), act);
    }

    /// `name` is that of a subject, of a storage, or of the workload.
    pub(crate) fn refuse(&mut self, name: &str, what: Refused) {
        self.script.refused.insert((name.to_owned(), what));
    }

    pub(crate) fn tune(&mut self, step: &str, cipher: &str) {
        self.script.tunings.insert(step.to_owned(), cipher.to_owned());
    }

    /// What the workload needs in a storage and locally, and what each storage has.
    pub(crate) fn room(&mut self, needed: (u64, u64), free_bytes: u64) {
        self.script.space = needed;
        self.script.free_bytes = free_bytes;
    }

    pub(crate) fn run(&self) -> Results {
        run(self.plan(), &self.executor, &mut Progress::hidden(), &mut |_| {})
    }

    pub(crate) fn run_keeping(&self, keep: &mut dyn FnMut(&Results)) -> Results {
        run(self.plan(), &self.executor, &mut Progress::hidden(), keep)
    }

    pub(crate) fn run_shown(&self, progress: &mut Progress) -> Results {
        run(self.plan(), &self.executor, progress, &mut |_| {})
    }

    /// Whether no file is left.
    pub(crate) fn is_clean(&self) -> bool {
        std::fs::read_dir(self.parent.path()).unwrap().next().is_none()
    }

    pub(crate) fn subjects(&self) -> Vec<Arc<dyn Subject>> {
        let script = Arc::new(self.script.clone());
        let subject = |name: &String| -> Arc<dyn Subject> {
            Arc::new(FakeSubject {
                name: name.clone(),
                storage: FakeStorage {
                    name: format!("storage of {name}"),
                    script: Arc::clone(&script),
                },
                script: Arc::clone(&script),
                log: Arc::clone(&self.log),
            })
        };
        self.subjects.iter().map(subject).collect()
    }

    pub(crate) fn workload(&self) -> Box<dyn Workload> {
        Box::new(FakeWorkload {
            steps: self.steps.clone(),
            script: Arc::new(self.script.clone()),
            log: Arc::clone(&self.log),
        })
    }

    fn plan(&self) -> Plan {
        Plan {
            subjects: self.subjects(),
            works: vec![self.workload()],
            size: Size::of(Scale::Quick),
            deadline: self.deadline,
            results: Results {
                program: "fake".to_owned(),
                settings: Settings {
                    rounds: self.rounds,
                    seed: 7,
                    reference: self.subjects[0].clone(),
                    ..Settings::default()
                },
                ..Results::default()
            },
            server: Arc::new(()),
            trace_cpu: false,
            scratch: Scratch::new(self.parent.path()).unwrap(),
        }
    }
}

struct FakeSubject {
    name: String,
    storage: FakeStorage,
    script: Arc<Script>,
    log: Arc<Log>,
}

impl Subject for FakeSubject {
    fn info(&self) -> SubjectInfo {
        SubjectInfo::new(&self.name, "mount", "")
    }

    fn check(&self, _: &Executor) -> Result<(), LeftOut> {
        self.script.check(&self.name)
    }

    fn storage(&self) -> &dyn Storage {
        &self.storage
    }

    fn start(
        &self,
        scratch: &Path,
        tuning: &Tuning,
        _: &Executor,
    ) -> Result<Box<dyn Session>, Failure> {
        let name = &self.name;
        if self.script.refuses(name, Refused::Start) {
            self.log.add(format!("refuse {name}"));
            return Err(Failure::failed("it does not want to"));
        }
        if tuning.cipher.is_some() && self.script.refuses(name, Refused::Tuning) {
            return Err(Failure::NotTried { why: "it cannot choose".to_owned() });
        }
        let cipher = tuning.cipher.iter().map(|cipher| format!(" {cipher}")).collect::<String>();
        self.log.add(format!("start {name}{cipher}"));
        let dir = scratch.join("mnt");
        std::fs::create_dir(&dir)?;
        Ok(Box::new(FakeSession {
            name: name.clone(),
            dir,
            ended: false,
            script: Arc::clone(&self.script),
            log: Arc::clone(&self.log),
        }))
    }
}

struct FakeSession {
    name: String,
    dir: PathBuf,
    ended: bool,
    script: Arc<Script>,
    log: Arc<Log>,
}

impl Session for FakeSession {
    fn access(&self) -> Access<'_> {
        Access::Directory(&self.dir)
    }

    fn forget(&mut self, _: &Executor) -> Result<bool, Failure> {
        self.log.add(format!("forget {}", self.name));
        Ok(!self.script.refuses(&self.name, Refused::Forget))
    }

    fn remount(&mut self, _: &Executor) -> Result<bool, Failure> {
        self.log.add(format!("remount {}", self.name));
        Ok(true)
    }

    fn stop(&mut self, executor: &Executor) -> Result<(), Failure> {
        if self.script.refuses(&self.name, Refused::Stop) {
            return Err(Failure::failed("it does not want to"));
        }
        // As a real one does, which runs `fusermount3`.
        executor.succeed(Command::new("true"), Duration::from_secs(10))?;
        self.log.add(format!("stop {}", self.name));
        self.ended = true;
        Ok(())
    }

    fn abandon(&mut self) {
        self.log.add(format!("abandon {}", self.name));
        self.ended = true;
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        if !self.ended {
            self.abandon();
        }
    }
}

struct FakeStorage {
    name: String,
    script: Arc<Script>,
}

impl Storage for FakeStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn root(&self) -> &Path {
        Path::new("/nowhere")
    }

    fn local(&self) -> Option<PathBuf> {
        None
    }

    fn put(&self, _: &Path, _: &Path) -> Result<(), Failure> {
        if self.script.refuses(&self.name, Refused::Put) {
            return Err(Failure::failed("it is full"));
        }
        Ok(())
    }

    fn make_dir(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }

    fn remove(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }

    fn digest(&self, _: &Path) -> Result<String, Failure> {
        Ok(String::new())
    }

    fn warm(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, Failure> {
        Ok(self.script.free_bytes)
    }
}

struct FakeWorkload {
    steps: Vec<String>,
    script: Arc<Script>,
    log: Arc<Log>,
}

impl Workload for FakeWorkload {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn about(&self) -> &'static str {
        "does nothing"
    }

    fn check(&self) -> Result<(), LeftOut> {
        self.script.check(self.name())
    }

    fn space(&self, _: &Size) -> (u64, u64) {
        self.script.space
    }

    fn make(&self, _: &Size, _: &Path, _: &Executor) -> Result<(), Failure> {
        if self.script.refuses(self.name(), Refused::Make) {
            return Err(Failure::failed("no disk"));
        }
        Ok(())
    }

    fn data(&self, _: &Size) -> Vec<PathBuf> {
        Vec::new()
    }

    fn lay_out(&self, _: &Size, corpus: &Path, storage: &dyn Storage) -> Result<(), Failure> {
        storage.put(corpus, Path::new("fake"))
    }

    fn steps(&self, _: &Size) -> Vec<Step> {
        self.steps.iter().map(|name| self.step(name.clone())).collect()
    }
}

impl FakeWorkload {
    fn step(&self, name: String) -> Step {
        let cache = match &name {
            name if name.starts_with("cold") || name.starts_with("kept") => Cache::Cold,
            name if name.starts_with("hot") => Cache::Hot,
            _ => Cache::None,
        };
        let measure =
            Measure { id: format!("fake.{name}"), title: name.clone(), unit: Unit::Seconds, cache };
        let tuning = Tuning { cipher: self.script.tunings.get(&name).cloned() };
        let (script, log) = (Arc::clone(&self.script), Arc::clone(&self.log));
        let (own, keeps_disk_cache) = (name.clone(), name.starts_with("kept"));
        let is_here = name.starts_with("here");
        let step = Step::new(measure, &[AccessKind::Directory], move |context| {
            act(&own, &script, &log, context)
        });
        let script = Arc::clone(&self.script);
        let step = step.only_for(move |it| script.act(&it.name, &name) != Some(Act::Pass));
        let step = step.with_tuning(tuning);
        let step = if is_here { step.at_local_storage() } else { step };
        if keeps_disk_cache { step.with_disk_cache() } else { step }
    }
}

fn act(
    name: &str,
    script: &Script,
    log: &Log,
    context: &mut StepContext<'_>,
) -> Result<Measured, Failure> {
    let subject = context.subject.info().name;
    log.add(format!("step {name} {subject} {}", context.seed));
    assert!(context.scratch.is_dir() && context.corpus.is_dir());
    match script.act(&subject, name) {
        None => Ok(Measured { seconds: 1.0, ..Measured::default() }),
        Some(Act::Fail) => Err(Failure::failed("it was told to")),
        Some(Act::Wrong) => Err(Failure::wrong("a flipped byte")),
        Some(Act::Hang) => {
            let mut command = Command::new("sleep");
            command.arg("1000");
            log.add("hang".to_owned());
            context.aside(command)?;
            Err(Failure::failed("it has slept enough"))
        }
        Some(Act::Interrupt) => {
            context.executor.interrupt();
            context.aside(Command::new("true"))?;
            Err(Failure::failed("it was not interrupted"))
        }
        Some(Act::Panic) => panic!("it was told to"),
        Some(Act::Pass) => unreachable!("it does not concern the subject"),
    }
}
