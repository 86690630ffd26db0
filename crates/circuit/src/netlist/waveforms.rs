//! Functions of time, at time 0: the value of a source that has no constant one.
//!
//! Called by `cards`. A negative delay has begun before time 0. Formulas and defaults are those of ngspice; where it takes the step or the end of a
//! transient, which an operating point has not, the step is none, and the end never comes.

/// Names of the functions.
pub(super) const NAMES: [&str; 6] = ["pulse", "sin", "sine", "exp", "pwl", "sffm"];

/// The arguments of a function, which are evaluated where they matter.
struct Arguments<'a, V> {
    function: &'a str,
    texts: &'a [&'a str],
    value: V,
}

impl<V: Fn(&str) -> Result<f64, String>> Arguments<'_, V> {
    fn optional(&self, place: usize) -> Result<Option<f64>, String> {
        let text = self.texts.get(place);
        text.map(|text| (self.value)(text)).transpose()
    }

    fn required(&self, place: usize) -> Result<f64, String> {
        let value = self.optional(place)?;
        value.ok_or_else(|| format!("the function {} has too few arguments", self.function))
    }

    fn or(&self, place: usize, default: f64) -> Result<f64, String> {
        Ok(self.optional(place)?.unwrap_or(default))
    }
}

/// The value of `function` at time 0; `value` evaluates an argument. An error is one sentence without the place.
pub(super) fn at_zero(
    function: &str,
    arguments: &[&str],
    value: impl Fn(&str) -> Result<f64, String>,
) -> Result<f64, String> {
    let arguments = Arguments {
        function,
        texts: arguments,
        value,
    };
    match function {
        "pulse" => pulse(&arguments),
        "sin" | "sine" => sine(&arguments),
        "exp" => exponential(&arguments),
        "pwl" => points(&arguments),
        _ => modulated(&arguments),
    }
}

/// V1 V2 delay rise fall width period count.
fn pulse(arguments: &Arguments<'_, impl Fn(&str) -> Result<f64, String>>) -> Result<f64, String> {
    let low = arguments.required(0)?;
    let mut time = -arguments.or(2, 0.0)?;
    if time <= 0.0 {
        return Ok(low);
    }
    let high = arguments.or(1, low)?;
    let (rise, fall) = (arguments.or(3, 0.0)?, arguments.or(4, 0.0)?);
    let width = arguments.or(5, f64::INFINITY)?;
    let (period, count) = (arguments.or(6, 0.0)?, arguments.or(7, 0.0)?);
    if period > 0.0 {
        if count > 0.0 && time > count * period {
            return Ok(low);
        }
        if time > period {
            time -= period * (time / period).floor();
        }
    }
    Ok(if time <= 0.0 || time >= rise + width + fall {
        low
    } else if time < rise {
        low + (high - low) * time / rise
    } else if time <= rise + width {
        high
    } else {
        high + (low - high) * (time - rise - width) / fall
    })
}

/// Offset amplitude frequency delay damping phase.
fn sine(arguments: &Arguments<'_, impl Fn(&str) -> Result<f64, String>>) -> Result<f64, String> {
    let (offset, amplitude) = (arguments.required(0)?, arguments.or(1, 0.0)?);
    let phase = arguments.or(5, 0.0)?.to_radians();
    let time = -arguments.or(3, 0.0)?;
    if time <= 0.0 {
        return Ok(offset + amplitude * phase.sin());
    }
    let turns = std::f64::consts::TAU * arguments.or(2, 0.0)? * time;
    let damping = (-time * arguments.or(4, 0.0)?).exp();
    Ok(offset + amplitude * (turns + phase).sin() * damping)
}

/// V1 V2, delay and time constant of the rise, those of the fall.
fn exponential(
    arguments: &Arguments<'_, impl Fn(&str) -> Result<f64, String>>,
) -> Result<f64, String> {
    let low = arguments.required(0)?;
    let rise = arguments.or(2, 0.0)?;
    // A delay of 0 counts as none.
    let fall = match arguments.or(4, 0.0)? {
        0.0 => rise,
        fall => fall,
    };
    let high = arguments.or(1, low)?;
    // Which part of its way a branch that began at `delay` has gone. Without a time constant that is all.
    let gone = |delay: f64, constant: f64| -(delay / constant).exp_m1();
    let mut value = low;
    if rise < 0.0 {
        value += (high - low) * gone(rise, arguments.or(3, 0.0)?);
        if fall < 0.0 {
            value += (low - high) * gone(fall, arguments.or(5, 0.0)?);
        }
    }
    Ok(value)
}

