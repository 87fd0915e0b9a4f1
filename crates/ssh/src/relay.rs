//! ssh's prompts on the user's terminal, passed on by this process, and the password typed there.
//!
//! ssh gets a pseudo-terminal, as with a known password. What it writes there is shown on the
//! user's terminal, and what the user types is passed to ssh; the line discipline of the
//! pseudo-terminal edits and echoes it. So this process sees the answer to each prompt. The answer
//! to the destination's own prompt for a password is kept once the login has succeeded, if no other
//! secret was needed for it.
//!
//! Invariants:
//! 1. The user's terminal has its usual modes unless a prompt is waiting or the login is in
//!    progress: they are restored by [`Keeper::succeeded`], by [`Relay::release`] and when the
//!    relay is dropped.
//! 2. What is typed without echo is only in locked memory ([`Secret`]) and in a buffer that is
//!    overwritten at once.
//! 3. A password that was refused is forgotten.

use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use base::Mutex;
use rustix::fs::OFlags;
use rustix::process::getpgrp;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp,
    tcsetattr,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::config::{PASSWORD_MAX_BYTES, Password};
use crate::modes::ChangedModes;
use crate::password::{Askers, Heard, Known, Unanswered, is_host_key};
use crate::secret::Secret;
use crate::stream::polled;

/// Whether further connections can answer the prompts that the first one had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordState {
    /// There was no prompt for a secret.
    Unneeded,
    /// The password is kept.
    Kept,
    /// The user has to type something again.
    Needed,
}

/// The password that was typed for one destination.
#[derive(Default)]
pub(crate) struct Keeper(Mutex<Keeping>);

#[derive(Default)]
struct Keeping {
    /// Typed for a login that has not succeeded yet.
    typed: Option<Known>,
    /// That login needed another answer, too, which is not kept.
    has_other: bool,
    kept: Option<Known>,
    /// How many passwords were kept.
    number: u64,
    is_needed: bool,
    /// The user's terminal, while it has other modes.
    terminal: Option<ChangedModes<File>>,
    /// Of the relay in progress.
    is_over: watch::Sender<bool>,
}

impl Keeper {
    pub(crate) fn state(&self) -> PasswordState {
        let keeping = self.0.lock();
        match (&keeping.kept, keeping.is_needed) {
            (Some(_), _) => PasswordState::Kept,
            (None, true) => PasswordState::Needed,
            (None, false) => PasswordState::Unneeded,
        }
    }

    /// The password for a login that begins, and its number for [`Keeper::refused`].
    pub(crate) fn kept(&self) -> (Option<Known>, u64) {
        let keeping = self.0.lock();
        (keeping.kept.clone(), keeping.number)
    }

    /// The user has answered a prompt; with `secret`, if it is the destination's password and to be
    /// kept.
    fn answered(&self, question: String, secret: Option<Secret>) {
        let mut keeping = self.0.lock();
        match secret {
            // After a wrong one ssh asks again, with the same words. Other words are for another
            // secret, such as a new password.
            Some(secret) => {
                let (password, question) = (Password::of(secret), Some(question));
                let is_other = keeping.typed.as_ref().is_some_and(|it| it.question != question);
                keeping.has_other |= is_other;
                keeping.typed = Some(Known { password, question });
            }
            None if is_host_key(&question) => {}
            None => keeping.has_other = true,
        }
    }

    /// A login has succeeded. The user's terminal has its usual modes when this returns.
    pub(crate) fn succeeded(&self) {
        let mut keeping = self.0.lock();
        let keeping = &mut *keeping;
        keeping.terminal = None;
        keeping.is_over.send_replace(true);
        let (typed, has_other) = (keeping.typed.take(), std::mem::take(&mut keeping.has_other));
        if has_other {
            keeping.is_needed = true;
        } else if typed.is_some() {
            keeping.kept = typed;
            keeping.number += 1;
        }
    }

    pub(crate) fn keep(&self, known: Known) {
        let mut keeping = self.0.lock();
        keeping.kept = Some(known);
        keeping.number += 1;
    }

    /// A login with the password of this number was refused: forgets it, but not one that was kept
    /// since. Returns whether there was one.
    pub(crate) fn refused(&self, number: u64) -> bool {
        let mut keeping = self.0.lock();
        if keeping.number != number {
            return false;
        }
        keeping.terminal = None;
        (keeping.typed, keeping.has_other) = (None, false);
        let was_kept = keeping.kept.take().is_some();
        keeping.is_needed |= was_kept;
        was_kept
    }
}

/// The user's terminal without echo. It delivers each byte at once; Ctrl-C is a signal, as before,
/// and Ctrl-\ and Ctrl-Z are none, since nothing could restore the modes.
fn prompting(modes: &mut Termios) {
    modes.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON);
    modes.special_codes[SpecialCodeIndex::VQUIT] = 0;
    modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
}

