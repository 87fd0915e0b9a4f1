//! The rules of a union, each a test over fault-injecting remotes.

mod attributes;
mod creating;
mod identities;
mod kit;
mod listing;
mod open_files;
mod places;
mod presence;
mod removing;
mod renaming;
mod runtime;
mod searching;
#[path = "../kit/through.rs"]
mod through;
mod watching;
