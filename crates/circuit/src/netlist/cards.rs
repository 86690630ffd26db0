//! Elements: what each letter takes.
//!
//! Called by `instances` for each card that waited. An error is one sentence without the place.

use super::directives::NOMINAL_TEMPERATURE;
use super::instances::{Instance, Reference, Unfolding};
use super::reader::Card;
use super::scope::Scope;
use super::values::{Pieces, pieces};
use super::{CurrentControlled, Diode, Pair, Source, VoltageControlled, quoted, waveforms};

/// Models of so many letters are read for each diode, longer ones count as unfolded.
const USUAL_MODEL_BYTES: usize = 256;
/// Parameters of diode models that do not matter for constant currents at the nominal temperature.
const DYNAMIC: [&str; 20] = [
    "cjo", "cj0", "cj", "tt", "vj", "pb", "m", "mj", "fc", "fcs", "kf", "af", "eg", "xti", "jsw",
    "cjp", "cjsw", "php", "mjsw", "trs",
];

/// Adds the element of a card.
pub(super) fn add(
    unfolding: &mut Unfolding<'_>,
    card: &Card,
    instance: &Instance<'_>,
) -> Result<(), String> {
    let pieces = pieces(&card.text)?;
    let &[name, ..] = &pieces.words[..] else {
        return Err("the line begins with no element".into());
    };
    let kind = name.as_bytes()[0];
    match kind {
        b'r' | b'c' | b'l' | b'v' | b'i' | b'd' | b'e' | b'f' | b'g' | b'h' => {}
        // Coupled inductors are short circuits, too.
        b'k' => return Ok(()),
        _ => {
            return Err(format!(
                "{} is no element that is read; elements begin with R C L K V I E F G H D X",
                quoted(name)
            ));
        }
    }
    let &[_, a, b, ref rest @ ..] = &pieces.words[..] else {
        return Err(format!("the element {} needs two nodes", quoted(name)));
    };
    let nodes = [unfolding.node(a, instance)?, unfolding.node(b, instance)?];
    let netlist = &mut *unfolding.netlist;
    match kind {
        b'r' => {
            let ohms = resistance(&pieces, rest, &instance.scope)?;
            netlist.add_resistor(nodes, ohms);
        }
        b'c' => netlist.capacitors += 1,
        b'l' => netlist.shorts.push(nodes),
        b'v' | b'i' => {
            let value = constant(&pieces, rest, &instance.scope)?;
            let name = source_name(unfolding, name, instance)?;
            let source = Source { nodes, value, name };
            let netlist = &mut *unfolding.netlist;
            if kind == b'v' {
                &mut netlist.voltages
            } else {
                &mut netlist.currents
            }
            .push(source);
        }
        b'e' | b'g' => voltage_controlled(unfolding, kind, name, nodes, rest, &pieces, instance)?,
        b'f' | b'h' => {
            current_controlled(unfolding, card, kind, name, nodes, rest, &pieces, instance)?
        }
        _ => diode(unfolding, name, nodes, rest, &pieces, instance)?,
    }
    Ok(())
}

fn source_name(
    unfolding: &mut Unfolding<'_>,
    name: &str,
    instance: &Instance<'_>,
) -> Result<u32, String> {
    let name = unfolding.full_name(name, instance)?;
    unfolding.netlist.name_source(&name)
}

/// `R1 a b 1k`, `R1 a b r={x} m=2`; coefficients of temperature do not matter at the nominal one.
fn resistance(pieces: &Pieces<'_>, rest: &[&str], scope: &Scope<'_>) -> Result<f64, String> {
    let mut ohms = match rest {
        [] => None,
        [value] => Some(scope.value(value)?),
        [_, more, ..] => {
            return Err(format!(
                "after the resistance follows {}; m= may follow",
                quoted(more)
            ));
        }
    };
    let mut multiplier = 1.0;
    for (name, text) in &pieces.assignments {
        match *name {
            "r" if ohms.is_none() => ohms = Some(scope.value(text)?),
            "m" => multiplier = positive("m", scope.value(text)?)?,
            "tc" | "tc1" | "tc2" | "ac" | "noisy" => {}
            other => {
                return Err(format!(
                    "a resistor has no {}; it has r, m, tc1 and tc2",
                    quoted(other)
                ));
            }
        }
    }
    match ohms {
        Some(ohms) => Ok(ohms / multiplier),
        None => Err("the resistor has no resistance".into()),
    }
}

