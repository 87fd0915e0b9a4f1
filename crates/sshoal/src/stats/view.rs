//! The live view of `sshoal stats` on a terminal.
//!
//! A thread reads the counters, so a daemon that hangs does not block the keys; another waits for
//! signals. The terminal is restored at every end: by a key, a signal, a panic (ratatui's hook), an
//! error, and when no mount is left.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cli::signals::watch_end_signals;
use cli::{EXIT_FAILURE, EXIT_OK, printable};
use control::status::{MountStatus, State};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::interval::{HostInterval, Interval, percent};
use super::text::{milliseconds, state};
use super::{Seen, Watched};
use crate::quantity::duration;

/// Intervals that are kept for the graphs: the width of a large terminal.
const HISTORY: usize = 300;

/// How often keys and messages are checked.
const TICK: Duration = Duration::from_millis(50);

/// How long the view may take to end after a signal. crossterm 0.29 reads for ever from a terminal
/// that was closed, so then the process ends without it.
const END_LIMIT: Duration = Duration::from_millis(500);

/// What the threads report.
enum Message {
    Sample(usize, Seen),
    Signal(i32),
}

/// What is known of one mount.
#[derive(Default)]
struct Shown {
    name: String,
    status: Option<Box<MountStatus>>,
    history: VecDeque<Interval>,
    /// Why it does not answer, or has ended.
    trouble: Option<String>,
    has_ended: bool,
}

/// The whole view.
struct View {
    mounts: Vec<Shown>,
    selected: usize,
}

/// Shows the counters of these mounts until a key or a signal ends it, or no mount is left.
pub fn run(watched: Vec<Watched>, interval: Duration) -> anyhow::Result<ExitCode> {
    let names = watched.iter().map(|mount| mount.name.clone());
    let mounts = names.map(|name| Shown { name, ..Shown::default() }).collect();
    let mut view = View { mounts, selected: 0 };
    let (sender, messages) = channel();
    watch_signals(sender.clone())?;
    thread::spawn(move || sample(watched, interval, &sender));
    let mut terminal = ratatui::try_init()?;
    let ended = view.serve(&mut terminal, &messages);
    let restored = ratatui::try_restore();
    let code = ended?;
    restored?;
    for mount in view.mounts.iter().filter(|mount| mount.has_ended) {
        eprintln!("sshoal: {}: {}", mount.name, mount.trouble.as_deref().unwrap_or("ended"));
    }
    Ok(ExitCode::from(code))
}

/// Reads the counters of each mount until it has ended, or the view has.
fn sample(watched: Vec<Watched>, interval: Duration, sender: &Sender<Message>) {
    let mut watched: Vec<_> = watched.into_iter().enumerate().collect();
    while !watched.is_empty() {
        let began = Instant::now();
        watched.retain_mut(|(index, mount)| {
            let seen = mount.sample();
            let is_last = matches!(seen, Seen::Ended(_));
            sender.send(Message::Sample(*index, seen)).is_ok() && !is_last
        });
        thread::sleep(interval.saturating_sub(began.elapsed()));
    }
}

/// Reports signals that end the program. Ctrl-C is a key in the terminal's raw mode, but another
/// process may send SIGINT.
fn watch_signals(sender: Sender<Message>) -> std::io::Result<()> {
    watch_end_signals(move |number| {
        let _ = sender.send(Message::Signal(number));
        thread::sleep(END_LIMIT);
        let _ = ratatui::try_restore();
        std::process::exit(128 + number);
    })
}

