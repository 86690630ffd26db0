//! Lines that begin with a dot.
//!
//! Called by `reader`. What changes the circuit or asks for a computation is read, what concerns other computations or printing is skipped and noted,
//! everything else is refused.

use super::reader::{Card, Definition, Reader};
use super::scope::Scope;
use super::values::{pieces, words};
use super::{Analysis, FileError, Netlist, Origin, SourceRef, quoted};

/// Most points of a sweep.
const MOST_POINTS: usize = 100_000;
/// Deepest nesting of definitions.
const MOST_OPEN: usize = 32;
/// Diodes are computed at this temperature, in °C.
pub(super) const NOMINAL_TEMPERATURE: f64 = 27.0;

/// Without effect on what is computed here.
const HARMLESS: [&str; 24] = [
    ".print",
    ".plot",
    ".probe",
    ".save",
    ".options",
    ".option",
    ".opt",
    ".tran",
    ".ac",
    ".noise",
    ".four",
    ".meas",
    ".measure",
    ".width",
    ".nodeset",
    ".ic",
    ".title",
    ".tf",
    ".sens",
    ".pz",
    ".disto",
    ".backanno",
    ".csdf",
    ".post",
];

/// Reads one directive. `false`: the netlist ends here.
pub(super) fn read(reader: &mut Reader<'_>, card: &str, origin: Origin) -> Result<bool, FileError> {
    let (keyword, rest) = card
        .split_once(|c: char| c.is_whitespace())
        .unwrap_or((card, ""));
    let keyword = keyword.to_ascii_lowercase();
    let rest = rest.trim();
    let outcome = match keyword.as_str() {
        ".end" => return end(reader, origin),
        ".include" | ".inc" | ".incl" => return reader.lines.include(rest, origin).map(|()| true),
        ".control" => return skip_control(reader, origin),
        ".op" => Ok(()),
        ".dc" => dc(reader, rest, origin),
        ".subckt" => begin_definition(reader, rest, origin),
        ".ends" => end_definition(reader, rest),
        ".param" | ".params" | ".parameter" => parameters(reader, rest),
        ".model" => model(reader, rest, origin),
        ".global" => {
            reader
                .globals
                .extend(words(rest).into_iter().map(Into::into));
            Ok(())
        }
        ".temp" => temperature(rest),
        other if HARMLESS.contains(&other) => options(reader, other, rest).map(|is_whole| {
            if !is_whole {
                reader.skipped.entry(keyword.clone()).or_insert(origin.line);
            }
        }),
        other => Err(format!(
            "{} is not read; read are .subckt .ends .param .model .include .global .op .dc .end, and skipped are .tran .ac .print .options and their like",
            quoted(other)
        )),
    };
    outcome.map_err(|what| reader.lines.error(origin, what))?;
    reader.count(card, origin)?;
    Ok(true)
}

/// The end of a file: an included one, or the netlist.
fn end(reader: &mut Reader<'_>, origin: Origin) -> Result<bool, FileError> {
    if reader.lines.end_file() {
        return Ok(true);
    }
    if let Some(&(number, _)) = reader.open.last()
        && number > 0
    {
        let name = quoted(&reader.definitions[number].name);
        let what =
            format!("the netlist ends within the subcircuit {name}; .ends is expected before");
        return Err(reader.lines.error(origin, what));
    }
    Ok(false)
}

/// Commands for an interactive program.
fn skip_control(reader: &mut Reader<'_>, origin: Origin) -> Result<bool, FileError> {
    reader
        .skipped
        .entry(".control".into())
        .or_insert(origin.line);
    let mut text = String::new();
    while let Some(origin) = reader.lines.next(&mut text)? {
        match text.trim() {
            ".endc" => return Ok(true),
            ".end" => return end(reader, origin),
            _ => {}
        }
    }
    Ok(true)
}

fn dc(reader: &mut Reader<'_>, rest: &str, origin: Origin) -> Result<(), String> {
    if reader.sweep.is_some() {
        return Err("there is another .dc; one sweep is computed".into());
    }
    let text = rest.into();
    reader.sweep = Some(Card { text, origin });
    Ok(())
}

fn begin_definition(reader: &mut Reader<'_>, rest: &str, origin: Origin) -> Result<(), String> {
    if reader.open.len() > MOST_OPEN {
        return Err(format!(
            "subcircuits are defined within each other more than {MOST_OPEN} deep"
        ));
    }
    let pieces = pieces(rest)?;
    let (&name, ports) = pieces
        .words
        .split_first()
        .ok_or(".subckt needs a name, then its nodes")?;
    let mut ports: Vec<Box<str>> = ports.iter().map(|&port| port.into()).collect();
    if ports
        .last()
        .is_some_and(|last| matches!(&**last, "params:" | "param:"))
    {
        ports.pop();
    }
    let mut sorted: Vec<&str> = ports.iter().map(|port| &**port).collect();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!(
            "the subcircuit {} has two nodes {}",
            quoted(name),
            quoted(pair[0])
        ));
    }
    if let Some(ground) = ports.iter().find(|port| matches!(&***port, "0" | "gnd")) {
        return Err(format!(
            "the node {ground} is ground everywhere and cannot be a node of a subcircuit"
        ));
    }
    let number = reader.definitions.len();
    if reader
        .innermost()
        .inner
        .insert(name.into(), number)
        .is_some()
    {
        return Err(format!("the subcircuit {} is defined twice", quoted(name)));
    }
    let defaults = pieces
        .assignments
        .iter()
        .map(|&(name, value)| (name.into(), value.into()));
    let definition = Definition {
        name: name.into(),
        ports,
        defaults: defaults.collect(),
        around: reader.open.last().map(|open| open.0),
        bytes: rest.len() as u64,
        ..Definition::default()
    };
    reader.definitions.push(definition);
    reader.open.push((number, origin));
    Ok(())
}

