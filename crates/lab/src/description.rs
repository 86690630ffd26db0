//! A machine and its ways to send, as a TOML file tells of them.
//!
//! Read by [`Description::read`], computed by [`crate::model`]. Invariants of a [`Description`]: every number is finite and not below zero, rates are above zero,
//! stages name only rates that are there and earlier stages of their own variant, and measured values name variants, stages and rates that are there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

/// Longest file: a description is written by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most variants, stages of one and measured values: far more than a person writes.
const VARIANTS_MAX: usize = 64;
const STAGES_MAX: usize = 64;
const MEASURED_MAX: usize = 4096;
const RATES_MAX: usize = 64;
/// Largest number of microseconds, bytes, clocks or megabytes a second: products of several stay finite.
const NUMBER_MAX: f64 = 1e12;

/// Where the description is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// There is no such file, or it cannot be read.
    #[error("{}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is accepted.
        problem: String,
    },
    /// The file says something wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// From 1 on.
        line: usize,
        /// What is wrong, and what is accepted.
        problem: String,
    },
}

/// The worker of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The user's program, on the host's processor.
    User,
    /// The operating system, on the host's processor.
    Kernel,
    /// The network interface.
    Interface,
}

impl By {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
            Self::Interface => "interface",
        }
    }
}

/// The clock that stages with `clocked` and rates without `mhz` follow.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Cycles in a microsecond.
    pub mhz: f64,
}

/// What would be if the clock and the bursts were others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Improved {
    /// Cycles of the clock in a microsecond.
    pub mhz: Option<f64>,
    /// Longest burst of the rates that have bursts.
    pub burst_bytes: Option<f64>,
}

/// A bus, memory or link. Megabytes are 10^6 bytes, so that MB/s are bytes in a microsecond.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// As such; or computed from the others.
    pub mb_per_s: Option<f64>,
    /// Cycles in a microsecond; without it those of the clock.
    pub mhz: Option<f64>,
    /// Bytes that pass in a cycle.
    pub bytes_per_clock: Option<f64>,
    /// Bytes that pass in a row; without it there is no limit.
    pub burst_bytes: Option<f64>,
    /// Cycles without data between two bursts.
    #[serde(default)]
    pub gap_clocks: f64,
}

/// What a stage took for so many bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Bytes.
    pub bytes: f64,
    /// Microseconds.
    pub us: f64,
}

/// One step of a send. Its time is the sum of what is given.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name, once in a variant.
    pub name: String,
    /// The worker.
    pub by: By,
    /// Microseconds at any size.
    #[serde(default)]
    pub us: f64,
    /// Microseconds for each word of the data.
    #[serde(default)]
    pub us_per_word: f64,
    /// Microseconds for each page of the data after the first.
    #[serde(default)]
    pub us_per_further_page: f64,
    /// Rates at which the data passes at the same time: the slowest decides.
    #[serde(default)]
    pub rates: Vec<String>,
    /// What the rates took for so many bytes: corrects their time by one factor.
    pub took: Option<Point>,
    /// Stages that must have ended; without it the one above.
    pub after: Option<Vec<String>>,
    /// A stage whose data this one passes on by chunks, while it still runs.
    pub overlaps: Option<String>,
    /// Bytes of such a chunk.
    pub chunk_bytes: Option<f64>,
    /// `us` is of the clock's cycles, and falls with them.
    #[serde(default)]
    pub clocked: bool,
    /// The source does not state it.
    #[serde(default)]
    pub assumed: bool,
}

/// A way to send.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// In an order in which each comes after those it names.
    pub stages: Vec<Stage>,
}

/// What a measured value is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Microseconds of the whole.
    TotalUs,
    /// Bytes over the whole time, in MB/s.
    Bandwidth,
    /// Microseconds of a stage.
    StageUs,
    /// Microseconds from the end of the host's last stage on.
    WaitUs,
    /// Bytes over the time of a stage, in MB/s.
    StageBandwidth,
    /// A rate, in MB/s.
    Rate,
}

/// A measured value, to be compared with the model's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Where it is from.
    pub source: String,
    /// What of.
    pub of: Quantity,
    /// Microseconds or MB/s.
    pub value: f64,
    /// The variant; of every quantity but a rate.
    pub variant: Option<String>,
    /// The stage, if it is of one.
    pub stage: Option<String>,
    /// The rate, if it is of one.
    pub rate: Option<String>,
    /// Bytes of data; of every quantity but a rate.
    pub bytes: Option<u64>,
    /// With the improved clock and bursts.
    #[serde(default)]
    pub improved: bool,
}

