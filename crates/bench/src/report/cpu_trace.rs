//! CPU over time, by process: a table, and for the page a line chart of each subject, in which the
//! steps of one round follow each other.

use maud::html;

use crate::results::{CpuTrace, SubjectInfo};
use crate::units;

use super::bars::{WIDTH, n, tick_text, ticks};
use super::document::{self, Block, Drawing, Section, Table, row};
use super::view::{View, label};

/// Points of a line: about two units of the chart's width for each.
const POINTS: usize = 160;

/// Ends of the axes.
const LEFT: f64 = 34.0;
const RIGHT: f64 = WIDTH - 6.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 150.0;

/// Below the axis: the names of its ticks, and then a line for each name of the legend.
const BELOW: f64 = 22.0;
const LEGEND: f64 = 15.0;

/// Colours for lines in the style sheet; the dashes differ from one use of a colour to the next.
const COLOURS: usize = 6;

/// The CPU of one subject over time.
struct Lines {
    title: String,
    /// The steps, numbered as in the chart.
    steps: String,
    /// Ends of the steps, in seconds.
    ends_s: Vec<f64>,
    processes: Vec<Process>,
}

struct Process {
    name: String,
    /// Seconds, and percent of one CPU until then.
    points: Vec<(f64, f64)>,
}

impl Process {
    /// Mean over the time, and greatest.
    fn summary(&self) -> (f64, f64) {
        let begins = std::iter::once(0.0).chain(self.points.iter().map(|(at_s, _)| *at_s));
        let area: f64 =
            begins.zip(&self.points).map(|(begin, (end, percent))| (end - begin) * percent).sum();
        let total = self.points.last().map_or(0.0, |(end, _)| *end);
        (area / total.max(1e-9), self.greatest())
    }

    fn greatest(&self) -> f64 {
        self.points.iter().map(|(_, percent)| *percent).fold(0.0, f64::max)
    }
}

/// The section, if CPU was sampled over time.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let lines: Vec<Lines> =
        view.results.subjects.iter().filter_map(|subject| Lines::of(view, subject)).collect();
    let mut rows = Vec::new();
    for (subject, process) in
        lines.iter().flat_map(|it| it.processes.iter().map(move |process| (&it.title, process)))
    {
        let (mean, peak) = process.summary();
        let cells = [mean, peak].map(units::significant);
        rows.push(row(format!("{subject}, {}", process.name), cells));
    }
    let caption = "CPU over time, percent of one CPU, all steps of the first round";
    let table = Table::new(caption, &["mean", "greatest"], rows);
    let charts: Vec<Drawing> = lines.iter().map(Lines::drawn).collect();
    let has_any = !charts.is_empty();
    let blocks = vec![Block::Charts(charts), Block::Table(table)];
    has_any.then(|| document::section("cpu", "CPU over time", blocks))
}

impl Lines {
    /// Those of a subject in its first round with any; `None` if it has none.
    fn of(view: &View<'_>, subject: &SubjectInfo) -> Option<Lines> {
        let mut lines = Lines {
            title: subject.name.clone(),
            steps: String::new(),
            ends_s: Vec::new(),
            processes: Vec::new(),
        };
        let mut steps = Vec::new();
        for measure in &view.results.measures {
            let cell = view.index.cell(&measure.id, &subject.name);
            let samples = cell.iter().flat_map(|cell| cell.measured());
            let Some(trace) = samples.filter_map(|sample| sample.cpu_trace.as_ref()).next() else {
                continue;
            };
            lines.append(trace);
            steps.push(format!("{} {}", steps.len() + 1, label(measure, false)));
        }
        lines.steps = steps.join("; ");
        // So that a process has the same colour in most charts.
        lines.processes.sort_by(|one, other| one.name.cmp(&other.name));
        lines.thin();
        (!lines.processes.is_empty()).then_some(lines)
    }

    /// A step after those so far.
    fn append(&mut self, trace: &CpuTrace) {
        let begin_s = self.ends_s.last().copied().unwrap_or(0.0);
        let times = trace.at_s.iter().map(|at_s| begin_s + at_s);
        let times: Vec<f64> = times.filter(|at_s| at_s.is_finite()).collect();
        let Some(&end_s) = times.last() else { return };
        let mut known = Vec::new();
        for traced in &trace.processes {
            let name = format!("{} {}", traced.side, traced.process);
            let number = self.processes.iter().position(|process| process.name == name);
            let number = number.unwrap_or_else(|| {
                let points = vec![(begin_s, 0.0)];
                let points = if begin_s > 0.0 { points } else { Vec::new() };
                self.processes.push(Process { name, points });
                self.processes.len() - 1
            });
            let percents = traced.cpus.iter().map(|cpus| (cpus * 100.0).clamp(0.0, 1e6));
            self.processes[number].points.extend(times.iter().copied().zip(percents));
            known.push(number);
        }
        for (number, process) in self.processes.iter_mut().enumerate() {
            if !known.contains(&number) {
                process.points.push((end_s, 0.0));
            }
        }
        self.ends_s.push(end_s);
    }

    /// Means of equal periods, if there are more points than a chart shows.
    fn thin(&mut self) {
        let end_s = self.ends_s.last().copied().unwrap_or(0.0);
        for process in self.processes.iter_mut().filter(|it| it.points.len() > POINTS) {
            let period = end_s / POINTS as f64;
            let mut thinned: Vec<(f64, f64)> = Vec::new();
            let (mut begin, mut from, mut area) = (0.0, 0.0, 0.0);
            for &(at_s, percent) in &process.points {
                area += (at_s - begin) * percent;
                begin = at_s;
                if at_s - from >= period || at_s >= end_s {
                    thinned.push((at_s, area / (at_s - from).max(1e-9)));
                    (from, area) = (at_s, 0.0);
                }
            }
            process.points = thinned;
        }
    }

