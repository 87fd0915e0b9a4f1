//! A run for readers: HTML, Markdown, terminal.
