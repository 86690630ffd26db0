//! Any bytes read as PETSc's binary files.
#![no_main]

#[path = "shared/files.rs"]
mod files;

use libfuzzer_sys::fuzz_target;
use tsumuji_solve::system::formats::Format;

fuzz_target!(|bytes: &[u8]| files::read(Format::Petsc, bytes));
