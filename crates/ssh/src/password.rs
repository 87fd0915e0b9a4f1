//! The terminal on which ssh asks for a password, with this process at the other end.
//!
//! ssh never reads a password from stdin; it opens `/dev/tty`. So the child gets a session of its
//! own with a pseudo-terminal, and whoever reads the terminal's other end types the answer.
//!
//! The ssh of a jump host asks on the same terminal, and a server chooses some of the words of its
//! questions. So where the way leads through another program, only a question that begins with the
//! destination's own user and host is answered.
//!
//! Invariants: the password is written only in answer to a question for one, of the destination; it
//! is written [`ANSWERS_MAX`] times at most; the terminal does not echo.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::config::Password;
use crate::effective::Effective;
use crate::stream::polled;

/// How often the password is given: once to the method `password`, once to
/// `keyboard-interactive`, of which a server may offer both.
const ANSWERS_MAX: u32 = 2;

/// Most bytes of a question that are kept. A server's own may be longer, but its end counts.
const QUESTION_MAX_BYTES: usize = 512;

/// What is known of who may ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Askers {
    /// How questions of the destination begin; `None` where nobody else can ask, or nothing is known.
    beginnings: Option<[String; 2]>,
}

impl Askers {
    /// By the user's settings, where ssh tells them.
    pub(crate) fn by(effective: Option<&Effective>) -> Askers {
        let beginnings = effective.filter(|settings| settings.has_proxy()).map(|settings| {
            let get = |keyword| settings.get(keyword).filter(|value| *value != "none");
            let user = get("user").unwrap_or_default();
            // As ssh chooses it for its questions.
            let host = match get("hostkeyalias") {
                Some(alias) => alias.to_owned(),
                None => get("hostname").unwrap_or_default().to_lowercase(),
            };
            // Of the method `password`, and of `keyboard-interactive` since OpenSSH 8.5; an older
            // one has the server's words alone there.
            [format!("{user}@{host}'s password:"), format!("({user}@{host}) ")]
        });
        Askers { beginnings }
    }

    /// Whether a question is the destination's, with all that was heard before it.
    fn is_destination(&self, heard: &str) -> bool {
        match &self.beginnings {
            None => true,
            Some(all) => all.iter().any(|beginning| heard.starts_with(beginning.as_str())),
        }
    }
}

/// A question that was not answered.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// The question.
    pub(crate) question: String,
    /// It is for the password of another host, for which there is none: whatever is answered is a
    /// failed login there.
    pub(crate) is_foreign: bool,
}

/// A pseudo-terminal that answers.
pub(crate) struct Terminal {
    ours: AsyncFd<File>,
    /// The child's side is held open, or the terminal would be gone for good between the child's
    /// start and its opening of `/dev/tty`.
    childs: OwnedFd,
    answerer: Answerer,
}

impl Terminal {
    pub(crate) fn open(password: Password, askers: Askers) -> io::Result<Terminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let childs = ioctl_tiocgptpeer(&ours, flags)?;
        let mut modes = tcgetattr(&childs)?;
        modes.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(&childs, OptionalActions::Now, &modes)?;
        Ok(Terminal {
            ours: polled(ours, Interest::READABLE)?,
            childs,
            answerer: Answerer::new(password, askers),
        })
    }

    /// The side that becomes the child's controlling terminal.
    pub(crate) fn childs_side(&self) -> BorrowedFd<'_> {
        self.childs.as_fd()
    }

    /// Answers what is asked; returns what could not be answered, for the user to see.
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn serve(&mut self) -> io::Result<Unanswered> {
        let mut buffer = [0; 1024];
        loop {
            let mut ready = self.ours.readable().await?;
            let read = ready.try_io(|ours| Ok(rustix::io::read(ours.get_ref(), &mut buffer[..])?));
            let Ok(read) = read else { continue };
            match self.answerer.hear(&buffer[..read?]) {
                None => (),
                Some(Answer::Password) => {
                    // A terminal takes a line of 4095 bytes at once, so this is never cut.
                    rustix::io::write(self.ours.get_ref(), self.answerer.password.as_bytes())?;
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

/// What to type.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The password.
    Password,
    /// An empty line, so that ssh goes on without whatever it wanted.
    Nothing {
        /// What was asked.
        question: String,
    },
    /// `no`.
    No {
        /// What was asked.
        question: String,
    },
    /// Nothing at all: ssh is to end.
    HangUp {
        /// What was asked.
        question: String,
    },
}

/// Reads what ssh writes to its terminal.
struct Answerer {
    password: Password,
    askers: Askers,
    answered: u32,
    /// What was heard since the last answer or line's end.
    heard: Vec<u8>,
    /// A line of words has ended since the last answer: a question behind it may be part of one.
    is_inside: bool,
}

impl Answerer {
    fn new(password: Password, askers: Askers) -> Answerer {
        Answerer { password, askers, answered: 0, heard: Vec::new(), is_inside: false }
    }

    /// Takes what was written; an answer when it ends in a question.
    fn hear(&mut self, bytes: &[u8]) -> Option<Answer> {
        self.heard.extend_from_slice(bytes);
        // A question waits at the end of its line; the lines before it are no questions.
        let line = self.heard.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        // Behind an answer ssh itself ends the line.
        self.is_inside |= self.heard.drain(..line).any(|byte| !byte.is_ascii_whitespace());
        let excess = self.heard.len().saturating_sub(QUESTION_MAX_BYTES);
        self.is_inside |= excess > 0;
        self.heard.drain(..excess);

        let heard = String::from_utf8_lossy(&self.heard);
        let question = heard.trim();
        let lower = question.to_lowercase();
        if !question.ends_with([':', '?']) {
            return None;
        }
        let is_password = lower.contains("passwor");
        let is_ours = self.askers.is_destination(question)
            && (self.askers.beginnings.is_none() || !self.is_inside);
        let answer = if lower.contains("(yes/no") || lower.contains("'yes', 'no'") {
            Answer::No { question: question.to_owned() }
        } else if is_password && !is_ours {
            Answer::HangUp { question: question.to_owned() }
        } else if is_password && self.answered < ANSWERS_MAX {
            self.answered += 1;
            Answer::Password
        } else {
            Answer::Nothing { question: question.to_owned() }
        };
        self.heard.clear();
        self.is_inside = false;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn answerer() -> Answerer {
        Answerer::new(Password::new("secret"), Askers::default())
    }

    /// Through a jump host.
    fn wary(settings: &str) -> Answerer {
        let settings = format!("proxyjump gate\nuser me\nhostname Inner.Example\n{settings}");
        let askers = Askers::by(Some(&Effective::from_answers(&settings, "")));
        Answerer::new(Password::new("secret"), askers)
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

    #[test]
    fn a_question_for_a_password_is_answered_however_it_is_cut() {
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
        assert!(answerer.heard.len() <= QUESTION_MAX_BYTES);
    }

    #[tokio::test]
    async fn the_terminal_answers_and_does_not_echo() {
        let mut terminal = Terminal::open(Password::new("secret"), Askers::default()).unwrap();
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