fn positive(name: &str, value: f64) -> Result<f64, String> {
    if value > 0.0 {
        Ok(value)
    } else {
        Err(format!("{name} is {value:e}; it must be above 0"))
    }
}

/// The constant value of a source; that of a function of time at time 0 where none is given.
fn constant(pieces: &Pieces<'_>, rest: &[&str], scope: &Scope<'_>) -> Result<f64, String> {
    let mut constant = None;
    let mut at_zero = None;
    for (name, text) in &pieces.assignments {
        match *name {
            "dc" => constant = Some(scope.value(text)?),
            other => return Err(format!("a source has no {}; it has dc", quoted(other))),
        }
    }
    let mut rest = rest;
    while let Some((&word, more)) = rest.split_first() {
        rest = more;
        if word == "dc" {
            let (value, more) = rest.split_first().ok_or("after dc a value is expected")?;
            constant = Some(scope.value(value)?);
            rest = more;
        } else if word == "ac" {
            // Magnitude and phase; neither matters here.
            let numbers = rest
                .iter()
                .take(2)
                .take_while(|word| !is_keyword(word))
                .count();
            rest = &rest[numbers..];
        } else if waveforms::NAMES.contains(&word) {
            let arguments = rest
                .iter()
                .take_while(|word| !matches!(**word, "ac" | "dc"))
                .count();
            let value = |text: &str| scope.value(text);
            at_zero = Some(waveforms::at_zero(word, &rest[..arguments], value)?);
            rest = &rest[arguments..];
        } else if constant.is_none() {
            constant = Some(scope.value(word)?);
        } else {
            return Err(format!(
                "after the value follows {}; ac or a function of time may follow",
                quoted(word)
            ));
        }
    }
    Ok(constant.or(at_zero).unwrap_or(0.0))
}

fn is_keyword(word: &str) -> bool {
    matches!(word, "ac" | "dc") || waveforms::NAMES.contains(&word)
}

/// `E1 a b c d gain`, `G1 a b c d siemens`.
fn voltage_controlled(
    unfolding: &mut Unfolding<'_>,
    kind: u8,
    name: &str,
    nodes: Pair,
    rest: &[&str],
    pieces: &Pieces<'_>,
    instance: &Instance<'_>,
) -> Result<(), String> {
    let &[c, d, gain] = rest else {
        return Err(linear_only(
            name,
            "two nodes, two controlling nodes and a factor",
        ));
    };
    let multiplier = multiplier(pieces, &instance.scope, kind == b'g')?;
    let control = [unfolding.node(c, instance)?, unfolding.node(d, instance)?];
    let element = VoltageControlled {
        nodes,
        control,
        gain: instance.scope.value(gain)? * multiplier,
        name: source_name(unfolding, name, instance)?,
    };
    let netlist = &mut *unfolding.netlist;
    if kind == b'e' {
        &mut netlist.voltage_gains
    } else {
        &mut netlist.transconductances
    }
    .push(element);
    Ok(())
}

/// `F1 a b v1 gain`, `H1 a b v1 ohms`.
#[expect(clippy::too_many_arguments, reason = "the pieces of one card")]
fn current_controlled(
    unfolding: &mut Unfolding<'_>,
    card: &Card,
    kind: u8,
    name: &str,
    nodes: Pair,
    rest: &[&str],
    pieces: &Pieces<'_>,
    instance: &Instance<'_>,
) -> Result<(), String> {
    let &[control, gain] = rest else {
        return Err(linear_only(
            name,
            "two nodes, a voltage source and a factor",
        ));
    };
    let multiplier = multiplier(pieces, &instance.scope, kind == b'f')?;
    let element = CurrentControlled {
        nodes,
        control: u32::MAX,
        gain: instance.scope.value(gain)? * multiplier,
        name: source_name(unfolding, name, instance)?,
    };
    let control = unfolding.full_name(control, instance)?;
    let is_current_gain = kind == b'f';
    let netlist = &mut *unfolding.netlist;
    let list = if is_current_gain {
        &mut netlist.current_gains
    } else {
        &mut netlist.transresistances
    };
    list.push(element);
    let place = list.len() - 1;
    unfolding.references.push(Reference {
        is_current_gain,
        place,
        name: control,
        card: card.clone(),
    });
    Ok(())
}

