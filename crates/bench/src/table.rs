//! Rows of text as an aligned table, and fields of CSV.

/// The heading of a table, to which rows are added: the names of its columns, with bars between, as in `received by | cores | busy`. Panics unless there
/// are as many as a row has cells.
pub fn headed<const N: usize>(names: &str) -> Vec<[String; N]> {
    let names = names.split('|').map(|name| name.trim().to_owned());
    let names: Vec<String> = names.collect();
    vec![names.try_into().expect("a name for each column")]
}

/// A line for each row, columns as wide as their widest cell.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or(0);
            text.push_str(&format!("{cell:width$}  "));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// A line for each name, with its text.
pub fn report(rows: &[(&str, String)]) -> String {
    let line = |(name, text): &(&str, String)| format!("{name:<10}{text}\n");
    rows.iter().map(line).collect()
}

/// A cell, `-` if there is nothing to tell.
pub fn cell<T>(value: Option<T>, told: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), told)
}

/// A cell with a number of so many decimals.
pub fn number(value: Option<f64>, decimals: usize, unit: &str) -> String {
    cell(value, |value| format!("{value:.decimals$}{unit}"))
}

/// A field of CSV, quoted if needed.
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!(
            "\"{}\"",
            text.replace('"', "\"\"").replace(['\n', '\r'], " ")
        )
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns line up, also where a cell is not plain ASCII, and no line ends in spaces.
    #[test]
    fn columns_line_up() {
        let rows = [["a", "1 µs", "x"], ["größer", "10 µs", ""]];
        let text = aligned(&rows.map(|row| row.map(str::to_owned)));
        assert_eq!(text, "a       1 µs   x\ngrößer  10 µs\n");
    }

    /// A heading's names are between its bars, whatever they are made of.
    #[test]
    fn a_heading_has_its_names() {
        let rows = headed("by | +-% | us/KB, all");
        assert_eq!(rows, [["by", "+-%", "us/KB, all"].map(str::to_owned)]);
    }
}
