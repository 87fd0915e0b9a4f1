//! What happens at the end of a scope, also if its future is dropped.

/// Calls the function when it is dropped.
#[must_use]
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
