//! The report in a terminal, in Markdown and as a page.

mod report {
    mod documentation;
    mod page;
    mod published;
    mod summaries;
    mod words;

    use bench::results::Results;

    /// A made-up run with all that a run can have: a control, failures of each kind, wrong data,
    /// latencies. It is of schema 1 and must stay readable.
    pub(crate) const FIXTURE: &str = include_str!("fixtures/results-1.json");

    pub(crate) fn fixture() -> Results {
        serde_json::from_str(FIXTURE).expect("the fixture is of the present schema")
    }

    /// The same run, with names and words that try to break out of where they are shown.
    pub(crate) fn hostile() -> Results {
        let text = FIXTURE
            .replace("\"rclone\"", r#""<img src=http://127.0.0.1:1/x onerror=alert(1)>""#)
            .replace("ls -lR", r#"\"><script src='http://127.0.0.1:1/'></script>|`*_\u001b[31m"#)
            .replace("vsftpd is not", r"</style></svg><b>\u0007\n| a | b |\n# vsftpd is not");
        serde_json::from_str(&text).expect("still a run")
    }
}
