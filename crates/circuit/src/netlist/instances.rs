//! Unfolds the cards that wait: those of the file, and for each instance those of its subcircuit.
//!
//! Called by `reader` at the end of the file. The nodes and elements of an instance `x1` are called `x1.name`.
//!
//! Invariant: instances are nested [`MOST_DEPTH`] deep at most, and everything that is unfolded has [`Limits::unfolded_bytes`] letters at most.

use super::reader::{Card, Definition, Reader, TOO_MANY_NAMES};
use super::scope::Scope;
use super::values::pieces;
use super::{FileError, Netlist, NodeId, cards, quoted};
use std::collections::{HashMap, HashSet};

#[cfg(doc)]
use super::Limits;

/// Deepest nesting of instances.
const MOST_DEPTH: usize = 64;
/// Longest name of a node or element with the instances around it.
const LONGEST_NAME_BYTES: usize = 4096;
/// What an instance costs beside its cards.
const INSTANCE_BYTES: u64 = 64;

/// An element that refers to a voltage source, which may come later.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) is_current_gain: bool,
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) card: Card,
}

/// What unfolding adds to.
pub(super) struct Unfolding<'a> {
    pub(super) netlist: &'a mut Netlist,
    pub(super) references: Vec<Reference>,
    definitions: &'a [Definition],
    globals: &'a HashSet<&'a str>,
    bytes_left: u64,
    memory_bytes: u64,
}

/// An instance being unfolded, or the file.
pub(super) struct Instance<'a> {
    definition: usize,
    /// The instance that holds it; none around the file.
    around: Option<&'a Instance<'a>>,
    /// `x1.x2.`
    prefix: &'a str,
    ports: HashMap<&'a str, NodeId>,
    pub(super) scope: Scope<'a>,
    depth: usize,
}

/// An error: the card and one sentence.
type Unfolded = Result<(), (Card, String)>;

/// Unfolds everything that waits.
pub(super) fn unfold(reader: &mut Reader<'_>) -> Result<(), FileError> {
    let limits = reader.limits();
    let globals: HashSet<&str> = reader.globals.iter().map(|name| &**name).collect();
    let mut unfolding = Unfolding {
        netlist: &mut reader.netlist,
        references: Vec::new(),
        definitions: &reader.definitions,
        globals: &globals,
        bytes_left: limits.unfolded_bytes,
        memory_bytes: limits.memory_bytes,
    };
    let mut file = Instance {
        definition: 0,
        around: None,
        prefix: "",
        ports: HashMap::new(),
        scope: Scope::new(None),
        depth: 0,
    };
    for (name, text) in &reader.definitions[0].parameters {
        file.scope.define(name, text);
    }
    let outcome = unfolding.cards(&file).and_then(|()| unfolding.resolve());
    outcome.map_err(|(card, what)| reader.lines.error(card.origin, what))
}

impl Instance<'_> {
    /// The nearest instance of a definition: this one, or one around it. The file is around all.
    fn nearest(&self, definition: usize) -> &Instance<'_> {
        let mut found: &Instance<'_> = self;
        while found.definition != definition
            && let Some(around) = found.around
        {
            found = around;
        }
        found
    }
}

impl<'a> Unfolding<'a> {
    /// Adds the elements of an instance.
    fn cards(&mut self, instance: &Instance<'_>) -> Unfolded {
        let definitions = self.definitions;
        for card in &definitions[instance.definition].cards {
            self.card(card, instance).map_err(|error| match error {
                // The innermost card knows best.
                Failure::Here(what) => (card.clone(), what),
                Failure::Within(card, what) => (card, what),
            })?;
        }
        Ok(())
    }

    fn card(&mut self, card: &Card, instance: &Instance<'_>) -> Result<(), Failure> {
        if card.text.starts_with('x') {
            return self.instance(card, instance);
        }
        cards::add(self, card, instance)?;
        if self.netlist.bytes() as u64 > self.memory_bytes {
            return Err("the circuit is too large for the memory that is available"
                .to_owned()
                .into());
        }
        Ok(())
    }

