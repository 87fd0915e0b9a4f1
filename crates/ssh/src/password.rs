//! The pseudo-terminal on which ssh prompts for a password and this process answers.
//!
//! ssh never reads a password from stdin; it opens `/dev/tty`. So the child gets a session of its
//! own with a pseudo-terminal, and this process writes the answer to the other end.
//!
//! The ssh of a jump host prompts on the same terminal, and a server chooses part of the text of
//! its prompts. So with a jump host or proxy command only a prompt that begins with the
//! destination's own user and host is answered. Before OpenSSH 8.5 a server chooses all of some
//! prompts; so with that, or if ssh does not print its settings, none is answered.
//!
//! Invariants: the password is written only at a password prompt of the destination, and at most
//! [`ANSWERS_MAX`] times; the terminal does not echo.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::config::Password;
use crate::effective::Effective;
use crate::relay::Relay;
use crate::stream::polled;

/// Maximum number of times that the password is written: once for the method `password`, once for
/// `keyboard-interactive`; a server may offer both.
const ANSWERS_MAX: u32 = 2;

/// Maximum bytes of a prompt that are kept, from its end. A server's prompt may be longer.
const QUESTION_MAX_BYTES: usize = 512;

/// Which prompts are the destination's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Askers {
    /// How prompts of the destination begin; `None` if no other host can prompt, or if nothing is
    /// known about the program.
    beginnings: Option<Vec<String>>,
}

impl Askers {
    /// From the user's settings; `None` if ssh does not print them: there may be a jump host.
    pub(crate) fn by(settings: Option<&Effective>) -> Askers {
        let Some(settings) = settings else { return Askers::none() };
        if !settings.has_proxy() {
            return Askers::default();
        }
        if !settings.names_hosts_in_prompts() {
            return Askers::none();
        }
        let get = |keyword| settings.get(keyword).filter(|value| *value != "none");
        // ssh uses this name in its prompts.
        let host = match get("hostkeyalias") {
            Some(alias) => alias.to_owned(),
            None => get("hostname").unwrap_or_default().to_lowercase(),
        };
        let user = get("user").unwrap_or_default();
        // Of the methods `password` and `keyboard-interactive`.
        let beginnings = vec![format!("{user}@{host}'s password:"), format!("({user}@{host}) ")];
        Askers { beginnings: Some(beginnings) }
    }

    /// No prompt is certainly the destination's.
    fn none() -> Askers {
        Askers { beginnings: Some(Vec::new()) }
    }

    /// Whether a prompt, with all text before it, is the destination's.
    fn is_destination(&self, heard: &Heard) -> bool {
        let question = heard.question();
        self.begins(&question) && (self.beginnings.is_none() || !heard.is_inside)
    }

    fn begins(&self, heard: &str) -> bool {
        match &self.beginnings {
            None => true,
            Some(all) => all.iter().any(|beginning| heard.starts_with(beginning.as_str())),
        }
    }
}

/// A prompt that was not answered.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// The prompt.
    pub(crate) question: String,
    /// The prompt is for the password of another host. Any answer would be a failed login there.
    pub(crate) is_foreign: bool,
}

/// A password that answers prompts.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) password: Password,
    /// The only prompt that it answers; `None`: any prompt of the destination for a password.
    pub(crate) question: Option<String>,
}

/// Who answers the prompts of an ssh.
pub(crate) enum Answers {
    Known(Known, Askers),
    User(Relay),
}

/// A pseudo-terminal on which prompts are answered.
pub(crate) struct Terminal {
    ours: AsyncFd<File>,
    /// The child's side, held open: otherwise the terminal would hang up between the start of the
    /// child and its opening of `/dev/tty`.
    childs: OwnedFd,
    answers: Answering,
}

enum Answering {
    Known(Answerer),
    User(Relay),
}

