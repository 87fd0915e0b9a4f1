//! What the user sees while it runs.