    fn drawn(&self) -> Drawing {
        let height = BOTTOM + BELOW + self.processes.len() as f64 * LEGEND + 4.0;
        let greatest = self.processes.iter().map(Process::greatest).fold(1.0, f64::max);
        let end_s = self.ends_s.last().copied().unwrap_or(1.0).max(1e-3);
        let x = |at_s: f64| n(LEFT + (RIGHT - LEFT) * (at_s / end_s).clamp(0.0, 1.0));
        let y = |percent: f64| n(BOTTOM - (BOTTOM - TOP) * (percent / greatest).clamp(0.0, 1.0));
        let described = self.processes.iter().map(|process| {
            let (mean, peak) = process.summary();
            let shown = [mean, peak].map(units::significant);
            format!("{} {} % on average, {} % at most", process.name, shown[0], shown[1])
        });
        let described = described.collect::<Vec<_>>().join("; ");
        let begins = std::iter::once(0.0).chain(self.ends_s.iter().copied());
        let marks = html! {
            @for tick in ticks(greatest) {
                line.grid x1=(n(LEFT)) x2=(n(RIGHT)) y1=(y(tick)) y2=(y(tick)) {}
                text.tick x=(n(LEFT - 4.0)) y=(y(tick)) dy="3" text-anchor="end" { (tick_text(tick)) " %" }
            }
            @for tick in ticks(end_s) {
                text.tick x=(x(tick)) y=(n(BOTTOM + 13.0)) text-anchor="middle" {
                    (tick_text(tick)) " s"
                }
            }
            @for (step, (begin, end)) in begins.zip(&self.ends_s).enumerate() {
                line.step x1=(x(*end)) x2=(x(*end)) y1=(n(TOP - 10.0)) y2=(n(BOTTOM)) {}
                text.tick x=(x((begin + end) / 2.0)) y=(n(TOP - 4.0)) text-anchor="middle" {
                    (step + 1)
                }
            }
            @for (nth, process) in self.processes.iter().enumerate() {
                @let class = line_class(nth);
                @let points: Vec<String> = process
                    .points
                    .iter()
                    .map(|(at_s, percent)| format!("{},{}", x(*at_s), y(*percent)))
                    .collect();
                @let at = BOTTOM + BELOW + nth as f64 * LEGEND + 8.0;
                polyline class=(class) points=(points.join(" ")) {}
                line class=(class) x1=(n(LEFT)) x2=(n(LEFT + 26.0)) y1=(n(at)) y2=(n(at)) {}
                text x=(n(LEFT + 32.0)) y=(n(at + 4.0)) { (process.name) }
            }
        };
        let name = format!("CPU of {} over time", self.title);
        let (title, caption) = (self.title.clone(), self.steps.clone());
        Drawing { name, title, caption, described, height, marks }
    }
}

/// Colour and dashes of a line.
fn line_class(nth: usize) -> String {
    let colour = match nth % (COLOURS + 1) {
        0 => "ours".to_owned(),
        nth => format!("peer{nth}"),
    };
    let dashes = if nth.is_multiple_of(2) { "" } else { " dashed" };
    format!("line {colour}{dashes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::results::ProcessTrace;

    fn trace(process: &str, at_s: &[f64], cpus: &[f64]) -> CpuTrace {
        let processes = vec![ProcessTrace {
            side: "client".to_owned(),
            process: process.to_owned(),
            cpus: cpus.to_vec(),
        }];
        CpuTrace { at_s: at_s.to_vec(), processes }
    }

    fn lines() -> Lines {
        let (title, steps) = ("sshfs".to_owned(), String::new());
        Lines { title, steps, ends_s: Vec::new(), processes: Vec::new() }
    }

    #[test]
    fn steps_follow_each_other_and_an_absent_process_uses_nothing() {
        let mut lines = lines();
        lines.append(&trace("ssh", &[1.0, 2.0], &[0.5, 1.0]));
        lines.append(&trace("sftp", &[2.0], &[0.25]));
        assert_eq!(lines.ends_s, [2.0, 4.0]);
        let [ssh, sftp] = &lines.processes[..] else { panic!("two processes") };
        assert_eq!(ssh.points, [(1.0, 50.0), (2.0, 100.0), (4.0, 0.0)]);
        assert_eq!(sftp.points, [(2.0, 0.0), (4.0, 25.0)]);
        assert_eq!(ssh.summary(), (37.5, 100.0));
        assert_eq!(sftp.summary(), (12.5, 25.0));
    }

    #[test]
    fn many_points_become_means_with_the_same_cpu() {
        let mut lines = lines();
        let count = 10 * POINTS;
        let at_s: Vec<f64> = (1..=count).map(|nth| nth as f64 * 0.25).collect();
        let cpus: Vec<f64> = (0..count).map(|nth| f64::from(u8::from(nth % 2 == 0))).collect();
        lines.append(&trace("ssh", &at_s, &cpus));
        let (mean, _) = lines.processes[0].summary();
        lines.thin();
        let points = lines.processes[0].points.len();
        assert!((POINTS / 2..=POINTS + 1).contains(&points), "{points}");
        assert!((lines.processes[0].summary().0 - mean).abs() < 0.5);
    }
}