fn end_definition(reader: &mut Reader<'_>, rest: &str) -> Result<(), String> {
    if reader.open.len() < 2 {
        return Err(".ends without .subckt before it".into());
    }
    let name = &reader.innermost().name;
    if !rest.is_empty() && *rest != **name {
        return Err(format!(
            ".ends {} ends the subcircuit {}; write that name or none",
            quoted(rest),
            quoted(name)
        ));
    }
    reader.open.pop();
    Ok(())
}

fn parameters(reader: &mut Reader<'_>, rest: &str) -> Result<(), String> {
    let pieces = pieces(rest)?;
    if !pieces.words.is_empty() || pieces.assignments.is_empty() {
        return Err(".param takes name=value".into());
    }
    let owned = pieces
        .assignments
        .iter()
        .map(|&(name, value)| (name.into(), value.into()));
    reader.innermost().parameters.extend(owned);
    Ok(())
}

fn model(reader: &mut Reader<'_>, rest: &str, origin: Origin) -> Result<(), String> {
    let name = rest
        .split(|c: char| c.is_whitespace() || c == '(')
        .next()
        .unwrap_or("");
    if name.is_empty() {
        return Err(
            ".model needs a name, a type and parameters: .model NAME D(IS=1e-14 N=1 RS=0)".into(),
        );
    }
    let card = Card {
        text: rest.into(),
        origin,
    };
    if reader
        .innermost()
        .models
        .insert(name.into(), card)
        .is_some()
    {
        return Err(format!("the model {} is defined twice", quoted(name)));
    }
    Ok(())
}

fn temperature(text: &str) -> Result<(), String> {
    match Scope::new(None).value(text) {
        Ok(NOMINAL_TEMPERATURE) => Ok(()),
        _ => Err(format!(
            "circuits are computed at {NOMINAL_TEMPERATURE} degrees; leave other temperatures out"
        )),
    }
}

/// Of all options only the temperature and the conductance beside diodes change an operating point. Returns whether nothing else is there.
fn options(reader: &mut Reader<'_>, keyword: &str, rest: &str) -> Result<bool, String> {
    if !keyword.starts_with(".opt") {
        return Ok(false);
    }
    let pieces = pieces(rest)?;
    let mut is_whole = pieces.words.is_empty();
    for (name, value) in pieces.assignments {
        let value = value.split_whitespace().next().unwrap_or("");
        match name {
            "temp" | "tnom" => temperature(value)?,
            "gmin" => match Scope::new(None).value(value) {
                Ok(gmin) if gmin > 0.0 && gmin.is_finite() => reader.netlist.gmin = gmin,
                _ => {
                    return Err(format!(
                        "gmin is {}; accepted are conductances above 0",
                        quoted(value)
                    ));
                }
            },
            _ => is_whole = false,
        }
    }
    Ok(is_whole)
}

/// The points of a `.dc`, whose numbers may be expressions of the file's parameters. An error is one sentence without the place.
pub(super) fn sweep(netlist: &Netlist, scope: &Scope<'_>, text: &str) -> Result<Analysis, String> {
    let words = words(text);
    let &[name, start, stop, step] = &words[..] else {
        return Err(
            ".dc takes a source, its first value, its last value and a step; one source is varied"
                .into(),
        );
    };
    let source = find_source(netlist, name).ok_or_else(|| {
        format!(
            ".dc: there is no voltage or current source {}",
            quoted(name)
        )
    })?;
    let (start, stop, step) = (scope.value(start)?, scope.value(stop)?, scope.value(step)?);
    let steps = (stop - start) / step;
    if !steps.is_finite() || steps < 0.0 {
        return Err(format!(
            ".dc: steps of {step:e} do not lead from {start:e} to {stop:e}"
        ));
    }
    // A last step that rounding has made too long is a step.
    let points = (steps * (1.0 + 1e-9) + 1e-9).floor() + 1.0;
    if points > MOST_POINTS as f64 {
        return Err(format!(
            ".dc: there are {points:e} points; the limit is {MOST_POINTS}"
        ));
    }
    let values = (0..points as usize)
        .map(|point| start + point as f64 * step)
        .collect();
    Ok(Analysis::Sweep { source, values })
}

/// A source by its name; `v.x1.v1` is what other programs call `x1.v1`.
fn find_source(netlist: &Netlist, name: &str) -> Option<SourceRef> {
    let of_type = |kind| name.strip_prefix(kind);
    let inner = of_type("v.").or_else(|| of_type("i."));
    let sources = &netlist.sources;
    let number = sources.find(name).or_else(|| sources.find(inner?))?;
    let position = |sources: &[super::Source]| {
        sources
            .iter()
            .position(|source| source.name == number)
            .map(|place| place as u32)
    };
    match position(&netlist.voltages) {
        Some(place) => Some(SourceRef::Voltage(place)),
        None => position(&netlist.currents).map(SourceRef::Current),
    }
}