/// A machine and its ways to send.
#[derive(Debug, Clone)]
pub struct Description {
    /// What it is of.
    pub title: String,
    /// What had to be assumed.
    pub assumed: Vec<String>,
    /// Bytes of a word that a processor writes.
    pub word_bytes: f64,
    /// Bytes of a page.
    pub page_bytes: f64,
    /// The clock, if there is one.
    pub clock: Option<Clock>,
    /// Another clock and other bursts, if they are foreseen.
    pub improved: Option<Improved>,
    /// By name.
    pub rates: BTreeMap<String, Rate>,
    /// At least one.
    pub variants: Vec<Variant>,
    /// To be compared.
    pub measured: Vec<Measured>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    title: String,
    #[serde(default)]
    assumed: Vec<String>,
    word_bytes: Option<Spanned<f64>>,
    page_bytes: Option<Spanned<f64>>,
    clock: Option<Spanned<Clock>>,
    improved: Option<Spanned<Improved>>,
    #[serde(default)]
    rate: BTreeMap<String, Spanned<Rate>>,
    #[serde(default)]
    variant: Vec<Spanned<RawVariant>>,
    #[serde(default)]
    measured: Vec<Spanned<Measured>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVariant {
    name: String,
    #[serde(default)]
    stage: Vec<Spanned<Stage>>,
}

/// Where in the file, and what is wrong there.
type Fault = (Range<usize>, String);

impl Description {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, DescriptionError> {
        let refused = |problem: String| DescriptionError::Read {
            path: path.to_owned(),
            problem,
        };
        let found = std::fs::metadata(path).map_err(|error| refused(plain(&error)))?;
        if !found.is_file() || found.len() > FILE_BYTES_MAX {
            return Err(refused(
                "is no description; accepted are TOML files of at most 1 MiB".to_owned(),
            ));
        }
        let bytes = std::fs::read(path).map_err(|error| refused(plain(&error)))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| refused("is no text; accepted are TOML files in UTF-8".to_owned()))?;
        Self::parse(&text, path)
    }

    /// Parses a file's text; `path` is for errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, DescriptionError> {
        let refused = |(span, problem): Fault| DescriptionError::Content {
            path: path.to_owned(),
            line: text[..span.start.min(text.len())].matches('\n').count() + 1,
            problem,
        };
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let words = error.message().replace('\n', " ");
            let words = words.replace("expected one of", "accepted are");
            refused((error.span().unwrap_or(0..0), words))
        })?;
        raw.checked().map_err(refused)
    }

    /// The variant of this name.
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }

    /// The names of all variants, for errors.
    pub fn variant_names(&self) -> String {
        names(self.variants.iter().map(|variant| variant.name.as_str()))
    }
}

impl RawFile {
    fn checked(self) -> Result<Description, Fault> {
        for (name, count, most) in [
            ("[[variant]]", self.variant.len(), VARIANTS_MAX),
            ("[[measured]]", self.measured.len(), MEASURED_MAX),
            ("[rate.…]", self.rate.len(), RATES_MAX),
        ] {
            if count > most {
                return Err((
                    0..0,
                    format!("{count} of {name}; accepted are up to {most}"),
                ));
            }
        }
        if self.variant.is_empty() {
            let problem = "no [[variant]]; at least one is needed, with its [[variant.stage]]s";
            return Err((0..0, problem.to_owned()));
        }
        let positive = |name: &str, value: Option<Spanned<f64>>, usual: f64| match value {
            None => Ok(usual),
            Some(value) => above_zero(name, *value.get_ref())
                .map(|()| *value.get_ref())
                .map_err(|problem| (value.span(), problem)),
        };
        let word_bytes = positive("word_bytes", self.word_bytes, 4.0)?;
        let page_bytes = positive("page_bytes", self.page_bytes, 4096.0)?;
        if let Some(clock) = &self.clock {
            above_zero("clock.mhz", clock.get_ref().mhz).map_err(|why| (clock.span(), why))?;
        }
        let clock = self.clock.map(Spanned::into_inner);
        let mut rates = BTreeMap::new();
        for (name, rate) in self.rate {
            let span = rate.span();
            let rate = rate.into_inner();
            rate.check(&name, clock.is_some())
                .map_err(|why| (span, why))?;
            rates.insert(name, rate);
        }
        let has_bursts = rates.values().any(|rate| rate.burst_bytes.is_some());
        if let Some(improved) = &self.improved {
            let span = || improved.span();
            let given = improved.get_ref();
            given
                .check(clock.is_some(), has_bursts)
                .map_err(|why| (span(), why))?;
        }
        let mut variants: Vec<Variant> = Vec::new();
        for variant in self.variant {
            let span = variant.span();
            let variant = variant.into_inner();
            if variants.iter().any(|other| other.name == variant.name) {
                return Err((span, format!("variant '{}' is there twice", variant.name)));
            }
            variants.push(variant.checked(span, &rates, clock.is_some())?);
        }
        let mut description = Description {
            title: self.title,
            assumed: self.assumed,
            word_bytes,
            page_bytes,
            clock,
            improved: self.improved.map(Spanned::into_inner),
            rates,
            variants,
            measured: Vec::new(),
        };
        let mut measured = Vec::with_capacity(self.measured.len());
        for value in self.measured {
            let (span, value) = (value.span(), value.into_inner());
            value.check(&description).map_err(|why| (span, why))?;
            measured.push(value);
        }
        description.measured = measured;
        Ok(description)
    }
}

