//! Automation for the repository.
fn main() {}
