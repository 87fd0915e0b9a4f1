//! `sshoal bench`: the command around the crate of that name.
//!
//! Exit codes beside the usual ones: [`EXIT_WRONG`] when figures were got and something is wrong
//! with them, [`EXIT_INTERRUPTED`] when the user has ended the run. What a peer cannot do changes
//! none of them, unless it shows wrong data.

mod arguments;
mod listing;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::executor::Executor;
use bench::failure::Failure;
use bench::plan::{self, Refusal, Request};
use bench::progress::Progress;
use bench::results::{Outcome, Results};
use bench::run::{Files, Scratch};
use bench::size::Scale;
use bench::{advise, compare, report, run};

use cli::signals::watch_end_signals;
use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, print, printable};

pub use arguments::Arguments;

/// Wrong data were seen, sshoal itself failed, or a comparison shows a regression.
const EXIT_WRONG: u8 = 3;

/// As a shell has it for a program that Ctrl-C has ended.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs the command on `sshoal`, the program to measure.
pub fn run(arguments: Arguments, sshoal: PathBuf) -> anyhow::Result<ExitCode> {
    if arguments.list {
        return print(&listing::text());
    }
    let old = arguments.compare.as_deref().map(earlier).transpose()?;
    if let (Some(old), Some(new)) = (&old, &arguments.with) {
        return compared(old, &earlier(new)?, arguments.tolerance).map(ExitCode::from);
    }
    let executor = interruptible()?;
    if arguments.advise {
        return advised(&arguments.request(sshoal, None)?, &executor);
    }
    let repeated = arguments.repeated();
    if let [] | [_] = *repeated {
        let request = arguments.request(sshoal, repeated.first().copied())?;
        let out = arguments.out.as_deref();
        return one(&request, &executor, out, old.as_ref(), arguments.tolerance)
            .map(ExitCode::from);
    }
    if old.is_some() {
        let why = "compares one run, and --repeat all is several";
        return Err(Problem::new("--compare", why).into());
    }
    let mut code = EXIT_OK;
    for published in repeated {
        let out = arguments.out.as_ref().map(|out| out.join(published.name));
        let request = arguments.request(sshoal.clone(), Some(published))?;
        print(&format!("\n{}: {}\n", published.name, published.about))?;
        // What one of them lacks here does not concern the others.
        let own = one(&request, &executor, out.as_deref(), None, arguments.tolerance);
        let own = own.unwrap_or_else(|error| {
            eprintln!("sshoal: {}: {error:#}", published.name);
            EXIT_FAILURE
        });
        if own == EXIT_INTERRUPTED {
            return Ok(ExitCode::from(own));
        }
        code = code.max(own);
    }
    Ok(ExitCode::from(code))
}

/// One run, with its results printed and written; the exit code.
fn one(
    request: &Request,
    executor: &Executor,
    out: Option<&Path>,
    old: Option<&Results>,
    tolerance: f64,
) -> anyhow::Result<u8> {
    let files = out.map(output).transpose()?;
    let Some(results) = measured(request, executor, files.as_ref())? else {
        return Ok(EXIT_INTERRUPTED);
    };
    // The files first, in case the terminal is closed.
    let written = written(files.as_ref(), &results);
    print(&report::text(&results))?;
    print(&written?)?;
    let code = exit_code(&results, executor.is_interrupted());
    let changed = old.map(|old| compared(old, &results, tolerance)).transpose()?;
    Ok(changed.map_or(code, |changed| code.max(changed)))
}

/// An executor that is interrupted by Ctrl-C and other signals, from here on.
fn interruptible() -> Result<Executor, Problem> {
    let executor = Executor::new();
    let reached = executor.clone();
    watch_end_signals(move |_| reached.interrupt()).or_problem("bench: signals")?;
    Ok(executor)
}

/// Results of a run before this one.
fn earlier(path: &Path) -> Result<Results, Problem> {
    run::read(path).or_problem("earlier results")
}

/// The directory for the results, before anything runs.
fn output(dir: &Path) -> Result<Files, Problem> {
    Files::new(dir).or_problem(format!("--out '{}'", printable(dir)))
}

/// The run; `None` when it was interrupted before it began.
fn measured(
    request: &Request,
    executor: &Executor,
    files: Option<&Files>,
) -> Result<Option<Results>, Problem> {
    let mut progress = Progress::on_stderr();
    let plan = match plan::prepare(request, executor, &mut progress) {
        Ok(plan) => plan,
        // Whatever it was that the interrupt met.
        Err(_) if executor.is_interrupted() => return Ok(None),
        Err(refusal) => return Err(refused(&refusal)),
    };
    for left_out in &plan.results.left_out {
        let remedy =
            left_out.remedy.iter().map(|remedy| format!(" ({remedy})")).collect::<String>();
        progress.say(&format!("left out: {}: {}{remedy}", left_out.name, left_out.why));
    }
    if plan.subjects.iter().all(|subject| plan::is_ours(&subject.info().name)) {
        progress.say("there is no peer to compare with: sshoal is measured alone");
    }
    let mut complained = false;
    let results = run::run(plan, executor, &mut progress, &mut |results| {
        let Some(Err(error)) = files.map(|files| files.keep(results)) else { return };
        if !std::mem::replace(&mut complained, true) {
            eprintln!("sshoal: results so far cannot be written: {error}");
        }
    });
    Ok(Some(results))
}

fn refused(refusal: &Refusal) -> Problem {
    Problem::new("bench", refusal.to_string()).hint_if(refusal.hint())
}

/// Writes the files; the paths, or the option that writes them.
fn written(files: Option<&Files>, results: &Results) -> Result<String, Problem> {
    let Some(files) = files else {
        return Ok("\n--out DIR writes a report with charts, and all samples.\n".to_owned());
    };
    let paths = files.write(results).or_problem("bench: results")?;
    let line = |path| format!("  {}\n", printable(path));
    Ok(format!("\nWritten:\n{}", paths.iter().map(line).collect::<String>()))
}

/// Prints what changed; the exit code.
fn compared(old: &Results, new: &Results, tolerance: f64) -> anyhow::Result<u8> {
    let comparison = compare::compare(old, new, tolerance);
    print(&format!("{comparison}"))?;
    Ok(if comparison.regressions().next().is_some() { EXIT_WRONG } else { EXIT_OK })
}

fn exit_code(results: &Results, interrupted: bool) -> u8 {
    match results.partial {
        Some(_) if interrupted => return EXIT_INTERRUPTED,
        Some(_) => return EXIT_FAILURE,
        None => {}
    }
    let is_wrong = results.samples.iter().any(|sample| match &sample.outcome {
        Outcome::Measured(_) => false,
        Outcome::Failed { failure: Failure::WrongData { .. } } => true,
        Outcome::Failed { .. } => plan::is_ours(&sample.subject),
    });
    if is_wrong { EXIT_WRONG } else { EXIT_OK }
}

/// Prints advice.
fn advised(request: &Request, executor: &Executor) -> anyhow::Result<ExitCode> {
    let quick = request.scale == Scale::Quick;
    let mut progress = Progress::on_stderr();
    let scratch = Scratch::new(&request.scratch).or_problem("scratch directory")?;
    let advice =
        plan::start_server(request, scratch.path(), executor, &mut progress).and_then(|server| {
            let mut tell = |line: &str| progress.say(line);
            advise::advise(&server, executor, &mut tell, quick).map_err(Refusal::from)
        });
    drop(progress);
    match advice {
        Ok(advice) => print(&advice),
        Err(_) if executor.is_interrupted() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        Err(refusal) => Err(refused(&refusal).into()),
    }
}