/// Passes prompts and answers on.
pub(crate) struct Relay {
    is_over: watch::Receiver<bool>,
    keeper: Arc<Keeper>,
    /// `None` when the login is over: the user's terminal is closed.
    talk: Option<Talk>,
}

/// Prompts and answers.
struct Talk {
    /// The user's terminal.
    user: AsyncFd<File>,
    keeper: Arc<Keeper>,
    keeps: bool,
    askers: Askers,
    heard: Heard,
    /// The line that is being typed without echo.
    line: Secret,
}

impl Relay {
    /// `None` if there is no terminal, or if this process is not in its foreground.
    pub(crate) fn open(keeper: &Arc<Keeper>, keeps: bool, askers: Askers) -> Option<Relay> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(flags).open("/dev/tty").ok()?;
        if tcgetpgrp(&file).ok()? != getpgrp() {
            return None;
        }
        let user = polled(file.into(), Interest::READABLE).ok()?;
        let keeping = keeper.0.lock();
        keeping.is_over.send_replace(false);
        let is_over = keeping.is_over.subscribe();
        drop(keeping);
        let line = Secret::with_room(PASSWORD_MAX_BYTES).ok()?;
        let (keeper, heard) = (keeper.clone(), Heard::default());
        let talk = Talk { user, keeper: keeper.clone(), keeps, askers, heard, line };
        Some(Relay { is_over, keeper, talk: Some(talk) })
    }

    /// Gives ssh's terminal the keys of the user's, which may be others than usual, and its
    /// characters.
    pub(crate) fn adapt(&self, childs: BorrowedFd<'_>) -> io::Result<()> {
        let Some(talk) = &self.talk else { return Ok(()) };
        let mut users = tcgetattr(talk.user.get_ref())?;
        prompting(&mut users);
        let mut modes = tcgetattr(childs)?;
        modes.special_codes = users.special_codes;
        modes.input_modes.set(InputModes::IUTF8, users.input_modes.contains(InputModes::IUTF8));
        Ok(tcsetattr(childs, OptionalActions::Now, &modes)?)
    }

    /// Restores the modes of the user's terminal.
    pub(crate) fn release(&self) {
        self.keeper.0.lock().terminal = None;
    }

    /// Passes on what ssh writes to `ours` and what the user types, until the login is over; then
    /// it never returns. `childs` is ssh's side of the pseudo-terminal. Dropping the future loses
    /// nothing.
    pub(crate) async fn serve(
        &mut self,
        ours: &AsyncFd<File>,
        childs: BorrowedFd<'_>,
    ) -> io::Result<Unanswered> {
        if let Some(talk) = &mut self.talk {
            tokio::select! {
                biased;
                () = ended(&mut self.is_over) => (),
                result = talk.pass_on(ours, childs) => result?,
            }
        }
        // All that was typed is forgotten, and the terminal is closed.
        self.talk = None;
        pending().await
    }
}

async fn ended(is_over: &mut watch::Receiver<bool>) {
    // The sender lives as long as the relay.
    let _ = is_over.wait_for(|is_over| *is_over).await;
}

/// The length of the next bytes.
async fn next(file: &AsyncFd<File>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = file.readable().await?;
        let read = ready.try_io(|file| Ok(rustix::io::read(file.get_ref(), &mut *buffer)?));
        if let Ok(read) = read {
            return read;
        }
    }
}

