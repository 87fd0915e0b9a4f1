//! Keeps private servers running, to try by hand what several hosts are like.
//!
//! ```text
//! cargo run -p testkit --example fleet -- [--rtt-us N] [--bytes-per-s N] NAME[=DIRECTORY]…
//! ```
//!
//! Prints the ssh configuration that knows them and the directory in which theirs are. Servers with
//! one `DIRECTORY` are gateways to it. A line on its standard input does something to a server:
//! `kill`, `restart`, `stop`, `cont`, `stall`, `resume`, `cut`, `refuse` or `accept`, and its name;
//! `bytes` tells what came through each link. Everything ends with its standard input.

use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

use sandbox::fleet::{Fleet, Plan};
use sandbox::link::LinkOptions;

fn plans(mut words: impl Iterator<Item = String>) -> Option<(Vec<Plan>, Vec<String>)> {
    let (mut link, mut plans, mut names) = (LinkOptions::default(), Vec::new(), Vec::new());
    while let Some(word) = words.next() {
        match &*word {
            "--rtt-us" => link.rtt = Duration::from_micros(words.next()?.parse().ok()?),
            "--bytes-per-s" => link.rate_bytes_per_s = Some(words.next()?.parse().ok()?),
            word => {
                let (name, directory) = word.split_once('=').unwrap_or((word, word));
                plans.push(Plan::new(name).serving(directory).behind(link));
                names.push(name.to_owned());
            }
        }
    }
    (!plans.is_empty()).then_some((plans, names))
}

fn act(fleet: &mut Fleet, what: &str, name: &str) -> std::io::Result<()> {
    match what {
        "kill" => fleet.kill(name),
        "restart" => fleet.restart(name)?,
        "stop" => fleet.stop(name),
        "cont" => fleet.cont(name),
        "stall" => fleet.link(name).stall(),
        "resume" => fleet.link(name).resume(),
        "cut" => fleet.link(name).cut(),
        "refuse" => fleet.link(name).refuse(),
        "accept" => fleet.link(name).accept(),
        _ => return Err(std::io::Error::other("no such word")),
    }
    Ok(())
}

fn main() -> std::io::Result<ExitCode> {
    let Some((plans, names)) = plans(std::env::args().skip(1)) else {
        eprintln!("fleet [--rtt-us N] [--bytes-per-s N] NAME[=DIRECTORY]...");
        return Ok(ExitCode::from(2));
    };
    let mut fleet = Fleet::start(plans)?;
    println!("{}\n{}", fleet.config_path().display(), fleet.dir().display());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, name) = line.split_once(' ').unwrap_or((&line, ""));
        if what == "bytes" {
            let came = names.iter().map(|name| (name, fleet.link(name).bytes_from_target()));
            println!("{:?}", came.collect::<Vec<_>>());
        } else if names.iter().any(|known| known == name) {
            match act(&mut fleet, what, name) {
                Ok(()) => println!("done"),
                Err(error) => println!("{what} {name}: {error}"),
            }
        } else {
            println!("no server is called '{name}'");
        }
    }
    Ok(ExitCode::SUCCESS)
}
