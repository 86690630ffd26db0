//! `tsumuji predict`: reads a model and data, and prints what the model says of each row.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;
use tsumuji_learn::data::{self, Reading};
use tsumuji_learn::{Model, Predictions};

use crate::output::{self, PendingFile};
use crate::{DONE, NOT_REACHED, Outcome};

/// Largest file of a model: 4 million coefficients of 25 digits.
const MODEL_BYTES_MAX: u64 = 256 << 20;

/// Predict with a model of `tsumuji learn --model`: one line for each row of DATA.
///
/// Classes are printed by their original labels. DATA has the columns that the model was learned from, in any of the formats of `learn`; the target may be
/// there or missing. Where it is there and fits the model, the score goes to standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tsumuji predict iris.json new.csv
  tsumuji predict iris.json new.csv --output predicted.txt")]
pub(crate) struct Args {
    /// The model's file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The rows
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// Write the predictions to this file instead of standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    output::check_apart(
        &[("MODEL", Some(&args.model)), ("DATA", Some(&args.data))],
        &[("--output", args.output.as_deref())],
    )?;
    let file = args
        .output
        .as_deref()
        .map(PendingFile::create)
        .transpose()?;
    let model = read_model(&args.model)?;
    let reading = Reading::Like {
        columns: model.columns,
        names: model.names.as_deref(),
        target: model.target.as_deref(),
        needs_targets: false,
    };
    let data = data::read(&args.data, model.kind.want(), reading)?;
    let predicted = model.predict(&data.features);
    let words: Vec<String> = match &predicted {
        Predictions::Numbers(numbers) => numbers.iter().map(ToString::to_string).collect(),
        Predictions::Labels { classes, ids } => {
            ids.iter().map(|id| classes[*id as usize].clone()).collect()
        }
    };
    let score = match &data.targets {
        Some(targets) => match model.score(&data.features, targets) {
            Ok(score) => Some(score),
            Err(label) => {
                tell!(
                    "note: no score: the label '{label}' of {} is none of the model's",
                    args.data.display()
                );
                None
            }
        },
        None => {
            if let Some(fault) = &data.targets_fault {
                tell!("note: no score: {fault}");
            }
            None
        }
    };
    if args.json {
        let mut value = json!({ "rows": words.len(), "model": model.kind, "predictions": words });
        if let Predictions::Numbers(numbers) = predicted {
            value["predictions"] = json!(numbers);
        }
        if let Some(score) = score {
            value[score.name()] = score.value().into();
        }
        output::print_json(&value);
        return Ok(DONE);
    }
    let mut text = words.join("\n");
    text.push('\n');
    match file {
        Some(file) => {
            if let Err(error) = file.write(&text) {
                return Ok(crate::fail(&format!("{error:#}"), NOT_REACHED, false));
            }
        }
        None => {
            output::print_text(&text);
        }
    }
    if let Some(score) = score {
        tell!("{} {:.6}", score.name(), score.value());
    }
    Ok(DONE)
}

fn read_model(path: &Path) -> anyhow::Result<Model> {
    let name = path.display();
    let found = std::fs::metadata(path).with_context(|| format!("{name}"))?;
    if !found.is_file() || found.len() > MODEL_BYTES_MAX {
        bail!("{name}: is no file of a model");
    }
    let bytes = std::fs::read(path).with_context(|| format!("{name}"))?;
    Model::parse(&bytes).with_context(|| format!("{name}"))
}
