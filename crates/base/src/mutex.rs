//! A mutex without poisoning.

use std::sync::{MutexGuard, PoisonError};

/// A [`std::sync::Mutex`] that stays usable after a panic of a thread that held it. The state that
/// it guards must be valid between any two of its changes.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits for the mutex and takes it until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, without taking the mutex: the caller is its only user.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
