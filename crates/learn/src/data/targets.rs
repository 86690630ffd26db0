//! What is to be predicted: a number for each row, or the class of each row.

use super::{Reading, finite};
use std::collections::HashMap;
use tsumuji_numbers::{FileError, shown};

/// Most classes: each has parameters of its own, and a column of numbers is taken for labels by mistake.
pub const CLASSES_MAX: usize = 256;

/// What a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Numbers: linear, ridge.
    Numbers,
    /// Classes: logistic, svm.
    Labels,
}

/// A target for each row.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Numbers.
    Numbers(Vec<f64>),
    /// Classes.
    Labels {
        /// Their labels as the file has them, sorted by number if all are numbers, else as text.
        classes: Vec<String>,
        /// Of each row, its place in `classes`.
        ids: Vec<u32>,
    },
}

impl Targets {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Labels { ids, .. } => ids.len(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The places of these labels in another list of classes; the error is the first label that is not there.
    pub fn ids_in(&self, known: &[String]) -> Result<Vec<u32>, String> {
        let Self::Labels { classes, ids } = self else {
            return Err("numbers".to_owned());
        };
        let known: HashMap<String, u32> = known.iter().map(|label| key(label)).zip(0..).collect();
        let places: Vec<Option<u32>> = (classes.iter())
            .map(|label| known.get(&key(label)).copied())
            .collect();
        let place = |id: &u32| places[*id as usize].ok_or_else(|| classes[*id as usize].clone());
        ids.iter().map(place).collect()
    }
}

/// Collects the targets of rows. Where the rows are enough, targets that do not fit are left out, and the reason is kept.
#[derive(Debug)]
pub(super) struct Gathered {
    builder: Builder,
    is_needed: bool,
    fault: Option<FileError>,
}

impl Gathered {
    pub(super) fn new(want: Want, reading: Reading<'_>) -> Self {
        Self {
            builder: Builder::new(want),
            is_needed: reading.needs_targets(),
            fault: None,
        }
    }

    /// Takes the target of the next row; the error says what is wrong with it, which [`miss`](Self::miss) is told of.
    pub(super) fn push(&mut self, word: &str) -> Result<(), String> {
        match self.fault {
            Some(_) => Ok(()),
            None => self.builder.push(word),
        }
    }

    /// The same for a number.
    pub(super) fn push_number(&mut self, number: f64) -> Result<(), String> {
        match self.fault {
            Some(_) => Ok(()),
            None => self.builder.push_number(number),
        }
    }

    /// Goes on without targets, for this reason, unless they are needed.
    pub(super) fn miss(&mut self, error: FileError) -> Result<(), FileError> {
        if self.is_needed {
            return Err(error);
        }
        self.fault = Some(error);
        Ok(())
    }

    /// All targets, or why they are left out.
    pub(super) fn finish(self) -> (Option<Targets>, Option<String>) {
        match self.fault {
            Some(fault) => (None, Some(fault.to_string())),
            None => (Some(self.builder.finish()), None),
        }
    }
}

/// Collects targets.
#[derive(Debug)]
struct Builder {
    want: Want,
    numbers: Vec<f64>,
    classes: Vec<String>,
    places: HashMap<String, u32>,
    ids: Vec<u32>,
    /// Numbers that were pushed, by their bits, and their classes.
    recent: Vec<(u64, u32)>,
}

impl Builder {
    fn new(want: Want) -> Self {
        Self {
            want,
            numbers: Vec::new(),
            classes: Vec::new(),
            places: HashMap::new(),
            ids: Vec::new(),
            recent: Vec::new(),
        }
    }

    /// Takes the target of the next row; the error says what is wrong with it.
    fn push(&mut self, word: &str) -> Result<(), String> {
        if word.is_empty() {
            return Err("the target is empty".to_owned());
        }
        if self.want == Want::Numbers {
            let number = finite(word).map_err(|what| {
                format!("the target {what}; linear and ridge predict finite numbers, logistic and svm classes")
            })?;
            self.numbers.push(number);
            return Ok(());
        }
        if word.parse::<f64>().is_ok_and(f64::is_nan) {
            return Err("the label is NaN; a class needs a name or a number".to_owned());
        }
        if has_line_break(word) {
            return Err(format!(
                "the label {} has a line break; predictions are one line for each row",
                shown(word)
            ));
        }
        let next = self.classes.len();
        let id = *self.places.entry(key(word)).or_insert(next as u32);
        if id as usize == next {
            if next == CLASSES_MAX {
                return Err(format!(
                    "the label {} is number {}; at most {CLASSES_MAX} classes can be told apart, and numbers are predicted by linear and ridge",
                    shown(word),
                    CLASSES_MAX + 1
                ));
            }
            self.classes.push(word.to_owned());
        }
        self.ids.push(id);
        Ok(())
    }

