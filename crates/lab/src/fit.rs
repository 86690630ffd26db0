//! A description of this machine, fitted to what was measured on it.
//!
//! Of each way the sender's parts and the rest are straight lines over bytes: a time at any size, and a rate. Every other size is fitted, the sizes between are
//! measured values of the description, so that its deviations are those of predictions.

use std::fmt::Write;

use crate::measure::{Cell, SplitUs, Way};

/// A line: microseconds at any size, and for each byte.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Fitted {
    us: f64,
    us_per_byte: f64,
}

impl Fitted {
    /// The line with the smallest sum of squared relative errors; neither of its numbers is below zero. Points at or below zero are left out.
    fn of(points: &[(f64, f64)]) -> Self {
        // With u = 1/t and v = n/t the errors are a·u + b·v - 1.
        let terms = points
            .iter()
            .filter(|(_, us)| *us > 0.0)
            .map(|(bytes, us)| (1.0 / us, bytes / us));
        let (mut uu, mut uv, mut vv, mut u, mut v) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (one, other) in terms {
            uu += one * one;
            uv += one * other;
            vv += other * other;
            u += one;
            v += other;
        }
        let both = uu * vv - uv * uv;
        let (us, us_per_byte) = ((u * vv - v * uv) / both, (v * uu - u * uv) / both);
        let alone = |sum: f64, squares: f64| if squares > 0.0 { sum / squares } else { 0.0 };
        if both > 0.0 && us >= 0.0 && us_per_byte >= 0.0 {
            Self { us, us_per_byte }
        } else if us_per_byte < 0.0 || both <= 0.0 {
            Self {
                us: alone(u, uu),
                us_per_byte: 0.0,
            }
        } else {
            Self {
                us: 0.0,
                us_per_byte: alone(v, vv),
            }
        }
    }

    fn at(self, bytes: f64) -> f64 {
        self.us + self.us_per_byte * bytes
    }
}

/// A part of the split.
type Part = fn(&SplitUs) -> f64;

/// The text of a description. `title` names the machine.
pub fn description(title: &str, cells: &[Cell]) -> String {
    let mut rates = String::new();
    let mut variants = String::new();
    let mut measured = String::new();
    for (index, way) in Way::PAPER.iter().enumerate() {
        let is_measured = |cell: &&Cell| cell.way == way.name() && cell.is_measured();
        let of_way: Vec<&Cell> = cells.iter().filter(is_measured).collect();
        if of_way.is_empty() {
            continue; // refused
        }
        let fitted: Vec<&Cell> = of_way.iter().copied().step_by(2).collect();
        let _ = write!(variants, "\n[[variant]]\nname = \"{}\"\n", way.name());
        let host = if way.is_call() { "kernel" } else { "user" };
        let parts: [(&str, &str, Part); 3] = [
            ("copy descriptor", "user", |split| split.descriptor),
            ("copy data", "user", |split| split.copy),
            ("start", host, |split| split.start),
        ];
        let mut lines: Vec<(&str, &str, Fitted)> = Vec::new();
        // Stamps would be most of what a way without an interface takes: it is fitted whole.
        let parts = parts.into_iter().filter(|_| *way != Way::Host);
        for (name, by, of) in parts {
            let points: Vec<_> = fitted
                .iter()
                .map(|cell| (cell.bytes as f64, of(&cell.split)))
                .collect();
            let line = Fitted::of(&points);
            if line != Fitted::default() {
                lines.push((name, by, line));
            }
        }
        let rest = |cell: &&Cell| {
            let bytes = cell.bytes as f64;
            let before: f64 = lines.iter().map(|(_, _, line)| line.at(bytes)).sum();
            (bytes, cell.median_us() - before)
        };
        let rest = Fitted::of(&fitted.iter().map(rest).collect::<Vec<_>>());
        lines.push(match way {
            Way::Host => ("write packet", "user", rest),
            _ => ("fetch, build, tell", "interface", rest),
        });
        for (place, (name, by, line)) in lines.into_iter().enumerate() {
            let _ = write!(
                variants,
                "\n[[variant.stage]]\nname = \"{name}\"\nby = \"{by}\"\nus = {}\n",
                number(line.us)
            );
            if line.us_per_byte > 0.0 {
                let rate = format!("way{index}-{place}");
                let _ = writeln!(variants, "rates = [\"{rate}\"]");
                let _ = write!(
                    rates,
                    "\n[rate.{rate}]\nmb_per_s = {}\n",
                    number(1.0 / line.us_per_byte)
                );
            }
        }
        for cell in of_way.iter().skip(1).step_by(2) {
            let _ = write!(
                measured,
                "\n[[measured]]\nsource = \"lab run\"\nof = \"total_us\"\nvariant = \"{}\"\nbytes = {}\nvalue = {}\n",
                way.name(),
                cell.bytes,
                number(cell.median_us())
            );
        }
    }
    let title = title.replace(['"', '\\'], " ");
    format!(
        "# Fitted to every other size of `tsumuji lab run`; the sizes between are compared.\n\ntitle = \"{title}\"\nassumed = [\n    \"every part is a time at any size and a rate: caches, which make rates fall with size, are not in it\",\n]\n{rates}{variants}{measured}"
    )
}

/// A number as TOML writes floats, within what a description accepts.
fn number(value: f64) -> String {
    format!("{:.6}", value.clamp(0.000_001, 1e12))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Description;
    use crate::beside::median_deviation_percent;

    /// Lines are found again; where one of the numbers would be below zero, the other stands alone.
    #[test]
    fn lines_are_found() {
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        let exact: Vec<(f64, f64)> = [4.0, 64.0, 4096.0].map(|n| (n, 2.0 + n / 100.0)).to_vec();
        let line = Fitted::of(&exact);
        assert!(
            near(line.us, 2.0) && near(line.us_per_byte, 0.01),
            "{line:?}"
        );
        let falling = Fitted::of(&[(4.0, 2.0), (8.0, 1.0)]);
        assert!(
            falling.us > 0.0 && falling.us_per_byte == 0.0,
            "{falling:?}"
        );
        let steep = Fitted::of(&[(4.0, 1.0), (8.0, 3.0)]);
        assert!(steep.us == 0.0 && steep.us_per_byte > 0.0, "{steep:?}");
        assert_eq!(Fitted::of(&[(4.0, 0.0)]), Fitted::default());
        assert!(near(Fitted::of(&[(4.0, 3.0)]).at(4.0), 3.0));
    }

    /// What follows the fitted shape is predicted, by a description that is accepted.
    #[test]
    fn predictions_are_right_where_the_shape_is() {
        let cell = |way: &Way, bytes: usize| {
            let n = bytes as f64;
            let split = SplitUs {
                copy: n / 500.0,
                start: 0.1,
                ..SplitUs::default()
            };
            Cell {
                sent_us: vec![1.0 + n / 500.0 + n / 1000.0],
                split,
                ..Cell::empty(*way, bytes)
            }
        };
        let sizes = [4, 16, 64, 256, 1024, 4096];
        let cells: Vec<Cell> = sizes
            .iter()
            .flat_map(|bytes| Way::PAPER.iter().map(|way| cell(way, *bytes)))
            .collect();
        let text = description("a \"machine\"", &cells);
        let read = Description::parse(&text, Path::new("this")).expect("accepted");
        let beside = read.beside();
        assert_eq!(
            (read.variants.len(), beside.len()),
            (Way::PAPER.len(), 3 * Way::PAPER.len())
        );
        assert!(
            median_deviation_percent(&beside).expect("some") < 0.01,
            "{beside:?}"
        );
    }
}
