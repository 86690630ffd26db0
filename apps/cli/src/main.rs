//! The tsumuji program.
fn main() {}