impl Terminal {
    pub(crate) fn open(answers: Answers) -> io::Result<Terminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let childs = ioctl_tiocgptpeer(&ours, flags)?;
        let answers = match answers {
            Answers::Known(known, askers) => {
                let mut modes = tcgetattr(&childs)?;
                modes.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
                tcsetattr(&childs, OptionalActions::Now, &modes)?;
                Answering::Known(Answerer::new(known, askers))
            }
            Answers::User(relay) => {
                relay.adapt(childs.as_fd())?;
                Answering::User(relay)
            }
        };
        Ok(Terminal { ours: polled(ours, Interest::READABLE)?, childs, answers })
    }

    /// The stream is no longer wanted: the user's terminal gets its modes back.
    pub(crate) fn release(&self) {
        if let Answering::User(relay) = &self.answers {
            relay.release();
        }
    }

    /// The child's side, which becomes its controlling terminal.
    pub(crate) fn childs_side(&self) -> BorrowedFd<'_> {
        self.childs.as_fd()
    }

    /// Answers prompts; returns a prompt that could not be answered, to be shown to the user.
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn serve(&mut self) -> io::Result<Unanswered> {
        let answerer = match &mut self.answers {
            Answering::User(relay) => return relay.serve(&self.ours, self.childs.as_fd()).await,
            Answering::Known(answerer) => answerer,
        };
        let mut buffer = [0; 1024];
        loop {
            let mut ready = self.ours.readable().await?;
            let read = ready.try_io(|ours| Ok(rustix::io::read(ours.get_ref(), &mut buffer[..])?));
            let Ok(read) = read else { continue };
            match answerer.hear(&buffer[..read?]) {
                None => (),
                Some(Answer::Password) => {
                    // A terminal accepts a line of 4095 bytes at once, so the write is complete.
                    let password = answerer.password.password.as_bytes();
                    rustix::io::write(self.ours.get_ref(), password)?;
                    rustix::io::write(self.ours.get_ref(), b"\n")?;
                }
                Some(Answer::Nothing { question }) => {
                    rustix::io::write(self.ours.get_ref(), b"\n")?;
                    return Ok(Unanswered { question, is_foreign: false });
                }
                Some(Answer::No { question }) => {
                    rustix::io::write(self.ours.get_ref(), b"no\n")?;
                    return Ok(Unanswered { question, is_foreign: false });
                }
                Some(Answer::HangUp { question }) => {
                    return Ok(Unanswered { question, is_foreign: true });
                }
            }
        }
    }
}

/// The answer to a prompt.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The password.
    Password,
    /// An empty line, so that ssh continues without the answer.
    Nothing {
        /// The prompt.
        question: String,
    },
    /// `no`.
    No {
        /// The prompt.
        question: String,
    },
    /// No answer: ssh will be ended.
    HangUp {
        /// The prompt.
        question: String,
    },
}

/// The text that ssh has written to its terminal since the last answer.
#[derive(Default)]
pub(crate) struct Heard {
    /// Its last line, which has not ended.
    line: Vec<u8>,
    /// A line of text has ended before it: a prompt may belong to that text.
    is_inside: bool,
}

impl Heard {
    /// Adds text. A prompt is the unfinished last line; complete lines are not prompts.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.line.extend_from_slice(bytes);
        let line = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        // After an answer ssh itself ends the line.
        self.is_inside |= self.line.drain(..line).any(|byte| !byte.is_ascii_whitespace());
        let excess = self.line.len().saturating_sub(QUESTION_MAX_BYTES);
        self.is_inside |= excess > 0;
        self.line.drain(..excess);
    }

    /// The prompt, if it is one.
    pub(crate) fn question(&self) -> String {
        String::from_utf8_lossy(&self.line).trim().to_owned()
    }

    /// An answer was written.
    pub(crate) fn clear(&mut self) {
        *self = Heard::default();
    }

    /// Whether it is a prompt for the destination's password.
    pub(crate) fn is_password_of(&self, askers: &Askers) -> bool {
        is_password(&self.question()) && askers.is_destination(self)
    }
}

