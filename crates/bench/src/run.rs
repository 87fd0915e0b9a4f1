//! The run itself: who is measured when.