impl View {
    /// Draws and reads keys. Returns the exit code.
    fn serve(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        messages: &Receiver<Message>,
    ) -> anyhow::Result<u8> {
        let mut is_changed = true;
        loop {
            loop {
                match messages.try_recv() {
                    Ok(Message::Signal(number)) => return Ok(128 + number as u8),
                    Ok(Message::Sample(index, seen)) => self.mounts[index].take(seen),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
                is_changed = true;
            }
            if self.mounts.iter().all(|mount| mount.has_ended) {
                return Ok(EXIT_FAILURE);
            }
            if std::mem::take(&mut is_changed) {
                terminal.draw(|frame| self.draw(frame))?;
            }
            if event::poll(TICK)? {
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => {
                        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                        match key.code {
                            KeyCode::Char('q') | KeyCode::Esc => return Ok(EXIT_OK),
                            KeyCode::Char('c' | 'd') if is_control => return Ok(EXIT_OK),
                            KeyCode::Tab | KeyCode::Right => self.select(1),
                            KeyCode::BackTab | KeyCode::Left => self.select(self.mounts.len() - 1),
                            _ => {}
                        }
                    }
                    _ => {}
                }
                // Also after the size of the terminal has changed.
                is_changed = true;
            }
        }
    }

    fn select(&mut self, forward: usize) {
        self.selected = (self.selected + forward) % self.mounts.len();
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let mount = &self.mounts[self.selected];
        let [title, graphs, tables, footer] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(12),
            Constraint::Min(4),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(mount), title);
        let keys = match self.mounts.len() {
            1 => " q quit",
            _ => " q quit   Tab next mount",
        };
        frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), footer);
        let Some(last) = mount.history.back() else {
            return frame.render_widget(Paragraph::new(" waiting for the first interval"), graphs);
        };
        draw_graphs(frame, graphs, mount, last);
        let [operations, right] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(tables);
        let rates = last.rates().len() as u16 + 2;
        let [caches, hosts] =
            Layout::vertical([Constraint::Length(rates), Constraint::Min(0)]).areas(right);
        frame.render_widget(operations_table(last), operations);
        frame.render_widget(caches_table(last), caches);
        frame.render_widget(hosts_table(last), hosts);
    }

    fn title(&self, mount: &Shown) -> Paragraph<'static> {
        let mut spans = vec![Span::styled(
            format!(" {} ", printable(&mount.name)),
            Style::new().add_modifier(Modifier::BOLD),
        )];
        if self.mounts.len() > 1 {
            spans.push(format!("({} of {}) ", self.selected + 1, self.mounts.len()).into());
        }
        if let Some(status) = &mount.status {
            let sources = status.sources.iter().map(|source| printable(&source.source));
            spans.push(
                format!(
                    "{}  for {}",
                    sources.collect::<Vec<_>>().join(" "),
                    duration(status.up_ms)
                )
                .into(),
            );
        }
        if let Some(trouble) = &mount.trouble {
            spans.push(Span::styled(format!("  {trouble}"), Style::new().fg(Color::Red)));
        }
        Paragraph::new(Line::from(spans))
    }
}

impl Shown {
    fn take(&mut self, seen: Seen) {
        match seen {
            Seen::First => {}
            Seen::Interval(interval, status) => {
                if self.history.len() == HISTORY {
                    self.history.pop_front();
                }
                self.history.push_back(*interval);
                self.status = Some(status);
                self.trouble = None;
            }
            Seen::Silent(why) => self.trouble = Some(why),
            Seen::Ended(why) => (self.trouble, self.has_ended) = (Some(why), true),
        }
    }
}

/// A graph's title, its latest value in words, its color, and its value in an interval.
type Graph<'a> = (&'a str, String, Color, &'a dyn Fn(&Interval) -> f64);