impl Rate {
    fn check(&self, name: &str, has_clock: bool) -> Result<(), String> {
        let place = |field: &str| format!("rate '{name}', {field}");
        for (field, value) in [
            ("mb_per_s", self.mb_per_s),
            ("mhz", self.mhz),
            ("bytes_per_clock", self.bytes_per_clock),
            ("burst_bytes", self.burst_bytes),
        ] {
            value.map_or(Ok(()), |value| above_zero(&place(field), value))?;
        }
        not_below_zero(&place("gap_clocks"), self.gap_clocks)?;
        let is_computed = self.mhz.is_some() || self.burst_bytes.is_some() || self.gap_clocks > 0.0;
        match (self.mb_per_s, self.bytes_per_clock) {
            (Some(_), None) if !is_computed => Ok(()),
            (None, Some(_)) if self.mhz.is_some() || has_clock => Ok(()),
            (None, Some(_)) => Err(format!(
                "{}: bytes_per_clock without a clock; give mhz here, or [clock]",
                place("bytes_per_clock")
            )),
            _ => Err(format!(
                "rate '{name}': accepted is either mb_per_s, or bytes_per_clock with mhz, burst_bytes and gap_clocks where needed"
            )),
        }
    }
}

impl Improved {
    /// Whether there is something it changes.
    pub(crate) fn check(&self, has_clock: bool, has_bursts: bool) -> Result<(), String> {
        if let Some(mhz) = self.mhz {
            above_zero("mhz", mhz)?;
            if !has_clock {
                return Err("mhz: there is no [clock] that it could change".to_owned());
            }
        }
        if let Some(bytes) = self.burst_bytes {
            above_zero("burst_bytes", bytes)?;
            if !has_bursts {
                return Err("burst_bytes: no rate has burst_bytes that it could change".to_owned());
            }
        }
        Ok(())
    }
}

impl RawVariant {
    fn checked(
        self,
        span: Range<usize>,
        rates: &BTreeMap<String, Rate>,
        has_clock: bool,
    ) -> Result<Variant, Fault> {
        let name = self.name;
        let count = self.stage.len();
        if count == 0 || count > STAGES_MAX {
            let problem = format!(
                "variant '{name}' has {count} [[variant.stage]]s; accepted are 1 to {STAGES_MAX}"
            );
            return Err((span, problem));
        }
        let mut stages: Vec<Stage> = Vec::with_capacity(count);
        for stage in self.stage {
            let (span, stage) = (stage.span(), stage.into_inner());
            let place = format!("variant '{name}', stage '{}'", stage.name);
            stage
                .check(&place, &stages, rates, has_clock)
                .map_err(|why| (span, why))?;
            stages.push(stage);
        }
        Ok(Variant { name, stages })
    }
}

