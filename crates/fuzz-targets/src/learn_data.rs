//! Any bytes read as data to learn from, in every format: sound rows with a target each, or an error of one line.

use tsumuji_learn::data::{Reading, Want, read_bytes};

/// Memory that data may take: more is refused before it is allocated.
const MEMORY_LIMIT_BYTES: u64 = 64 << 20;
const NAMES: [&str; 4] = ["a.svm", "a.csv", "a.npy", "a.npz"];

/// The target.
pub fn learn_data(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let name = NAMES[usize::from(choice) % NAMES.len()];
    let want = if choice & 4 == 0 {
        Want::Numbers
    } else {
        Want::Labels
    };
    let reading = match choice >> 3 & 3 {
        0 => Reading::Learn { target: None },
        1 => Reading::Learn { target: Some("y") },
        needs => Reading::Like {
            columns: 2,
            names: None,
            target: None,
            needs_targets: needs == 2,
        },
    };
    match read_bytes(name, bytes, MEMORY_LIMIT_BYTES, want, reading) {
        Ok(data) => {
            let rows = data.features.rows();
            assert!(data.features.is_sound() && rows > 0);
            if let Some(targets) = &data.targets {
                assert_eq!(targets.len(), rows);
            }
            if let Reading::Like { columns, .. } = reading {
                assert_eq!(data.features.columns(), columns);
            }
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
}
