//! Rows of text as an aligned table.

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
}