impl Stage {
    fn check(
        &self,
        place: &str,
        earlier: &[Stage],
        rates: &BTreeMap<String, Rate>,
        has_clock: bool,
    ) -> Result<(), String> {
        let is_earlier = |name: &str| earlier.iter().any(|stage| stage.name == name);
        if is_earlier(&self.name) {
            return Err(format!("{place}: the name is there twice"));
        }
        for (field, value) in [
            ("us", self.us),
            ("us_per_word", self.us_per_word),
            ("us_per_further_page", self.us_per_further_page),
        ] {
            not_below_zero(&format!("{place}, {field}"), value)?;
        }
        if let Some(unknown) = self.rates.iter().find(|name| !rates.contains_key(*name)) {
            let known = names(rates.keys().map(String::as_str));
            return Err(format!(
                "{place}, rates: there is no [rate.{unknown}]; accepted: {known}"
            ));
        }
        let before = || names(earlier.iter().map(|stage| stage.name.as_str()));
        let named = self.after.iter().flatten().chain(&self.overlaps);
        for other in named {
            if !is_earlier(other) {
                return Err(format!(
                    "{place}: '{other}' is no earlier stage of this variant; accepted: {}",
                    before()
                ));
            }
        }
        if let Some(point) = self.took {
            above_zero(&format!("{place}, took.bytes"), point.bytes)?;
            above_zero(&format!("{place}, took.us"), point.us)?;
            if self.rates.is_empty() {
                return Err(format!("{place}, took: corrects rates; give rates, too"));
            }
        }
        match (&self.overlaps, self.chunk_bytes) {
            (Some(_), Some(bytes)) => above_zero(&format!("{place}, chunk_bytes"), bytes)?,
            (None, None) => {}
            _ => return Err(format!("{place}: overlaps and chunk_bytes go together")),
        }
        if self.overlaps.is_some() && self.after.is_some() {
            return Err(format!(
                "{place}: accepted is either after or overlaps; the latter begins after the first chunk"
            ));
        }
        if self.clocked && !has_clock {
            return Err(format!("{place}: clocked without [clock]"));
        }
        Ok(())
    }
}

impl Measured {
    fn check(&self, description: &Description) -> Result<(), String> {
        let place = format!("measured of '{}'", self.source);
        above_zero(&format!("{place}, value"), self.value)?;
        if self.improved && description.improved.is_none() {
            return Err(format!("{place}: improved without [improved]"));
        }
        let is_of_stage = matches!(self.of, Quantity::StageUs | Quantity::StageBandwidth);
        let is_of_rate = self.of == Quantity::Rate;
        for (field, is_given, is_wanted) in [
            ("rate", self.rate.is_some(), is_of_rate),
            ("stage", self.stage.is_some(), is_of_stage),
            ("variant", self.variant.is_some(), !is_of_rate),
            ("bytes", self.bytes.is_some(), !is_of_rate),
        ] {
            if is_given != is_wanted {
                let verb = if is_wanted { "needs" } else { "takes no" };
                return Err(format!("{place}: this quantity {verb} `{field}`"));
            }
        }
        if let Some(bytes) = self.bytes {
            above_zero(&format!("{place}, bytes"), bytes as f64)?;
        }
        if let Some(name) = &self.rate
            && !description.rates.contains_key(name)
        {
            let known = names(description.rates.keys().map(String::as_str));
            return Err(format!(
                "{place}: there is no rate '{name}'; accepted: {known}"
            ));
        }
        if let Some(name) = &self.variant {
            let Some(variant) = description.variant(name) else {
                let known = description.variant_names();
                return Err(format!(
                    "{place}: there is no variant '{name}'; accepted: {known}"
                ));
            };
            if let Some(stage) = &self.stage
                && !variant.stages.iter().any(|other| other.name == *stage)
            {
                let known = names(variant.stages.iter().map(|stage| stage.name.as_str()));
                return Err(format!(
                    "{place}: '{name}' has no stage '{stage}'; accepted: {known}"
                ));
            }
        }
        Ok(())
    }
}

fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = all.collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

fn not_below_zero(place: &str, value: f64) -> Result<(), String> {
    if (0.0..=NUMBER_MAX).contains(&value) {
        Ok(())
    } else {
        Err(format!(
            "{place}: {value}; accepted are numbers from 0 to 1e12"
        ))
    }
}

fn above_zero(place: &str, value: f64) -> Result<(), String> {
    if value > 0.0 && value <= NUMBER_MAX {
        Ok(())
    } else {
        Err(format!(
            "{place}: {value}; accepted are numbers above 0, up to 1e12"
        ))
    }
}

/// An error of the operating system without its number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests;
