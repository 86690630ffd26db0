//! The paper's two machines.

use std::path::Path;

use crate::description::Description;

/// Names of the descriptions that are part of the program.
pub const NAMES: [&str; 2] = ["myrinet", "rhinet"];

const TEXTS: [&str; 2] = [
    include_str!("../descriptions/myrinet.toml"),
    include_str!("../descriptions/rhinet.toml"),
];

/// The text of a shipped description: a file to begin one's own with.
pub fn text(name: &str) -> Option<&'static str> {
    let place = NAMES.iter().position(|known| *known == name)?;
    Some(TEXTS[place])
}

/// A shipped description.
pub fn named(name: &str) -> Option<Description> {
    let text = text(name)?;
    Some(Description::parse(text, Path::new(name)).expect("its test reads it"))
}
