//! What is between client and server: presets, and what a link is measured to be.
