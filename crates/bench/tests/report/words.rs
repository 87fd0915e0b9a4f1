//! The report in a terminal and in Markdown.

use bench::report::{markdown, text};

use super::{fixture, hostile};

#[test]
fn a_terminal_of_100_columns_suffices() {
    for results in [fixture(), hostile()] {
        let text = text(&results);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        let control = |char: char| char.is_control() && char != '\n';
        assert!(!text.contains(control), "control characters reach the terminal");
    }
}

#[test]
fn the_terminal_shows_figures_failures_and_what_is_wrong() {
    let text = text(&fixture());
    let line = |part: &str| {
        let found = text.lines().find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("{part} in\n{text}"))
    };
    let write = line("write  ");
    assert!(write.contains("408 1.57×") && write.contains("≈0.986×"), "{write}");
    assert!(line("rewrite  ").contains("wrong data"));
    let fio = text.lines().find(|it| it.contains("write, direct") && it.contains(" 395 "));
    assert!(fio.is_some_and(|line| line.contains("failed")), "{text}");
    assert!(line("copy_out, cold").contains("4.73×"), "what is cached is said");
    assert!(line("- iozone.rewrite of rclone, round 4: wrong data").starts_with("  - "));
    assert!(line("ftp: vsftpd").contains("apt install"));
    for heading in ["summary (", "CPU seconds per GB", "greatest memory", "warnings"] {
        line(heading);
    }
}

#[test]
fn markdown_tables_are_whole_whatever_the_names() {
    for results in [fixture(), hostile()] {
        let text = markdown(&results);
        let mut columns = None;
        let mut rows = 0;
        for line in text.lines() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            rows += 1;
            let bars = line.replace("\\\\", "").replace("\\|", "").matches('|').count();
            assert_eq!(*columns.get_or_insert(bars), bars, "{line}");
        }
        assert!(rows > 60, "{rows}");
        assert!(!text.replace("\\<", "").contains('<'), "HTML gets through");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'));
    }
}

#[test]
fn markdown_has_the_figures_with_spread_and_ratio() {
    let text = markdown(&fixture());
    assert!(text.contains("| **408** (408–410) 1.57× | 261 (259–261) |"), "{text}");
    assert!(text.contains("**Warnings**") && text.contains("**Failures**"));
    assert!(text.contains("To repeat it:\n\n    sshoal bench --peers"), "{text}");
    assert!(text.contains("--out 'results of today'"), "words are quoted for the shell");
}