impl Talk {
    /// Returns when the user's terminal was closed.
    async fn pass_on(&mut self, ours: &AsyncFd<File>, childs: BorrowedFd<'_>) -> io::Result<()> {
        let (mut shown, mut typed) = ([0; 1024], [0; 1024]);
        loop {
            let is_prompting = self.keeper.0.lock().terminal.is_some();
            tokio::select! {
                biased;
                read = next(ours, &mut shown) => {
                    let read = read?;
                    self.show(&shown[..read])?;
                }
                read = next(&self.user, &mut typed), if is_prompting => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    let result = self.typed(&typed[..read], ours.get_ref(), childs);
                    typed.fill(0);
                    std::hint::black_box(&mut typed);
                    result?;
                }
            }
        }
    }

    /// Shows what ssh has written.
    fn show(&mut self, text: &[u8]) -> io::Result<()> {
        let mut keeping = self.keeper.0.lock();
        if keeping.terminal.is_none() && !*keeping.is_over.borrow() {
            let terminal = self.user.get_ref().try_clone()?;
            keeping.terminal = Some(ChangedModes::of(terminal, prompting)?);
        }
        drop(keeping);
        self.heard.add(text);
        // A terminal that is stopped (Ctrl-S) does not show it.
        let _ = rustix::io::write(self.user.get_ref(), text);
        Ok(())
    }

    /// Passes on what the user has typed.
    fn typed(&mut self, bytes: &[u8], ours: &File, childs: BorrowedFd<'_>) -> io::Result<()> {
        let modes = tcgetattr(childs)?;
        let echoes = modes.local_modes.contains(LocalModes::ECHO);
        let is_utf8 = modes.input_modes.contains(InputModes::IUTF8);
        for &byte in bytes {
            // Zero stands for no key.
            let is_key = |index| byte != 0 && byte == modes.special_codes[index];
            if matches!(byte, b'\n' | b'\r') {
                self.line_ended(echoes)?;
            } else if is_key(SpecialCodeIndex::VKILL) {
                self.line.clear();
            } else if is_key(SpecialCodeIndex::VERASE) && is_utf8 {
                self.line.erase();
            } else if is_key(SpecialCodeIndex::VERASE) {
                self.line.pop();
            } else if !echoes {
                self.line.push(byte);
            }
        }
        rustix::io::write(ours, bytes)?;
        Ok(())
    }

    fn line_ended(&mut self, echoes: bool) -> io::Result<()> {
        let question = self.heard.question();
        let is_password = !echoes && self.heard.is_password_of(&self.askers);
        self.heard.clear();
        let line = std::mem::replace(&mut self.line, Secret::with_room(PASSWORD_MAX_BYTES)?);
        self.keeper.answered(question, (is_password && self.keeps).then_some(line));
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effective::Effective;

    const OURS: &str = "me@inner's password:";

    fn typed(keeper: &Keeper, question: &str, text: &str) {
        let settings = "proxyjump gate\nuser me\nhostname inner\npubkeyacceptedalgorithms all\n";
        let settings = Effective::from_answers(settings, "");
        let mut heard = Heard::default();
        heard.add(question.as_bytes());
        let mut secret = Secret::with_room(100).unwrap();
        assert!(text.bytes().all(|byte| secret.push(byte)));
        let is_ours = heard.is_password_of(&Askers::by(Some(&settings)));
        keeper.answered(heard.question(), is_ours.then_some(secret));
    }

    #[test]
    fn a_password_is_kept_when_the_login_has_succeeded_and_until_it_is_refused() {
        let keeper = Keeper::default();
        typed(&keeper, "continue connecting (yes/no/[fingerprint])? ", "yes");
        typed(&keeper, OURS, "wrong");
        typed(&keeper, OURS, "right");
        let (before, number) = keeper.kept();
        assert!(before.is_none(), "not known to be right");
        keeper.succeeded();
        // Of a login that had begun before.
        assert!(!keeper.refused(number));
        let (kept, number) = keeper.kept();
        let kept = kept.unwrap();
        assert_eq!(
            (kept.password.as_bytes(), kept.question.as_deref()),
            (&b"right"[..], Some(OURS))
        );
        assert_eq!(keeper.state(), PasswordState::Kept);
        // Of a further session.
        keeper.succeeded();
        assert_eq!(keeper.state(), PasswordState::Kept);
        assert!(keeper.refused(number));
        assert_eq!(keeper.state(), PasswordState::Needed);
        assert!(keeper.kept().0.is_none() && !keeper.refused(number));
        keeper.keep(kept);
        assert_eq!(keeper.state(), PasswordState::Kept);
        // A further login with the former one.
        assert!(!keeper.refused(number) && keeper.state() == PasswordState::Kept);
        let (_, number) = keeper.kept();
        assert!(keeper.refused(number) && keeper.state() == PasswordState::Needed);
    }

    /// A server that lets a user log in only with a new password.
    #[test]
    fn a_changed_password_is_not_kept() {
        let keeper = Keeper::default();
        for question in [OURS, "Current password:", "New password:", "Retype new password:"] {
            keeper.answered(question.to_owned(), Some(Secret::with_room(1).unwrap()));
        }
        keeper.succeeded();
        assert_eq!(keeper.state(), PasswordState::Needed);
    }

    #[test]
    fn with_another_secret_nothing_is_kept() {
        for other in [
            "me@gate's password: ",
            "(me@gate) me@inner's password: ",
            "(me@inner) Verification code: ",
            "Enter passphrase for key '/k': ",
        ] {
            let keeper = Keeper::default();
            typed(&keeper, other, "other");
            typed(&keeper, OURS, "right");
            keeper.succeeded();
            assert_eq!(keeper.state(), PasswordState::Needed, "{other}");
        }
        let keeper = Keeper::default();
        keeper.succeeded();
        assert_eq!(keeper.state(), PasswordState::Unneeded);
    }
}