fn draw_graphs(frame: &mut Frame<'_>, area: Rect, mount: &Shown, last: &Interval) {
    let mega = |bytes: u64| format!("{:.1} MB/s", last.per_second(bytes) / 1e6);
    let (requests, received, sent) = last.traffic();
    let latency = &last.all.latency;
    let quantile =
        |it: &Interval, part| it.all.latency.quantile(part).map_or(0.0, |t| t.as_secs_f64() * 1e6);
    let (p50, p99) = (|it: &Interval| quantile(it, 0.5), |it: &Interval| quantile(it, 0.99));
    let graphs: [Graph<'_>; 8] = [
        ("operations", format!("{:.0}/s", last.per_second(latency.count())), Color::Green, &|it| {
            it.per_second(it.all.latency.count())
        }),
        ("read", mega(last.read_bytes), Color::Green, &|it| it.per_second(it.read_bytes)),
        ("latency p50", format!("{} ms", milliseconds(latency, 0.5)), Color::Yellow, &p50),
        ("written", mega(last.written_bytes), Color::Green, &|it| it.per_second(it.written_bytes)),
        ("latency p99", format!("{} ms", milliseconds(latency, 0.99)), Color::Yellow, &p99),
        ("from servers", mega(received), Color::Cyan, &|it| it.per_second(it.traffic().1)),
        ("requests", format!("{:.0}/s", last.per_second(requests)), Color::Cyan, &|it| {
            it.per_second(it.traffic().0)
        }),
        ("to servers", mega(sent), Color::Cyan, &|it| it.per_second(it.traffic().2)),
    ];
    let rows: [Rect; 4] = Layout::vertical([Constraint::Length(3); 4]).areas(area);
    for (row, pair) in rows.into_iter().zip(graphs.chunks(2)) {
        let halves: [Rect; 2] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(row);
        for (half, (title, value, color, number)) in halves.into_iter().zip(pair) {
            let width = usize::from(half.width);
            let from = mount.history.len().saturating_sub(width);
            let values = mount.history.range(from..).map(|it| number(it).round() as u64);
            let block = Block::new().title(format!(" {title} {value}"));
            let graph = Sparkline::default().data(values.collect::<Vec<_>>()).block(block);
            frame.render_widget(graph.style(Style::new().fg(*color)), half);
        }
    }
}

/// A table whose first column has names, and whose others have numbers of these widths.
fn table(
    title: String,
    columns: &[(&'static str, u16)],
    rows: Vec<(String, Vec<String>, Color)>,
) -> Table<'static> {
    let numbers = |cells: Vec<String>| {
        let aligned = cells.into_iter().map(|cell| Line::from(cell).right_aligned());
        aligned.collect::<Vec<_>>()
    };
    let row = |name: String, cells, style| {
        Row::new([vec![Line::from(name)], numbers(cells)].concat()).style(style)
    };
    let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let header = row(String::new(), titles, Style::new().fg(Color::DarkGray));
    let rows =
        rows.into_iter().map(|(name, cells, color)| row(name, cells, Style::new().fg(color)));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let widths = std::iter::once(Constraint::Min(8)).chain(widths).collect::<Vec<_>>();
    Table::new(rows.collect::<Vec<_>>(), widths)
        .header(header)
        .block(Block::bordered().title(title))
}

/// The operations, the one that took most time first.
fn operations_table(last: &Interval) -> Table<'static> {
    let mut operations: Vec<_> = last.operations.iter().collect();
    operations.sort_by_key(|(_, it)| std::cmp::Reverse(it.latency.nanos));
    let row = |(name, it): (&String, &control::counters::Operation)| {
        let cells = vec![
            format!("{:.0}", last.per_second(it.latency.count())),
            milliseconds(&it.latency, 0.5),
            milliseconds(&it.latency, 0.99),
            format!("{:.0}", last.per_second(it.errors)),
        ];
        (printable(name), cells, Color::Reset)
    };
    let columns = [("/s", 6), ("p50 ms", 6), ("p99 ms", 6), ("err/s", 5)];
    let title = format!(" operations, {} in flight ", last.in_flight);
    table(title, &columns, operations.into_iter().map(row).collect())
}

