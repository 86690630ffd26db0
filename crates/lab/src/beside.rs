//! Measured values beside the model's.

use serde::Serialize;

use crate::description::{Description, Measured, Quantity};
use crate::measure::median;
use crate::model::Setting;

/// A measured value and the model's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    /// Where it is from, and what of.
    pub what: String,
    /// The way to send; `None`: it is of a rate.
    pub variant: Option<String>,
    /// Bytes of data.
    pub bytes: Option<u64>,
    /// `total`, `bandwidth`, `wait`, or a stage.
    pub part: String,
    /// Of the measured value, `us` or `MB/s`.
    pub unit: &'static str,
    /// What was measured.
    pub measured: f64,
    /// What is computed.
    pub model: f64,
    /// The model's less the measured, in percent of the measured.
    pub deviation_percent: f64,
}

impl Description {
    /// The model beside every measured value of the description, in its order.
    pub fn beside(&self) -> Vec<Beside> {
        let all = self.measured.iter();
        all.filter_map(|measured| self.compared(measured)).collect()
    }

    fn compared(&self, measured: &Measured) -> Option<Beside> {
        let setting = match measured.improved {
            true => self.improved.unwrap_or_default(),
            false => Setting::default(),
        };
        let (model, mut what, part) = if let Some(name) = &measured.rate {
            let rate = self.rates.get(name)?;
            (
                self.rate_mb_per_s(rate, &setting),
                format!("rate of {name}"),
                "bandwidth".to_owned(),
            )
        } else {
            let variant = self.variant(measured.variant.as_deref()?)?;
            let bytes = measured.bytes?;
            let outcome = self.outcome(variant, bytes, &setting);
            let stage_us = || Some(outcome.stage(measured.stage.as_deref()?)?.us);
            let (model, part) = match measured.of {
                Quantity::TotalUs => (outcome.total_us, "total".to_owned()),
                Quantity::Bandwidth | Quantity::Rate => (outcome.bandwidth, "bandwidth".to_owned()),
                Quantity::WaitUs => (outcome.wait_us, "wait".to_owned()),
                Quantity::StageUs => (stage_us()?, measured.stage.clone()?),
                Quantity::StageBandwidth => (bytes as f64 / stage_us()?, measured.stage.clone()?),
            };
            let what = format!("{}, {}: {part}", variant.name, size_name(bytes));
            (model, what, part)
        };
        if measured.improved {
            what.push_str(", improved");
        }
        let unit = match measured.of {
            Quantity::TotalUs | Quantity::StageUs | Quantity::WaitUs => "us",
            Quantity::Bandwidth | Quantity::StageBandwidth | Quantity::Rate => "MB/s",
        };
        Some(Beside {
            what: format!("{}, {what}", measured.source),
            variant: measured.variant.clone(),
            bytes: measured.bytes,
            part,
            unit,
            measured: measured.value,
            model,
            deviation_percent: (model / measured.value - 1.0) * 100.0,
        })
    }
}

fn size_name(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// The median of the deviations' sizes, in percent; `None` without any.
pub fn median_deviation_percent(all: &[Beside]) -> Option<f64> {
    let sizes: Vec<f64> = all.iter().map(|one| one.deviation_percent.abs()).collect();
    (!sizes.is_empty()).then(|| median(&sizes))
}
