//! Options by name, as for `tsumuji_options_set`. Names are those of the command line where it has the option.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tsumuji_node::{IdlePolicy, Options, Pace, ProgressBy, SealMode, Security, quantity};

/// Longest time of an option; more is taken for a mistake.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

const NAMES: &str = "seed, incarnation, budget, message-limit, send-queue, congestion, pace, keep-alive, dead-after, progress, idle, key, seal, open, metrics, tune";

/// Options set by a program so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    options: Options,
    key: Option<PathBuf>,
    tune: Option<PathBuf>,
    mode: Option<SealMode>,
    open: bool,
}

impl Settings {
    /// Sets one option, or says what is accepted.
    pub(crate) fn set(&mut self, name: &str, value: &Path) -> Result<(), String> {
        // Only paths may be any bytes.
        let file = match name {
            "key" => Some(&mut self.key),
            "tune" => Some(&mut self.tune),
            _ => None,
        };
        let shown = value.display();
        if let Some(file) = file {
            if value.as_os_str().is_empty() {
                return Err(format!(
                    "option {name}={shown}: accepted is the path of a file"
                ));
            }
            *file = Some(value.to_owned());
            return Ok(());
        }
        let given = value.to_str();
        let value = given.ok_or_else(|| format!("option {name}={shown}: not UTF-8"))?;
        let options = &mut self.options;
        let outcome = match name {
            "seed" => whole(value).map(|seed| options.seed = seed),
            "incarnation" => match value.parse() {
                Ok(incarnation @ 1..) => {
                    options.incarnation = Some(incarnation);
                    Ok(())
                }
                _ => Err(format!("accepted is a whole number, 1 to {}", u32::MAX)),
            },
            "budget" => bytes(value).map(|bytes| options.budget_bytes = bytes),
            "message-limit" => bytes(value).map(|bytes| options.message_limit_bytes = bytes),
            "send-queue" => bytes(value).map(|bytes| options.send_queue_bytes = bytes),
            "congestion" => value
                .parse()
                .map(|congestion| options.congestion = congestion)
                .map_err(|_| "accepted are credit, suci and suci:K, K from 0 to 4096".to_owned()),
            "pace" => pace(value).map(|pace| options.pace = pace),
            "keep-alive" => seconds(value).map(|span| options.keep_alive = span),
            "dead-after" => seconds(value).map(|span| options.dead_after = span),
            "progress" => match value {
                "assistant" => {
                    options.progress = ProgressBy::Assistant;
                    Ok(())
                }
                "program" => {
                    options.progress = ProgressBy::Program;
                    Ok(())
                }
                _ => Err("accepted are assistant and program".to_owned()),
            },
            "idle" => idle(value).map(|policy| options.idle = policy),
            "metrics" => value
                .parse()
                .map(|at| options.metrics = at)
                .map_err(|error: tsumuji_node::metrics::MetricsAtError| error.to_string()),
            "seal" => value
                .parse()
                .map(|mode| self.mode = Some(mode))
                .map_err(|_| "accepted are encrypt and auth".to_owned()),
            "open" => match value {
                "0" | "1" => {
                    self.open = value == "1";
                    Ok(())
                }
                _ => Err("accepted are 0 and 1".to_owned()),
            },
            _ => Err(format!("there is no such option; there are {NAMES}")),
        };
        outcome.map_err(|problem| format!("option {name}={value}: {problem}"))
    }

    /// Path of the table of algorithms for collectives, if given.
    pub(crate) fn tune(&self) -> Option<PathBuf> {
        self.tune.clone()
    }

    /// The options for an endpoint.
    pub(crate) fn options(&self) -> Options {
        let mut options = self.options.clone();
        options.security = match (&self.key, self.open) {
            (Some(key_file), _) => Security::Sealed {
                key_file: key_file.clone(),
                mode: self.mode.unwrap_or(SealMode::Encrypt),
            },
            (None, true) => Security::Open,
            (None, false) => Security::Unstated,
        };
        options
    }
}

