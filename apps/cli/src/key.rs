//! `tsumuji key`: makes a cluster key.

use std::path::PathBuf;

use tsumuji_seal::ClusterKey;

use crate::{DONE, Outcome, output};

/// Make a new cluster key: a file that only its owner may read, the same for all nodes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tsumuji key lab.key\n  tsumuji solve --hosts lab.toml --key lab.key A.mtx\n\nTo change keys while programs run: put the new key second in the file on all nodes, then first on all nodes, then remove the old one."
)]
pub(crate) struct Args {
    /// The new file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let key = ClusterKey::generate()?;
    key.write_new(&args.file)?;
    let (file, print) = (args.file.display().to_string(), key.print().to_string());
    if args.json {
        output::print_json(&serde_json::json!({ "file": file, "key": print }));
    } else {
        output::print_text(&format!(
            "{file}: new key {print}; copy the file to every node, readable by its owner only\n"
        ));
    }
    Ok(DONE)
}