/// Times and values, linear between them and constant beyond.
fn points(arguments: &Arguments<'_, impl Fn(&str) -> Result<f64, String>>) -> Result<f64, String> {
    let mut before: Option<(f64, f64)> = None;
    for place in (0..arguments.texts.len().max(2)).step_by(2) {
        let (time, value) = (arguments.required(place)?, arguments.required(place + 1)?);
        if time >= 0.0 {
            return Ok(match before {
                Some((earlier, from)) if time > 0.0 => {
                    from + (value - from) * -earlier / (time - earlier)
                }
                _ => value,
            });
        }
        before = Some((time, value));
    }
    before.map_or_else(|| arguments.required(1), |(_, value)| Ok(value))
}

/// Offset amplitude carrier index signal, phases of carrier and signal.
fn modulated(
    arguments: &Arguments<'_, impl Fn(&str) -> Result<f64, String>>,
) -> Result<f64, String> {
    let (offset, amplitude) = (arguments.required(0)?, arguments.or(1, 0.0)?);
    let carrier = arguments.or(5, 0.0)?.to_radians();
    let signal = arguments.or(6, 0.0)?.to_radians();
    let index = arguments.or(3, 0.0)?;
    Ok(offset + amplitude * (carrier + index * signal.sin()).sin())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlist::scope::Scope;

    fn value(text: &str) -> Result<f64, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let scope = Scope::new(None);
        at_zero(words[0], &words[1..], |text| scope.value(text))
    }

    /// Delays before time 0, phases and points: what ngspice 39 computes.
    #[test]
    fn values_are_those_of_ngspice() {
        for (text, wanted) in [
            ("pulse 1 2", 1.0),
            ("pulse 0 5 -1u 1n 1n 10u 20u", 5.0),
            ("pulse 0 5 1u 1n 1n 10u 20u", 0.0),
            ("pulse 0 5 -0.5n 1n 1n 10u 20u", 2.5),
            ("pulse 0 5 -15u 1n 1n 10u 20u", 0.0),
            ("pulse 0 5 -25u 1n 1n 10u 20u", 5.0),
            ("pulse 0 5 -25u 1n 1n 10u 20u 1", 0.0),
            ("pulse 0 5 -25u 1n 1n 10u 20u 2", 5.0),
            ("pulse 0 5 -25u 1n 1n 10u 20u -30", 5.0),
            ("pulse 0 5 -1u 0 0 10u 20u", 5.0),
            ("pulse 1 5 -3u 2u 2u 0 20u", 3.0),
            ("pulse 1 5 -3u 2u 0 0.5u 20u", 1.0),
            ("pulse 1 5 -21u 2u 2u 10u 20u 1.5", 3.0),
            ("pulse 0 5 -1u", 5.0),
            ("sin 0.5 1 1k", 0.5),
            ("sin 0 1 1k -0.25m", 1.0),
            ("sine 0 1 1k 1m 0 90", 1.0),
            ("sin 0.5 1 1k 0 0 30", 1.0),
            ("sin 0.5 1 1k -1m 100 30", 0.952_418_7),
            ("sin 0.5 1 1k -0.3m 1000", 1.204_560),
            ("sin 1 2 1k -0.3m -1000 20", 3.127_407),
            ("exp 1 2 0 1 1 1", 1.0),
            ("exp 0 1 -1 1 5 1", 0.632_120_6),
            ("exp 0 1 -1 1 -0.5 2", 0.410_921_3),
            ("exp 0 1 1 1 -2 1", 0.0),
            ("exp 0 1 -1 1", -0.367_879_4),
            ("exp 0 1 -1 0 0 0", 0.0),
            ("exp 1 3 -1 2 0 1", 0.522_697_6),
            ("exp 1 2 -1 1 -3 1", 0.681_907_6),
            ("pwl -1 0 1 2m", 1e-3),
            ("pwl 0 1 1 2", 1.0),
            ("pwl 1 3 2 4", 3.0),
            ("pwl -2 1 -1 5", 5.0),
            ("pwl -1 1 0 3 0 4 1 2", 3.0),
            ("pwl -3 7", 7.0),
            ("sffm 1 2 1k 1 1k", 1.0),
            ("sffm 1 2 1k 1 1k 90 0", 3.0),
            ("sffm 1 2 1k 1 1k 0 90", 2.682_942),
            ("sffm 1 2 1k 1.5 1k 30 60", 2.936_911),
        ] {
            let found = value(text).unwrap();
            assert!((found - wanted).abs() < 1e-6, "{text}: {found}");
        }
    }

    /// Arguments that are missing or nothing are told.
    #[test]
    fn mistakes_are_told() {
        for (text, wanted) in [
            ("pwl", "the function pwl has too few arguments"),
            ("pwl 0", "the function pwl has too few arguments"),
            ("pulse", "the function pulse has too few arguments"),
            ("pulse 0 1 b", "'b' is neither"),
        ] {
            let error = value(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