    /// The same for a number.
    fn push_number(&mut self, number: f64) -> Result<(), String> {
        if self.want == Want::Numbers && number.is_finite() {
            self.numbers.push(number);
            return Ok(());
        }
        // Labels come again and again: most are known by their bits.
        let known = (self.recent.iter()).find(|(bits, _)| *bits == number.to_bits());
        if let Some((_, id)) = known {
            self.ids.push(*id);
            return Ok(());
        }
        self.push(&number.to_string())?;
        self.recent
            .extend(self.ids.last().map(|id| (number.to_bits(), *id)));
        Ok(())
    }

    /// All targets, the classes sorted.
    fn finish(self) -> Targets {
        if self.want == Want::Numbers {
            return Targets::Numbers(self.numbers);
        }
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        let numbers: Option<Vec<f64>> = self
            .classes
            .iter()
            .map(|label| label.parse().ok())
            .collect();
        match numbers {
            Some(numbers) => order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b])),
            None => order.sort_by(|a, b| self.classes[*a].cmp(&self.classes[*b])),
        }
        let mut place = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = new as u32;
        }
        Targets::Labels {
            classes: order.iter().map(|old| self.classes[*old].clone()).collect(),
            ids: self.ids.iter().map(|id| place[*id as usize]).collect(),
        }
    }
}

/// Whether a label is more than one line where it is printed.
pub(crate) fn has_line_break(label: &str) -> bool {
    label.contains(['\n', '\r'])
}

/// Above this not all whole numbers are different as `f64`.
const WHOLE_MOST: f64 = (1u64 << 53) as f64;

/// Labels with one key are one class: `1`, `+1` and `1.0` are.
fn key(label: &str) -> String {
    match label.parse::<f64>() {
        Ok(number) if number.abs() < WHOLE_MOST || number.is_infinite() => {
            format!("{}", number + 0.0)
        } // -0 is 0
        _ => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(words: &[&str]) -> Targets {
        let mut builder = Builder::new(Want::Labels);
        words.iter().for_each(|word| builder.push(word).unwrap());
        builder.finish()
    }

    /// Labels keep their text, are sorted by value, and equal numbers are one class.
    #[test]
    fn labels_are_kept() {
        let targets = labels(&["+1", "-1", "1", "10", "1.0"]);
        let Targets::Labels { classes, ids } = &targets else {
            panic!("labels")
        };
        assert_eq!(classes, &["-1", "+1", "10"]);
        assert_eq!(ids, &[1, 0, 1, 2, 1]);
        let known = ["10".to_owned(), "1".to_owned(), "-1".to_owned()];
        assert_eq!(targets.ids_in(&known).unwrap(), [1, 2, 1, 0, 1]);
        assert_eq!(targets.ids_in(&known[..2]).unwrap_err(), "-1");
        let Targets::Labels { classes, .. } = labels(&["cat", "ant", "10"]) else {
            panic!("labels")
        };
        assert_eq!(classes, ["10", "ant", "cat"]);
        let Targets::Labels { classes, .. } = labels(&["inf", "Infinity", "-inf"]) else {
            panic!("labels")
        };
        assert_eq!(classes, ["-inf", "inf"]);
        // As `f64` these are one number.
        let Targets::Labels { classes, .. } = labels(&["9007199254740993", "9007199254740992"])
        else {
            panic!("labels")
        };
        assert_eq!(classes.len(), 2);
    }

    /// A regression takes no names, and a column of numbers is no column of labels.
    #[test]
    fn targets_must_fit_the_task() {
        let mut numbers = Builder::new(Want::Numbers);
        assert!(numbers.push("setosa").unwrap_err().contains("'setosa'"));
        assert!(numbers.push("nan").unwrap_err().contains("finite"));
        let mut classes = Builder::new(Want::Labels);
        for word in ["nan", "-NaN", "+nan"] {
            assert!(classes.push(word).unwrap_err().contains("NaN"), "{word}");
        }
        for number in 0..CLASSES_MAX {
            classes.push(&format!("{number}")).unwrap();
        }
        assert!(classes.push("0.5").unwrap_err().contains("256 classes"));
        classes.push("255").unwrap();
        assert!(classes.push("nan").is_err());
    }
}