fn caches_table(last: &Interval) -> Table<'static> {
    let rows = last.rates().into_iter().map(|(name, rate)| {
        let part = percent(rate);
        let bar = "▆".repeat((part.unwrap_or(0.0) / 5.0).round() as usize);
        let shown = part.map_or("-".to_owned(), |part| format!("{part:.0} %"));
        Row::new([name.to_owned(), format!("{shown:>5}"), bar])
    });
    let widths = [Constraint::Length(7), Constraint::Length(6), Constraint::Min(20)];
    Table::new(rows, widths).block(Block::bordered().title(" answered without waiting "))
}

fn hosts_table(last: &Interval) -> Table<'static> {
    let row = |host: &HostInterval| {
        let name = match host.first().server.as_deref() {
            Some("helper") => format!("{} (helper)", printable(&host.status.host)),
            _ => printable(&host.status.host),
        };
        let (name, color) = match host.status.state {
            State::Connected => (name, Color::Reset),
            other => (format!("{name} {}", state(other)), Color::Red),
        };
        let cells = vec![
            format!("{:.0}", last.per_second(host.requests())),
            format!("{:.1}", last.per_second(host.counters.received_bytes) / 1e6),
            format!("{:.1}", last.per_second(host.counters.sent_bytes) / 1e6),
            milliseconds(&host.counters.small_latency, 0.5),
        ];
        (name, cells, color)
    };
    let columns = [("req/s", 6), ("MB/s in", 7), ("out", 5), ("p50 ms", 6)];
    let title = format!(" hosts, {} waiting ", last.waiting_calls);
    table(title, &columns, last.hosts.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::super::interval::tests::sample;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let mut mount = Shown { name: "/home/ada/mnt".into(), ..Shown::default() };
        for times in 1..=9 {
            let (before, now) = (sample(times * times), sample((times + 1) * (times + 1)));
            let interval = Interval::new(Some(&before), &now, 1.0);
            mount.take(Seen::Interval(Box::new(interval), Box::new(now)));
        }
        View { mounts: vec![mount], selected: 0 }
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_shown_in_80_columns() {
        let text = drawn(&view(), 80, 30);
        for words in [
            "/home/ada/mnt alpha:/x  for 1 min 40 s",
            "operations 38/s",
            "read 38.0 MB/s",
            "latency p99 ",
            "from servers 19.0 MB/s",
            "requests 57/s",
            "operations, 2 in flight",
            "lookup   90 %",
            "attr        -",
            "alpha          57    19.0   0.0   0.59",
            "read            19   4.72   5.23     0",
            "q quit",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(text.contains('█') && text.contains('▂'), "{text}");
    }

    #[test]
    fn a_mount_that_has_ended_is_not_queried_again() {
        let mount = mountinfo::Mount {
            device: mountinfo::Device { major: 0, minor: u32::MAX },
            root: "/".into(),
            mountpoint: "/mnt".into(),
            kind: "fuse.sshoal".into(),
            source: "host:".into(),
            owner: None,
            options: "".into(),
        };
        let (sender, messages) = channel();
        let watched = vec![Watched::new(mount)];
        thread::spawn(move || super::sample(watched, Duration::from_millis(1), &sender));
        let seen: Vec<Message> = messages.iter().take(2).collect();
        assert!(matches!(seen[..], [Message::Sample(0, Seen::Ended(_))]));
    }

    #[test]
    fn any_size_and_any_state_can_be_drawn() {
        let mut view = view();
        for (width, height) in [(1, 1), (20, 5), (80, 24), (500, 200)] {
            drawn(&view, width, height);
        }
        view.mounts[0].take(Seen::Silent("no reply within 2 s".into()));
        assert!(drawn(&view, 80, 24).contains("no reply within 2 s"));
        view.mounts.push(Shown { name: "/b\u{1b}".into(), ..Shown::default() });
        view.select(1);
        let text = drawn(&view, 80, 24);
        assert!(text.contains("/b\\u{1b} (2 of 2)") && text.contains("first interval"), "{text}");
        view.select(1);
        assert!(drawn(&view, 80, 24).contains("/home/ada/mnt (1 of 2)"));
    }
}