fn whole(value: &str) -> Result<u64, String> {
    value
        .parse()
        .map_err(|_| "accepted is a whole number, 0 or more".to_owned())
}

/// A number of bytes: 1 or more.
fn bytes(value: &str) -> Result<usize, String> {
    quantity::bytes(value)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "accepted is a number of bytes, for example 65536, 64K, 4M".to_owned())
}

/// A time in seconds, more than 0.
fn seconds(value: &str) -> Result<Duration, String> {
    value
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|span| !span.is_zero() && *span <= LONGEST)
        .ok_or_else(|| "accepted is a number of seconds above 0, for example 0.5".to_owned())
}

fn pace(value: &str) -> Result<Pace, String> {
    match value {
        "free" => Ok(Pace::Free),
        "drain" => Ok(Pace::Drain),
        rate => bytes(rate)
            .map(|rate| Pace::BytesPerSecond(rate as u64))
            .map_err(|_| "accepted are free, drain, or bytes a second".to_owned()),
    }
}

fn idle(value: &str) -> Result<IdlePolicy, String> {
    Ok(match value {
        "adaptive" => IdlePolicy::Adaptive,
        "spin" => IdlePolicy::Spin,
        "yield" => IdlePolicy::Yield,
        "sleep" => IdlePolicy::Sleep,
        _ => return Err("accepted are adaptive, spin, yield and sleep".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use tsumuji_node::Congestion;

    /// Accepted options take effect.
    #[test]
    fn options_take_effect() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("seed", "0"),
            ("incarnation", "9"),
            ("budget", "8M"),
            ("message-limit", "1G"),
            ("send-queue", "65536"),
            ("congestion", "suci:0"),
            ("pace", "10M"),
            ("keep-alive", "0.25"),
            ("dead-after", "5"),
            ("idle", "sleep"),
            ("metrics", "off"),
            ("seal", "auth"),
            ("open", "1"),
        ] {
            settings.set(name, Path::new(value)).expect(name);
        }
        let options = settings.options();
        assert_eq!((options.seed, options.incarnation), (0, Some(9)));
        assert_eq!(options.budget_bytes, 8 << 20);
        assert_eq!(options.message_limit_bytes, 1 << 30);
        assert_eq!(options.send_queue_bytes, 65536);
        assert_eq!(options.congestion, Congestion::SUCI_ASKING);
        assert_eq!(options.pace, Pace::BytesPerSecond(10 << 20));
        assert_eq!(options.keep_alive, Duration::from_millis(250));
        assert_eq!(options.dead_after, Duration::from_secs(5));
        assert_eq!(options.idle, IdlePolicy::Sleep);
        assert_eq!(options.security, Security::Open);
        settings.set("key", Path::new("lab.key")).expect("key");
        let any = Path::new(std::ffi::OsStr::from_bytes(b"tune-\xff"));
        settings.set("tune", any).expect("any bytes");
        assert_eq!(settings.tune().as_deref(), Some(any));
        assert!(settings.set("idle", any).is_err());
        assert!(matches!(
            settings.options().security,
            Security::Sealed {
                mode: SealMode::Auth,
                ..
            }
        ));
    }

    /// Invalid values are refused with what is accepted, and change nothing.
    #[test]
    fn senseless_values_are_refused() {
        for (name, value) in [
            ("sead", "1"),
            ("seed", "-1"),
            ("incarnation", "0"),
            ("budget", "0"),
            ("budget", "99999999999999999G"),
            ("send-queue", "M"),
            ("congestion", "none"),
            ("congestion", "suci:4097"),
            ("pace", "0"),
            ("keep-alive", "nan"),
            ("keep-alive", "-1"),
            ("dead-after", "1e300"),
            ("idle", "never"),
            ("key", ""),
            ("tune", ""),
            ("seal", "no"),
            ("open", "yes"),
            ("metrics", "here"),
        ] {
            let error = Settings::default()
                .set(name, Path::new(value))
                .expect_err(name);
            assert!(
                error.starts_with(&format!("option {name}={value}: "))
                    && (error.contains("accepted") || error.contains("there are")),
                "{error}"
            );
        }
    }
}