fn linear_only(name: &str, wanted: &str) -> String {
    format!(
        "{} takes {wanted}; polynomials, tables and expressions of voltages are not read",
        quoted(name)
    )
}

/// `m=` of a source of current.
fn multiplier(pieces: &Pieces<'_>, scope: &Scope<'_>, is_current: bool) -> Result<f64, String> {
    match pieces.assignments[..] {
        [] => Ok(1.0),
        [("m", text)] if is_current => scope.value(text),
        [(name, _), ..] => Err(format!("{} is not read here; a factor is", quoted(name))),
    }
}

/// `D1 anode cathode model [area]`.
fn diode(
    unfolding: &mut Unfolding<'_>,
    name: &str,
    nodes: Pair,
    rest: &[&str],
    pieces: &Pieces<'_>,
    instance: &Instance<'_>,
) -> Result<(), String> {
    let scope = &instance.scope;
    let Some((&model, rest)) = rest.split_first() else {
        return Err(format!(
            "the diode {} needs two nodes and a model",
            quoted(name)
        ));
    };
    let mut area = 1.0;
    for word in rest.iter().filter(|word| **word != "off") {
        area = positive("the area", scope.value(word)?)?;
    }
    for (name, text) in &pieces.assignments {
        let text = text.strip_suffix(" off").unwrap_or(text);
        match *name {
            "area" | "m" => area *= positive(name, scope.value(text)?)?,
            "ic" => {}
            other => {
                return Err(format!(
                    "a diode has no {} here; it has area and m",
                    quoted(other)
                ));
            }
        }
    }
    let (card, model_scope) = unfolding
        .model(model, instance)
        .ok_or_else(|| format!("there is no model {}", quoted(model)))?;
    let beyond = card.text.len().saturating_sub(USUAL_MODEL_BYTES);
    unfolding.charge(beyond as u64)?;
    let mut diode = diode_of_model(&card.text, model_scope).map_err(|what| {
        format!(
            "the model {} in line {}: {what}",
            quoted(model),
            card.origin.line
        )
    })?;
    diode.nodes = nodes;
    diode.saturation_amperes *= area;
    diode.series_ohms /= area;
    diode.name = source_name(unfolding, name, instance)?;
    unfolding.netlist.diodes.push(diode);
    Ok(())
}

/// `NAME D(IS=1e-14 N=1 RS=0)`: a diode without nodes and of area 1.
fn diode_of_model(text: &str, scope: &Scope<'_>) -> Result<Diode, String> {
    let text = text.trim_end();
    let text = text.strip_suffix(')').unwrap_or(text);
    let pieces = pieces(text)?;
    match pieces.words[..] {
        [_, "d"] => {}
        [_, kind, ..] => return Err(format!("the type is {}; diodes (D) are read", quoted(kind))),
        _ => return Err("there is no type".into()),
    }
    let mut diode = Diode {
        nodes: [super::NodeId::GROUND; 2],
        saturation_amperes: 1e-14,
        emission: 1.0,
        series_ohms: 0.0,
        breakdown_volts: f64::INFINITY,
        name: u32::MAX,
    };
    for &(name, text) in &pieces.assignments {
        let value = scope.value(text)?;
        match name {
            "is" | "js" => diode.saturation_amperes = positive(name, value)?,
            "n" => diode.emission = positive(name, value)?,
            "rs" if value >= 0.0 => diode.series_ohms = value,
            "rs" => return Err(format!("rs is {value:e}; it must not be negative")),
            "bv" => diode.breakdown_volts = positive(name, value)?,
            "ibv" => {}
            "level" if value == 1.0 => {}
            "tnom" if value == NOMINAL_TEMPERATURE => {}
            "level" | "tnom" => {
                return Err(format!(
                    "{name} is {value}; read are level 1 and {NOMINAL_TEMPERATURE} degrees"
                ));
            }
            other if DYNAMIC.contains(&other) => {}
            other => {
                return Err(format!(
                    "a diode's model has no {} here; it has IS, N, RS and BV",
                    quoted(other)
                ));
            }
        }
    }
    Ok(diode)
}