    /// Unfolds the instance that a card makes.
    fn instance(&mut self, card: &Card, outer: &Instance<'_>) -> Result<(), Failure> {
        let pieces = pieces(&card.text)?;
        let mut words = pieces.words;
        if words
            .last()
            .is_some_and(|last| matches!(*last, "params:" | "param:"))
        {
            words.pop();
        }
        let &[name, ref nodes @ .., called] = &words[..] else {
            return Err("an instance has a name, nodes and the name of a subcircuit"
                .to_owned()
                .into());
        };
        let found = self.find(outer.definition, |definition| {
            definition.inner.get(called).copied()
        });
        let (number, _) =
            found.ok_or_else(|| format!("there is no subcircuit {}", quoted(called)))?;
        let definition: &'a Definition = &self.definitions[number];
        if nodes.len() != definition.ports.len() {
            return Err(format!(
                "the subcircuit {} has {} nodes, but {} are given",
                quoted(called),
                definition.ports.len(),
                nodes.len()
            )
            .into());
        }
        if outer.depth >= MOST_DEPTH {
            return Err(format!(
                "instances are nested more than {MOST_DEPTH} deep; does {} hold itself?",
                quoted(called)
            )
            .into());
        }
        self.charge(definition.bytes + card.text.len() as u64 + INSTANCE_BYTES)?;
        let prefix = format!("{}{name}.", outer.prefix);
        if prefix.len() > LONGEST_NAME_BYTES {
            return Err(format!(
                "names of instances are longer than {LONGEST_NAME_BYTES} bytes together"
            )
            .into());
        }
        let mut ports = HashMap::with_capacity(nodes.len());
        for (port, node) in definition.ports.iter().zip(nodes) {
            ports.insert(&**port, self.node(node, outer)?);
        }
        let mut scope = Scope::new(Some(&outer.scope));
        // Parameters of its own replace defaults, and what the instance gives replaces both.
        for (name, text) in definition.defaults.iter().chain(&definition.parameters) {
            scope.define(name, text);
        }
        for (given, text) in &pieces.assignments {
            if !scope.set(given, outer.scope.value(text)?) {
                return Err(format!(
                    "the subcircuit {} has no parameter {}",
                    quoted(called),
                    quoted(given)
                )
                .into());
            }
        }
        let inner = Instance {
            definition: number,
            around: Some(outer),
            prefix: &prefix,
            ports,
            scope,
            depth: outer.depth + 1,
        };
        self.cards(&inner)
            .map_err(|(card, what)| Failure::Within(card, what))
    }

    /// Counts letters that are read once more.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), String> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or(
            "the subcircuits and models unfold to more than is accepted; does one hold others many times?",
        )?;
        Ok(())
    }

    /// Searches a definition, then those around it. Returns also the number of the one where something was found.
    fn find<T>(
        &self,
        definition: usize,
        search: impl Fn(&'a Definition) -> Option<T>,
    ) -> Option<(T, usize)> {
        let mut next = Some(definition);
        while let Some(number) = next {
            let definition = &self.definitions[number];
            if let Some(found) = search(definition) {
                return Some((found, number));
            }
            next = definition.around;
        }
        None
    }

    /// The model that an element of an instance names, and the parameters that the model knows: those of the instance it stands in.
    pub(super) fn model<'i>(
        &self,
        name: &str,
        instance: &'i Instance<'i>,
    ) -> Option<(&'a Card, &'i Scope<'i>)> {
        let (card, definition) = self.find(instance.definition, |definition| {
            definition.models.get(name)
        })?;
        Some((card, &instance.nearest(definition).scope))
    }

    /// The node that a name means within an instance.
    pub(super) fn node(&mut self, name: &str, instance: &Instance<'_>) -> Result<NodeId, String> {
        let is_outside = instance.prefix.is_empty()
            || matches!(name, "0" | "gnd")
            || self.globals.contains(name);
        // A global node is the same everywhere, also where a port has its name.
        if !is_outside && let Some(&node) = instance.ports.get(name) {
            return Ok(node);
        }
        let node = if is_outside {
            self.netlist.node(name)
        } else {
            self.netlist.node(&self.full_name(name, instance)?)
        };
        node.ok_or_else(|| TOO_MANY_NAMES.into())
    }

    /// The name of an element or node with the instances around it.
    pub(super) fn full_name(&self, name: &str, instance: &Instance<'_>) -> Result<String, String> {
        if instance.prefix.len() + name.len() > LONGEST_NAME_BYTES {
            return Err(format!(
                "the name {} is longer than {LONGEST_NAME_BYTES} bytes",
                quoted(name)
            ));
        }
        Ok(format!("{}{name}", instance.prefix))
    }

    /// Finds the voltage sources whose currents control others.
    fn resolve(&mut self) -> Unfolded {
        if self.references.is_empty() {
            return Ok(());
        }
        let places: HashMap<u32, u32> = (0..)
            .zip(&self.netlist.voltages)
            .map(|(place, source)| (source.name, place))
            .collect();
        for reference in std::mem::take(&mut self.references) {
            let number = self.netlist.sources.find(&reference.name);
            let Some(&place) = number.and_then(|number| places.get(&number)) else {
                let what = format!(
                    "there is no voltage source {}, whose current is the control",
                    quoted(&reference.name)
                );
                return Err((reference.card, what));
            };
            let list = match reference.is_current_gain {
                true => &mut self.netlist.current_gains,
                false => &mut self.netlist.transresistances,
            };
            list[reference.place].control = place;
        }
        Ok(())
    }
}

/// Why a card is refused: for itself, or for a card within its instance.
enum Failure {
    Here(String),
    Within(Card, String),
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::Here(what)
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        Self::Here(what.into())
    }
}
