//! `tsumuji predict`, and models as they are written.

use crate::common::{self, file, json, text, tsumuji};
use crate::learn::{assert_converged, clouds};
use serde_json::Value;

/// A model comes back from its file: original labels, one a line, the score where targets are known, and no target needed.
#[test]
fn predictions_keep_the_labels() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(3, 300));
    let model = folder.path().join("m.json");
    let model = model.to_str().unwrap();
    let (code, run) = json(&[
        "learn", "svm", &data, "--target", "kind", "--mode", "single", "--model", model,
    ]);
    assert_converged(code, &run);
    assert_eq!(run["written"], model);
    let output = tsumuji(&["predict", model, &data]);
    let lines = text(&output.stdout);
    assert!(
        output.status.success() && lines.lines().count() == 300,
        "{}",
        text(&output.stderr)
    );
    assert!(
        lines
            .lines()
            .all(|line| ["ant", "bee", "cat"].contains(&line)),
        "{lines}"
    );
    let accuracy = format!("accuracy {:.6}", run["accuracy"].as_f64().unwrap());
    assert!(
        text(&output.stderr).contains(&accuracy),
        "{}",
        text(&output.stderr)
    );
    let bare = file(
        folder.path(),
        "bare.csv",
        "x,y,z\n1.9,0.1,0.5\n0.1,1.9,0.5\n",
    );
    let (code, run) = json(&["predict", model, &bare]);
    assert_eq!(
        (code, &run["predictions"]),
        (0, &serde_json::json!(["ant", "bee"])),
        "{run}"
    );
    assert_eq!(run["accuracy"], Value::Null);
    // svmlight keeps the sign of its labels.
    let sparse = file(folder.path(), "a.svm", "+1 1:2\n-1 2:3\n+1 1:1.5\n-1 2:2\n");
    let (code, _) = json(&[
        "learn",
        "logistic",
        &sparse,
        "--workers",
        "2",
        "--model",
        model,
    ]);
    assert_eq!(code, 0);
    let predicted = folder.path().join("p.txt");
    let output = tsumuji(&[
        "predict",
        model,
        &sparse,
        "--output",
        predicted.to_str().unwrap(),
    ]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(
        std::fs::read_to_string(predicted).unwrap(),
        "+1\n-1\n+1\n-1\n"
    );
}

/// Targets are needed for a score only: rows are predicted whatever they are, and a note says why there is no score.
#[test]
fn predictions_need_no_targets() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let model = |kind: &str, content: &str| {
        let data = file(folder, &format!("{kind}.csv"), content);
        let path = folder.join(format!("{kind}.json"));
        let path = path.to_str().unwrap().to_owned();
        let words = [
            "learn", kind, &data, "--l2", "0.1", "--mode", "single", "--model", &path,
        ];
        assert!(tsumuji(&words).status.success(), "{kind}");
        path
    };
    let classifier = model("logistic", "a,y\n1,u\n2,v\n1,u\n3,v\n");
    let regression = model("ridge", "a,y\n1,1\n2,3\n3,5\n4,7\n");
    let rows = 300;
    let numbers: Vec<f64> = (0..2 * rows).map(f64::from).collect();
    let matrix = file(folder, "reg.npy", common::npy("(300, 2)", &numbers));
    let many: String = (0..rows).map(|row| format!("{row},{row}.5\n")).collect();
    let many = file(folder, "many.csv", format!("a,y\n{many}"));
    let sparse: String = (0..rows).map(|row| format!("{row} 1:{row}\n")).collect();
    let sparse = file(folder, "many.svm", sparse);
    let words = file(folder, "words.csv", "a,y\n1,u\n2,v\n");
    let holes = file(folder, "holes.csv", "a,y\n1,\n2,3\n");
    for (model, data, rows, reason) in [
        (&classifier, &matrix, rows, "256 classes"),
        (&classifier, &many, rows, "256 classes"),
        (&classifier, &sparse, rows, "256 classes"),
        (&regression, &words, 2, "'u'"),
        (&regression, &holes, 2, "empty"),
    ] {
        let output = tsumuji(&["predict", model, data]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{data}: {told}");
        assert_eq!(
            text(&output.stdout).lines().count(),
            rows as usize,
            "{data}"
        );
        assert!(
            told.starts_with("note: no score: ")
                && told.contains(reason)
                && told.lines().count() == 1,
            "{data}: {told}"
        );
        // For a test set they are needed.
        let own = model.replace(".json", ".csv");
        let kind = if model == &classifier {
            "logistic"
        } else {
            "ridge"
        };
        let learn = ["learn", kind, &own, "--mode", "single", "--test", data];
        assert_eq!(tsumuji(&learn).status.code(), Some(2), "{data}");
    }
}

/// What is told of the training data is the score of the model that is written, also where its coefficients have lost digits.
#[test]
fn training_score_is_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let far: String = (0..40)
        .map(|row| format!("{},{}\n", 10_000_000_000_000_000_u64 + 2 * row, 3 * row + 1))
        .collect();
    let data = file(folder.path(), "far.csv", format!("a,y\n{far}"));
    let model = folder.path().join("m.json");
    let model = model.to_str().unwrap();
    for mode in ["single", "gossip"] {
        let (code, run) = json(&[
            "learn", "linear", &data, "--mode", mode, "--test", &data, "--model", model,
        ]);
        assert_converged(code, &run);
        let score = |name: &str| run[name].as_f64().unwrap();
        assert!(
            (score("r2") - score("test_r2")).abs() < 1e-9,
            "{mode}: {run}"
        );
        let (_, predicted) = json(&["predict", model, &data]);
        assert!(
            (predicted["r2"].as_f64().unwrap() - score("r2")).abs() < 1e-9,
            "{predicted}"
        );
    }
}
