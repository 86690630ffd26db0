//! Available memory, so that what cannot fit is refused before it is read or made.

/// Bytes the kernel could still give out without swapping; `None` where it does not say.
pub fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Bytes in readable units.
pub fn human(bytes: u128) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The available memory is known, and sizes are written in readable units.
    #[test]
    fn memory_is_known() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(human(17), "17 B");
        assert_eq!(human(1_500), "1.5 kB");
        assert_eq!(human(800_000_000), "800 MB");
        assert_eq!(human(12_345_000_000), "12 GB");
    }
}
