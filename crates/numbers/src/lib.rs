//! Files of numbers: opened, decompressed and read within bounds; written whole or not at all.
//!
//! `solve`, `circuit` and `learn` read their formats by it, and know what the numbers mean. A [`Source`] is a file with its bounds, [`Lines`] are
//! those of a text, [`npy`] has NumPy's arrays. All of them take any bytes without panicking, allocate no more than the data or the file's length
//! justify, and answer bad input with a [`FileError`]: file, place, what is wrong. The command line and the solver write by [`replace`].

mod error;
mod lines;
pub mod memory;
pub mod npy;
mod replacement;
mod source;

pub use error::{FileError, Place, shown};
pub use lines::Lines;
pub use replacement::{replace, target_of};
pub use source::Source;