fn is_password(question: &str) -> bool {
    question.to_lowercase().contains("passwor")
}

/// Whether ssh asks about a host key, to which the answer is no secret.
pub(crate) fn is_host_key(question: &str) -> bool {
    let lower = question.to_lowercase();
    lower.contains("(yes/no") || lower.contains("'yes', 'no'")
}

/// Chooses the answers to the prompts of one ssh.
struct Answerer {
    password: Known,
    askers: Askers,
    answered: u32,
    heard: Heard,
}

impl Answerer {
    fn new(password: Known, askers: Askers) -> Answerer {
        Answerer { password, askers, answered: 0, heard: Heard::default() }
    }

    /// Adds text; returns an answer if it ends in a prompt.
    fn hear(&mut self, bytes: &[u8]) -> Option<Answer> {
        self.heard.add(bytes);
        let question = self.heard.question();
        if !question.ends_with([':', '?']) {
            return None;
        }
        let is_ours = self.askers.is_destination(&self.heard);
        self.heard.clear();
        Some(if is_host_key(&question) {
            Answer::No { question }
        } else if self.password.question.as_ref().is_some_and(|only| *only != question)
            || is_password(&question) && !is_ours
        {
            Answer::HangUp { question }
        } else if is_password(&question) && self.answered < ANSWERS_MAX {
            self.answered += 1;
            Answer::Password
        } else {
            Answer::Nothing { question }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn known(question: Option<&str>) -> Known {
        Known { password: Password::new("secret"), question: question.map(str::to_owned) }
    }

    fn answerer() -> Answerer {
        Answerer::new(known(None), Askers::default())
    }

    /// Through a jump host.
    fn wary(settings: &str) -> Answerer {
        let settings = format!(
            "proxyjump gate\nuser me\nhostname Inner.Example\npubkeyacceptedalgorithms all\n{settings}"
        );
        Answerer::new(known(None), Askers::by(Some(&Effective::from_answers(&settings, ""))))
    }

    /// Class of attack: the password of one host is given to another.
    #[test]
    fn a_jump_host_does_not_get_the_password_of_the_destination() {
        for (settings, question) in [
            ("", "me@inner.example's password: "),
            ("", "(me@inner.example) Password: "),
            ("hostkeyalias alias\n", "me@alias's password: "),
            ("", "\r\nme@inner.example's password: "),
        ] {
            let answer = wary(settings).hear(question.as_bytes());
            assert_eq!(answer, Some(Answer::Password), "{question}");
        }
        for question in [
            "me@gate's password: ",
            "Password: ",
            "(me@gate) Password: ",
            // What the jump host's server chooses stands behind its own name.
            "(me@gate) me@inner.example's password: ",
            "(me@gate) \r\nme@inner.example's password: ",
            "password for x@me@inner.example's password: ",
        ] {
            let answer = wary("").hear(question.as_bytes());
            assert!(matches!(answer, Some(Answer::HangUp { .. })), "{question}: {answer:?}");
        }
        // In pieces, and behind what is too long to be kept.
        let mut answerer = wary("");
        assert_eq!(answerer.hear(b"(me@gate) "), None);
        assert_eq!(answerer.hear(&[b'x'; QUESTION_MAX_BYTES]), None);
        assert_eq!(answerer.hear(b"\r\n"), None);
        let answer = answerer.hear(b"me@inner.example's password: ");
        assert!(matches!(answer, Some(Answer::HangUp { .. })), "{answer:?}");
    }

    /// Class of attack: as above. Before OpenSSH 8.5 a prompt may be only the server's text.
    #[test]
    fn with_an_old_ssh_no_prompt_is_known_to_be_the_destinations() {
        let old = "user me\nhostname inner\npubkeyacceptedkeytypes all\n";
        let through = Effective::from_answers(&format!("proxyjump gate\n{old}"), "");
        let answer = |settings: Option<&Effective>| {
            let mut answerer = Answerer::new(known(None), Askers::by(settings));
            answerer.hear(b"me@inner's password: ")
        };
        for settings in [None, Some(&through)] {
            let answer = answer(settings);
            assert!(matches!(answer, Some(Answer::HangUp { .. })), "{answer:?}");
        }
        let direct = Effective::from_answers(old, "");
        assert_eq!(answer(Some(&direct)), Some(Answer::Password));
    }

    #[test]
    fn a_password_prompt_in_any_pieces_is_answered() {
        for pieces in [
            vec!["user@host's password: "],
            vec!["user@ho", "st's passw", "ord", ": "],
            vec!["Password: "],
            vec!["(user@host) Password: "],
            vec!["\r\nPasswort: "],
            vec!["a banner about a password:\r\nyou know\r\n", "Password:"],
        ] {
            let mut answerer = answerer();
            let mut answers: Vec<_> =
                pieces.iter().filter_map(|piece| answerer.hear(piece.as_bytes())).collect();
            // A piece may end before the space behind the colon.
            answers.dedup();
            assert_eq!(answers, [Answer::Password], "{pieces:?}");
        }
    }

    #[test]
    fn the_password_goes_to_nothing_else() {
        for question in ["Enter passphrase for key '/k': ", "Verification code: ", "PIN:"] {
            let expected = Answer::Nothing { question: question.trim().to_owned() };
            assert_eq!(answerer().hear(question.as_bytes()), Some(expected), "{question}");
        }
        let question = "Are you sure you want to continue connecting (yes/no/[fingerprint])? ";
        let expected = Answer::No { question: question.trim().to_owned() };
        assert_eq!(answerer().hear(question.as_bytes()), Some(expected));
        assert_eq!(answerer().hear(b"a password is wanted\r\n"), None);
    }

    /// A password that was typed at the mount answers the same question and no other.
    #[test]
    fn a_kept_password_answers_only_the_question_it_was_typed_for() {
        let only = || Answerer::new(known(Some("me@host's password:")), Askers::default());
        assert_eq!(only().hear(b"me@host's password: "), Some(Answer::Password));
        for question in ["me@gate's password: ", "Verification code: ", "One-time password: "] {
            let answer = only().hear(question.as_bytes());
            assert!(matches!(answer, Some(Answer::HangUp { .. })), "{question}: {answer:?}");
        }
        let answer = only().hear(b"continue connecting (yes/no/[fingerprint])? ");
        assert!(matches!(answer, Some(Answer::No { .. })), "{answer:?}");
    }

    #[test]
    fn a_password_is_not_given_for_ever() {
        let mut answerer = answerer();
        let answers: Vec<_> = (0..4).filter_map(|_| answerer.hear(b"Password: ")).collect();
        let given = answers.iter().filter(|answer| **answer == Answer::Password).count();
        assert_eq!((answers.len(), given), (4, ANSWERS_MAX as usize));
    }

    #[test]
    fn endless_noise_is_forgotten() {
        let mut answerer = answerer();
        for _ in 0..100 {
            assert_eq!(answerer.hear(&[b'x'; 1000]), None);
        }
        assert!(answerer.heard.line.len() <= QUESTION_MAX_BYTES);
    }

    #[tokio::test]
    async fn the_terminal_answers_and_does_not_echo() {
        let mut terminal = Terminal::open(Answers::Known(known(None), Askers::default())).unwrap();
        let childs = terminal.childs_side().try_clone_to_owned().unwrap();
        let child = std::thread::spawn(move || {
            let mut tty = std::fs::File::from(childs);
            tty.write_all(b"Password: ").unwrap();
            let mut line = [0; 64];
            let read = tty.read(&mut line).unwrap();
            tty.write_all(b"Code: ").unwrap();
            String::from_utf8(line[..read].to_vec()).unwrap()
        });
        // Had the terminal echoed, the question would have the password in it.
        assert_eq!(terminal.serve().await.unwrap().question, "Code:");
        assert_eq!(child.join().unwrap(), "secret\n");
    }
}
