//! Any bytes as the file of a model: one that predicts something for each row, or an error of one line.

use tsumuji_learn::data::Features;
use tsumuji_learn::{Model, Predictions};

/// Rows are made for models of up to so many columns.
const COLUMNS_MAX: usize = 1 << 10;
const ROWS: usize = 3;

/// The target.
pub fn model(bytes: &[u8]) {
    let model = match Model::parse(bytes) {
        Ok(model) => model,
        Err(error) => return assert_eq!(error.to_string().lines().count(), 1),
    };
    assert_eq!(
        Model::parse(model.to_json().as_bytes()).ok(),
        Some(model.clone())
    );
    if model.columns > COLUMNS_MAX {
        return;
    }
    let features = Features::Dense {
        columns: model.columns,
        values: (0..ROWS * model.columns)
            .map(|place| place as f64 - 1.5)
            .collect(),
    };
    match model.predict(&features) {
        Predictions::Numbers(numbers) => assert_eq!(numbers.len(), ROWS),
        Predictions::Labels { classes, ids } => {
            assert!(ids.len() == ROWS && ids.iter().all(|id| (*id as usize) < classes.len()));
        }
    }
}
