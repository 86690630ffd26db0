//! Reads Prometheus text, as far as nodes write it. For `tsumuji top`.
//!
//! Parses any text without panicking, and skips lines it does not understand.

/// A value with its name and labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Names and values, in the order written.
    pub labels: Vec<(String, String)>,
    /// Measured value.
    pub value: f64,
}

impl Sample {
    /// Value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Labels of one sample; ours have at most 5.
const LABELS_MAX: usize = 16;

/// All samples of a page.
pub fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            if labels.len() == LABELS_MAX {
                return None;
            }
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: rest.trim().parse().ok()?,
    })
}

/// The text up to the closing quote, unescaped; and the rest after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples with and without labels are parsed; comments and invalid lines are skipped.
    #[test]
    fn samples_are_read() {
        let text = "# HELP a b\na 1\nb{x=\"1\",y=\"q\\\"\\\\\\n\"} 2.5e3\nc{x=\"1\nd{} nan?\ne{x=\"\"} 7\n\n{ 3\nf{x=} 1\n";
        let found = parse(text);
        let names: Vec<&str> = found.iter().map(|sample| sample.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "e"]);
        assert_eq!(found[1].label("y"), Some("q\"\\\n"));
        assert_eq!(found[1].value, 2500.0);
        assert_eq!(found[2].label("x"), Some(""));
        assert_eq!(found[2].label("z"), None);
    }

    /// A text cut anywhere, or with too many labels, causes no panic.
    #[test]
    fn cut_texts_are_harmless() {
        let text = "b{x=\"1\",y=\"q\\\"é\\n\"} 2.5";
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            let _ = parse(&text[..end]);
        }
        let flood = format!("b{{{}}} 1", "x=\"1\",".repeat(100));
        assert!(parse(&flood).is_empty());
    }
}
