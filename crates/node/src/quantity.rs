//! Quantities as people write them: one parser for the program's flags and the C library's options.

/// Parses `64`, `64K`, `64KiB`, `1M`, `2g`: bytes, in powers of 1024.
pub fn bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit()); // no sign is accepted
    digits
        .parse::<usize>()
        .ok()
        .filter(|_| is_number)
        .and_then(|number| number.checked_mul(unit))
}

/// Parses `0.2` or `20%`: a loss, from 0 to below 1. The error says what is accepted.
pub fn loss(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    match number.parse::<f64>().map(|number| number / whole) {
        Ok(loss) if (0.0..1.0).contains(&loss) => Ok(loss),
        _ => Err("accepted are fractions from 0 to below 1, for example 0.2 or 20%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fractions and percentages are read alike, and nothing that is no loss.
    #[test]
    fn losses_are_read() {
        for (text, wanted) in [("0", 0.0), ("0.2", 0.2), ("20%", 0.2), ("99.5%", 0.995)] {
            assert_eq!(loss(text), Ok(wanted), "{text}");
        }
        for text in [
            "", "%", "1", "100%", "-1%", "20", "0.2.1", "nan", "inf%", "20 %%",
        ] {
            assert!(loss(text).is_err(), "{text}");
        }
    }

    /// All usual spellings are read, and nothing else; sizes that do not fit `usize` are refused.
    #[test]
    fn sizes_are_read() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("65536", Some(65536)),
            ("64K", Some(65536)),
            ("1MiB", Some(1 << 20)),
            ("2g", Some(2 << 30)),
            ("", None),
            ("K", None),
            ("-1", None),
            ("+1", None),
            ("1.5K", None),
            ("8x", None),
            ("99999999999999999999", None),
            ("99999999999999999G", None),
            ("\u{fc}K", None),
        ] {
            assert_eq!(bytes(text), wanted, "{text}");
        }
    }
}
