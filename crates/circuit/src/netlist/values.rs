//! Pieces of a card: words, and assignments `name=value`.
//!
//! `cards`, `directives` and `instances` cut their lines with it. Braces and quotes hold an expression together, blanks included.

/// A card: the words before its assignments, and the assignments.
#[derive(Debug, PartialEq)]
pub(super) struct Pieces<'a> {
    pub(super) words: Vec<&'a str>,
    pub(super) assignments: Vec<(&'a str, &'a str)>,
}

/// Cuts a card. Commas and parentheses separate words as blanks do. An error is one sentence without the place.
pub(super) fn pieces(text: &str) -> Result<Pieces<'_>, String> {
    let equals = equals(text)?;
    let head = match equals.first() {
        Some(&first) => &text[..name_before(text, 0, first)?.0],
        None => text,
    };
    Ok(Pieces {
        words: words(head),
        assignments: assignments(text, &equals)?,
    })
}

/// Positions of `=` outside of braces and quotes, which must be closed.
fn equals(text: &str) -> Result<Vec<usize>, String> {
    let mut found = Vec::new();
    let mut braces = 0u32;
    let mut is_quoted = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\'' => is_quoted = !is_quoted,
            b'{' if !is_quoted => braces += 1,
            b'}' if !is_quoted => {
                braces = braces.checked_sub(1).ok_or("a '}' closes no '{'")?;
            }
            b'=' if !is_quoted && braces == 0 => found.push(at),
            _ => {}
        }
    }
    if is_quoted || braces > 0 {
        return Err(format!(
            "{} is not closed",
            if is_quoted { "a quote" } else { "a '{'" }
        ));
    }
    Ok(found)
}

/// Beginning and end of the name before the `=` at `equals`, which begins at `from` or later.
fn name_before(text: &str, from: usize, equals: usize) -> Result<(usize, usize), String> {
    let before = text[from..equals].trim_end();
    let end = from + before.len();
    let length = before
        .bytes()
        .rev()
        .take_while(|&b| b.is_ascii_alphanumeric() || b == b'_')
        .count();
    if length == 0 {
        return Err("before '=' there is no name".into());
    }
    Ok((end - length, end))
}

fn assignments<'a>(text: &'a str, equals: &[usize]) -> Result<Vec<(&'a str, &'a str)>, String> {
    let mut found = Vec::with_capacity(equals.len());
    let mut from = 0;
    for (place, &at) in equals.iter().enumerate() {
        let (begin, end) = name_before(text, from, at)?;
        let until = match equals.get(place + 1) {
            Some(&next) => name_before(text, at + 1, next)?.0,
            None => text.len(),
        };
        let value = text[at + 1..until].trim_matches([' ', '\t', ',']);
        let name = &text[begin..end];
        if value.is_empty() {
            return Err(format!("after '{name}=' there is no value"));
        }
        found.push((name, value));
        from = at + 1;
    }
    Ok(found)
}

/// Words, expressions in braces or quotes whole.
pub(super) fn words(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = None;
    let mut braces = 0u32;
    let mut is_quoted = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            '{' if !is_quoted => braces += 1,
            '}' if !is_quoted => braces = braces.saturating_sub(1),
            _ => {}
        }
        let separates = !is_quoted
            && braces == 0
            && (letter.is_whitespace() || matches!(letter, ',' | '(' | ')'));
        match (separates, begin) {
            (true, Some(from)) => {
                found.push(&text[from..at]);
                begin = None;
            }
            (false, None) => begin = Some(at),
            _ => {}
        }
    }
    found.extend(begin.map(|from| &text[from..]));
    found
}

/// The expression within braces or quotes, or the text itself.
pub(super) fn unwrapped(text: &str) -> &str {
    let text = text.trim();
    let inner = |open, close| text.strip_prefix(open)?.strip_suffix(close);
    inner('{', '}')
        .or_else(|| inner('\'', '\''))
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words and assignments, with and without blanks around `=`.
    #[test]
    fn cards_are_cut() {
        let found = pieces("x1 a (b,c) sub r = {2 * (k+1)} c='a b' d=1e-3").unwrap();
        assert_eq!(found.words, ["x1", "a", "b", "c", "sub"]);
        assert_eq!(
            found.assignments,
            [("r", "{2 * (k+1)}"), ("c", "'a b'"), ("d", "1e-3")]
        );
        let found = pieces("v1 1 0 pwl(0 0 1 {a b})").unwrap();
        assert_eq!(found.words, ["v1", "1", "0", "pwl", "0", "0", "1", "{a b}"]);
        assert!(found.assignments.is_empty());
    }

    /// Mistakes are told in one sentence.
    #[test]
    fn mistakes_are_told() {
        for (text, wanted) in [
            ("r1 {a", "a '{' is not closed"),
            ("r1 'a", "a quote is not closed"),
            ("r1 a}", "closes no"),
            ("= 3", "there is no name"),
            ("a=", "there is no value"),
            ("a= b=2", "after 'a='"),
            ("a==2", "there is no name"),
        ] {
            let error = pieces(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    proptest! {
        /// Any text is cut or refused, and the pieces hold all its letters in order.
        #[test]
        fn any_text_is_cut(text in "[a-c={}' ,()]{0,30}") {
            if let Ok(found) = pieces(&text) {
                let mut rest = text.as_str();
                let assigned = found.assignments.iter().flat_map(|&(name, value)| [name, value]);
                for piece in found.words.iter().copied().chain(assigned) {
                    let at = rest.find(piece);
                    prop_assert!(at.is_some(), "{} in {}", piece, rest);
                    rest = &rest[at.unwrap() + piece.len()..];
                }
            }
        }
    }
}
