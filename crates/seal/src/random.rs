//! The kernel's randomness, the only one used here.

pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}

pub(crate) fn number() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
