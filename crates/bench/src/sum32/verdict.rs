//! Whether the adaptive executor is as fast as it is to be: beside the executors between which it chooses, TCP, and the limit, by medians of one run.

use serde::{Deserialize, Serialize};
use tsumuji_node::Executor;

use super::{Tcp, ours};
use crate::versus::Standing;

/// Up to so many loops a service is light: run-to-completion is to serve it.
const LIGHT_LOOPS: u32 = 10;
/// From so many on it is heavy: workers are to serve it, and it is to be ahead of TCP.
const HEAVY_LOOPS: u32 = 100;
/// Parts of the rates of run-to-completion (light services) and of the pipeline (heavy ones) that are to be reached.
const OF_RTC: f64 = 0.97;
const OF_PIPELINE: f64 = 0.95;

/// What the adaptive executor is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Against {
    /// The better of the two other executors.
    Better,
    /// The pipeline.
    Pipeline,
    /// Run-to-completion.
    Rtc,
    /// TCP with NODELAY, one call for each message.
    Tcp,
    /// What one core computes without messages.
    Limit,
}

impl Against {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Better,
        Self::Pipeline,
        Self::Rtc,
        Self::Tcp,
        Self::Limit,
    ];

    /// Name of the ratio in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Better => "adaptive / better of both",
            Self::Pipeline => "adaptive / pipeline",
            Self::Rtc => "adaptive / rtc",
            Self::Tcp => "adaptive / TCP, NODELAY",
            Self::Limit => "adaptive / limit",
        }
    }

    /// The ratio that is to be reached at so many loops.
    fn least(self, loops: u32) -> Option<f64> {
        match self {
            Self::Pipeline => (loops >= HEAVY_LOOPS).then_some(OF_PIPELINE),
            Self::Rtc => (loops <= LIGHT_LOOPS).then_some(OF_RTC),
            Self::Tcp => (loops >= HEAVY_LOOPS).then_some(1.0),
            Self::Better | Self::Limit => None,
        }
    }
}

/// A ratio, and whether it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The adaptive executor, divided by what.
    pub against: Against,
    /// The ratio of the medians.
    pub ratio: f64,
    /// What it is to be at least, if it is to be anything.
    pub least: Option<f64>,
    /// Whether it is.
    pub within: Option<bool>,
}

impl Verdict {
    /// As tables show it.
    pub fn text(&self) -> String {
        let word = match (self.within, self.against) {
            (None, _) => "",
            (Some(true), Against::Tcp) => " ahead",
            (Some(false), Against::Tcp) => " not ahead",
            (Some(true), _) => " within",
            (Some(false), _) => " not within",
        };
        format!("{:.2}x{word}", self.ratio)
    }
}

/// What is asked for, in words.
pub fn rule() -> String {
    let percent = |part: f64| (1.0 - part) * 100.0;
    format!(
        "wanted of adaptive, by medians: within {:.0} % of pipeline, and ahead of TCP, from {HEAVY_LOOPS} loops on; within {:.0} % of rtc up to {LIGHT_LOOPS}",
        percent(OF_PIPELINE),
        percent(OF_RTC)
    )
}

/// The verdicts on one number of loops, as far as the contenders were measured. `compute`: what one core computes without messages.
pub fn of(loops: u32, standings: &[Standing], compute: f64) -> Vec<Verdict> {
    let median = |name: &str| {
        let standing = standings.iter().find(|standing| standing.name == name);
        standing.map_or(f64::NAN, Standing::median)
    };
    let [rtc, pipeline, adaptive] = [
        Executor::RunToCompletion,
        Executor::Pipeline,
        Executor::Adaptive,
    ]
    .map(|executor| median(&ours(executor)));
    let verdict = |against: Against| {
        let ratio = adaptive
            / match against {
                Against::Better => rtc.max(pipeline),
                Against::Pipeline => pipeline,
                Against::Rtc => rtc,
                Against::Tcp => median(Tcp::NoDelay.name()),
                Against::Limit => compute,
            };
        let least = against.least(loops);
        ratio.is_finite().then(|| Verdict {
            against,
            ratio,
            least,
            within: least.map(|least| ratio >= least),
        })
    };
    Against::ALL.into_iter().filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standings(rates: &[(&str, f64)]) -> Vec<Standing> {
        let standing = |(name, rate): &(&str, f64)| Standing::of(*name, Ok(vec![*rate]));
        rates.iter().map(standing).collect()
    }

    fn found(verdicts: &[Verdict], against: Against) -> Option<Verdict> {
        let mut all = verdicts.iter().copied();
        all.find(|verdict| verdict.against == against)
    }

    /// Light services are judged by run-to-completion, heavy ones by the pipeline and TCP, and the limit judges nothing.
    #[test]
    fn light_and_heavy_services_are_judged_differently() {
        let all = standings(&[
            ("ours, rtc", 100.0),
            ("ours, pipeline", 80.0),
            ("ours, adaptive", 96.0),
            ("TCP, NODELAY", 97.0),
        ]);
        let light = of(10, &all, 200.0);
        let within = |list: &[Verdict], against| found(list, against).unwrap().within;
        assert_eq!(within(&light, Against::Rtc), Some(false));
        assert_eq!(within(&light, Against::Pipeline), None);
        assert_eq!(within(&light, Against::Tcp), None);
        let heavy = of(100, &all, 200.0);
        assert_eq!(within(&heavy, Against::Rtc), None);
        assert_eq!(within(&heavy, Against::Pipeline), Some(true));
        assert_eq!(within(&heavy, Against::Tcp), Some(false));
        let limit = found(&heavy, Against::Limit).unwrap();
        assert_eq!((limit.ratio, limit.within), (0.48, None));
        assert_eq!(
            found(&heavy, Against::Tcp).unwrap().text(),
            "0.99x not ahead"
        );
        let better = found(&heavy, Against::Better).unwrap();
        assert_eq!((better.ratio, better.text().as_str()), (0.96, "0.96x"));
        assert_eq!(
            found(&light, Against::Rtc).unwrap().text(),
            "0.96x not within"
        );
    }

    /// What was not measured is not judged, and verdicts are read as they were written.
    #[test]
    fn missing_contenders_are_not_judged() {
        let few = of(
            1,
            &standings(&[("ours, rtc", 1.0), ("ours, adaptive", 1.0)]),
            2.0,
        );
        let against: Vec<Against> = few.iter().map(|verdict| verdict.against).collect();
        assert_eq!(against, [Against::Better, Against::Rtc, Against::Limit]);
        assert!(of(1, &standings(&[("ours, rtc", 1.0)]), 2.0).is_empty());
        let text = serde_json::to_string(&few).unwrap();
        assert!(text.contains(r#""against":"rtc","ratio":1.0"#), "{text}");
        assert_eq!(serde_json::from_str::<Vec<Verdict>>(&text).unwrap(), few);
    }
}
