//! Harwell–Boeing files.

use tsumuji_solve::system::formats::{
    Format, Loaded, ReadError, matrix_from_bytes, vector_from_bytes,
};

use crate::{PLENTY, entries};

/// A Harwell–Boeing file of a 3×3 matrix in the given type and with the given right-hand side lines.
pub(crate) fn harwell(kind: &str, rhs: &str) -> String {
    let rhs_lines = rhs.lines().count().saturating_sub(1);
    let pattern = kind.starts_with('P');
    let mut text = format!("{:72}{:8}\n", "A small test", "TEST");
    text += &format!(
        "{:14}{:14}{:14}{:14}{:14}\n",
        5 + rhs_lines,
        1,
        2,
        if pattern { 0 } else { 2 },
        rhs_lines
    );
    text += &format!("{kind:14}{:14}{:14}{:14}{:14}\n", 3, 3, 5, 0);
    let values = if pattern { "" } else { "(1P,4D12.4)" };
    text += &format!(
        "{:16}{:16}{values:20}{:20}\n",
        "(8I5)",
        "(4I4)",
        if rhs.is_empty() { "" } else { "(3F6.2)" }
    );
    if let Some(kind_of_rhs) = rhs.lines().next() {
        text += &format!("{kind_of_rhs:14}{:14}{:14}\n", 1, 0);
    }
    // Columns: (1,1) (3,1) | (2,2) (3,2) | (3,3).
    text += "    1    3    5    6\n   1   3   2   3\n   3\n";
    if !pattern {
        text += "  4.0000D+00 -1.0000D+00  5.0000D+00 -2.0000D-01\n  6.0000E+00\n";
    }
    for line in rhs.lines().skip(1) {
        text += &format!("{line}\n");
    }
    text
}

fn hb(text: &str) -> Result<Loaded, ReadError> {
    matrix_from_bytes(Format::HarwellBoeing, text.as_bytes(), PLENTY)
}

/// Harwell–Boeing files: unsymmetric, symmetric, skew, pattern, with and without right-hand sides.
#[test]
fn harwell_boeing_files_are_read() {
    let loaded = hb(&harwell("RUA", "")).unwrap();
    assert_eq!(
        entries(&loaded.matrix),
        [[4.0, 0.0, 0.0], [0.0, 5.0, 0.0], [-1.0, -0.2, 6.0]]
    );
    assert_eq!(loaded.rhs, None);
    let loaded = hb(&harwell("rsa", "F\n  1.00  2.50 -3.00")).unwrap();
    assert_eq!(
        entries(&loaded.matrix),
        [[4.0, 0.0, -1.0], [0.0, 5.0, -0.2], [-1.0, -0.2, 6.0]]
    );
    // The right-hand side's format has no scale factor.
    assert_eq!(loaded.rhs, Some(vec![1.0, 2.5, -3.0]));
    let loaded = hb(&harwell("RZA", "M\n  1.00")).unwrap();
    assert_eq!(entries(&loaded.matrix)[0], [4.0, 0.0, 1.0]);
    assert_eq!(loaded.rhs, None);
    let loaded = hb(&harwell("PUA", "")).unwrap();
    assert_eq!(
        entries(&loaded.matrix),
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    );
    assert!(loaded.notes[0].contains("taken as 1"));
    let with_rhs = harwell("RUA", "F\n  1.00  2.50 -3.00");
    assert_eq!(
        vector_from_bytes(Format::HarwellBoeing, with_rhs.as_bytes(), 3).unwrap(),
        [1.0, 2.5, -3.0]
    );
}

/// Every fault of a Harwell–Boeing file has its line.
#[test]
fn faults_of_harwell_boeing_are_named() {
    let good = harwell("RUA", "");
    let swapped = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    let cases = [
        (
            harwell("CUA", ""),
            "line 3: the matrix type 'CUA' is complex",
        ),
        (
            harwell("RRA", ""),
            "line 3: the matrix type 'RRA' is rectangular",
        ),
        (
            harwell("RUE", ""),
            "line 3: the matrix type 'RUE' is not assembled",
        ),
        (
            harwell("XYZ", ""),
            "line 3: the matrix type 'XYZ' is unknown",
        ),
        (
            swapped("(8I5)", "(8X5)"),
            "line 4: the format '(8X5)' is not understood",
        ),
        (
            swapped("(1P,4D12.4)", "(8I5)      "),
            "line 4: the format '(8I5)' is of the wrong kind",
        ),
        (
            swapped("    1    3    5    6", "    1    5    3    6"),
            "line 5: column pointer 3 is out of order",
        ),
        (
            swapped("    1    3    5    6", "    1    3    5    5"),
            "line 5: the last column pointer is 5",
        ),
        (
            swapped("   1   3   2   3", "   1   4   2   3"),
            "line 6: row index 4 is outside; rows are 1 to 3",
        ),
        (
            swapped("   1   3   2   3", "   1   x   2   3"),
            "line 6: 'x' is not a row index",
        ),
        (
            swapped("5.0000D+00", "5.0000X+00"),
            "line 8: '5.0000X+00' is not a number",
        ),
        (swapped("5.0000D+00", "5.00D+1000"), "is inf"),
        (
            good[..good.len() - 14].to_owned(),
            "the file ends after 4 of 5 values (entry)",
        ),
        (
            good.lines().take(2).collect::<Vec<_>>().join("\n"),
            "line 3: the file ends before type and sizes",
        ),
        (
            "x\ny\nz\n".to_owned(),
            "line 2: this is not the second line",
        ),
    ];
    for (text, expected) in cases {
        let message = hb(&text).unwrap_err().to_string();
        assert!(
            message.contains(expected),
            "{message}\nexpected: {expected}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}
