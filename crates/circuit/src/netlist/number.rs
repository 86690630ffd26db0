//! Numbers as circuits write them: a decimal number, a letter for its power of ten, and a unit that is not read.
//!
//! `1k`, `1.5meg`, `100nF`, `3e-3V`, `2mil`. Called for every value of a netlist, also within expressions.

/// A number at the beginning of `text`, and the bytes it takes, unit included. `None` if `text` does not begin with one.
///
/// An error is one sentence without the place.
pub(super) fn leading(text: &str) -> Option<Result<(f64, usize), String>> {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let whole = digits(0);
    let mut end = whole;
    let mut fraction = 0;
    if bytes.get(end) == Some(&b'.') {
        fraction = digits(end + 1);
        end += 1 + fraction;
    }
    if whole + fraction == 0 {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = bytes
            .get(end + 1 + sign..)
            .map_or(0, |_| digits(end + 1 + sign));
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    let Ok(mantissa) = text[..end].parse::<f64>() else {
        return Some(Err(format!("'{}' is not a number", &text[..end])));
    };
    if end == bytes.len() && mantissa.is_finite() {
        return Some(Ok((mantissa, end)));
    }
    Some(match factor(&text[end..]) {
        Ok((factor, length)) if (mantissa * factor).is_finite() => {
            Ok((mantissa * factor, end + length))
        }
        Ok(_) => Err("a number is too large".into()),
        Err(what) => Err(what),
    })
}

/// The factor that the letters after a number mean, and how many bytes they take.
fn factor(text: &str) -> Result<(f64, usize), String> {
    for micro in ['µ', 'μ'] {
        if let Some(unit) = text.strip_prefix(micro) {
            return Ok((1e-6, micro.len_utf8() + letters(unit)));
        }
    }
    let length = letters(text);
    let begins = |word: &str| length >= word.len() && text[..word.len()].eq_ignore_ascii_case(word);
    if length == 1 && begins("a") {
        return Err(
            "the suffix 'a' is 1e-18 to some programs and an ampere to others; write the number without it".into(),
        );
    }
    let factor = if begins("meg") {
        1e6
    } else if begins("mil") {
        25.4e-6
    } else {
        match text.as_bytes().first().map(u8::to_ascii_lowercase) {
            Some(b't') => 1e12,
            Some(b'g') => 1e9,
            Some(b'k') => 1e3,
            Some(b'm') => 1e-3,
            Some(b'u') => 1e-6,
            Some(b'n') => 1e-9,
            Some(b'p') => 1e-12,
            Some(b'f') => 1e-15,
            _ => 1.0,
        }
    };
    Ok((factor, length))
}

fn letters(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_alphabetic).count()
}

/// The whole of `text` as a signed number. `None`: it is something else, perhaps an expression.
pub(super) fn whole(text: &str) -> Option<Result<f64, String>> {
    let (sign, unsigned) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    match leading(unsigned)? {
        Ok((value, length)) if length == unsigned.len() => Some(Ok(sign * value)),
        Ok(_) => None,
        Err(what) => Some(Err(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Suffixes, units and signs, in both cases.
    #[test]
    fn suffixes_are_read() {
        for (text, expected) in [
            ("1", 1.0),
            ("-2.5", -2.5),
            ("+.5", 0.5),
            ("5.", 5.0),
            ("1e3", 1e3),
            ("1E-3", 1e-3),
            ("1k", 1e3),
            ("1K", 1e3),
            ("1kOhm", 1e3),
            ("1m", 1e-3),
            ("1M", 1e-3),
            ("1meg", 1e6),
            ("2MEGohm", 2e6),
            ("3mil", 76.2e-6),
            ("1g", 1e9),
            ("1t", 1e12),
            ("1u", 1e-6),
            ("1µF", 1e-6),
            ("100nF", 100e-9),
            ("1p", 1e-12),
            ("1f", 1e-15),
            ("5V", 5.0),
            ("1e", 1.0),
            ("1e3k", 1e6),
            ("1ohm", 1.0),
        ] {
            let found = whole(text).unwrap().unwrap();
            assert!(
                (found - expected).abs() <= 1e-15 * expected.abs(),
                "{text} {found}"
            );
        }
    }

    /// What is no number is left to expressions; what is ambiguous or too large is refused.
    #[test]
    fn others_are_not_numbers() {
        for text in ["", "-", "a", ".", "1+2", "1k5", "2*a", "e3", "1.2.3"] {
            assert!(whole(text).is_none(), "{text}");
        }
        for text in ["1a", "1e308k", "1e999"] {
            assert!(whole(text).unwrap().is_err(), "{text}");
        }
    }
}
