//! Words of a line, and the numbers that they are.

/// Words between blanks.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

/// A whole number without sign.
pub(super) fn whole(word: &[u8]) -> Option<u64> {
    if word.is_empty() || !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    word.iter().try_fold(0u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// A decimal number; exponents may be marked by D as Fortran does. Words like `nan` and `inf` are numbers, too: the
/// caller refuses them.
pub(super) fn decimal(word: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(word).ok()?;
    text.parse().ok().or_else(|| {
        let marked = text.bytes().any(|byte| matches!(byte, b'd' | b'D'));
        marked
            .then(|| text.replace(['d', 'D'], "e").parse().ok())
            .flatten()
    })
}
