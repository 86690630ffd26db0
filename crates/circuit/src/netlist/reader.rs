//! Reads the lines of a netlist once, stores plain elements as they come and everything else by the scope it stands in, then unfolds the rest.
//!
//! Called by `super`. Most lines of a large netlist are resistors and sources of a plain value: these go straight to the [`Netlist`], so that they
//! cost one look-up for each of their nodes. All other cards wait in the [`Definition`] they stand in; the file itself is the first of these.

use super::lines::Lines;
use super::scope::Scope;
use super::{Analysis, Limits, Netlist, NodeId, Origin, Resistor, Source};
use super::{directives, instances, number, quoted};
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::path::PathBuf;
use tsumuji_numbers::{FileError, Place};

/// A line that is read later.
#[derive(Debug, Clone)]
pub(super) struct Card {
    pub(super) text: Box<str>,
    pub(super) origin: Origin,
}

/// A subcircuit as written, or the file itself.
#[derive(Debug, Default)]
pub(super) struct Definition {
    pub(super) name: Box<str>,
    pub(super) ports: Vec<Box<str>>,
    /// Parameters of instances, and their values where an instance gives none.
    pub(super) defaults: Vec<(Box<str>, Box<str>)>,
    /// Parameters of its own.
    pub(super) parameters: Vec<(Box<str>, Box<str>)>,
    pub(super) models: HashMap<Box<str>, Card>,
    pub(super) inner: HashMap<Box<str>, usize>,
    pub(super) cards: Vec<Card>,
    /// The definition it stands in.
    pub(super) around: Option<usize>,
    /// Letters of everything above, for [`Limits`].
    pub(super) bytes: u64,
}

/// State of a reading.
pub(super) struct Reader<'a> {
    pub(super) lines: Lines<'a>,
    pub(super) netlist: Netlist,
    pub(super) definitions: Vec<Definition>,
    /// Definitions that have not ended, the innermost last; the file is the first.
    pub(super) open: Vec<(usize, Origin)>,
    pub(super) globals: Vec<Box<str>>,
    pub(super) sweep: Option<Card>,
    /// Directives that are skipped, and their first lines.
    pub(super) skipped: BTreeMap<String, u32>,
    limits: Limits,
    deferred_bytes: u64,
}

/// Bytes that a deferred card costs beside its letters.
const CARD_BYTES: u64 = 64;

/// Reads a whole netlist.
pub(super) fn read(
    name: &str,
    reader: Box<dyn BufRead + '_>,
    folder: Option<PathBuf>,
    limits: Limits,
) -> Result<Netlist, FileError> {
    let start = Origin { file: 0, line: 1 };
    let mut reader = Reader {
        lines: Lines::new(name, reader, folder, limits.memory_bytes),
        netlist: Netlist::new(name),
        definitions: vec![Definition::default()],
        open: vec![(0, start)],
        globals: Vec::new(),
        sweep: None,
        skipped: BTreeMap::new(),
        limits,
        deferred_bytes: 0,
    };
    let title = reader.lines.title()?;
    reader.note_title(&title);
    reader.netlist.title = title;
    let mut text = String::new();
    while let Some(origin) = reader.lines.next(&mut text)? {
        let card = text.trim();
        let goes_on = match card.as_bytes()[0] {
            b'.' => directives::read(&mut reader, card, origin)?,
            _ => reader.element(card, origin).map(|()| true)?,
        };
        if !goes_on {
            break;
        }
    }
    reader.finish()
}

impl Reader<'_> {
    /// Stores an element, or keeps its card for later.
    fn element(&mut self, card: &str, origin: Origin) -> Result<(), FileError> {
        if self.open.len() > 1 || !self.plain(card, origin)? {
            self.defer(card, origin)?;
        }
        self.check_memory(origin)
    }

    /// Keeps a card in the innermost open definition.
    fn defer(&mut self, card: &str, origin: Origin) -> Result<(), FileError> {
        let innermost = self.innermost();
        let cost = card.len() as u64 + CARD_BYTES;
        innermost.bytes += cost;
        let text = card.into();
        innermost.cards.push(Card { text, origin });
        self.deferred_bytes += cost;
        Ok(())
    }

    /// The definition that lines now belong to.
    pub(super) fn innermost(&mut self) -> &mut Definition {
        let (number, _) = self.open.last().expect("the file itself is open");
        &mut self.definitions[*number]
    }

    /// Counts what a directive keeps.
    pub(super) fn count(&mut self, card: &str, origin: Origin) -> Result<(), FileError> {
        let cost = card.len() as u64 + CARD_BYTES;
        self.innermost().bytes += cost;
        self.deferred_bytes += cost;
        self.check_memory(origin)
    }

    fn check_memory(&self, origin: Origin) -> Result<(), FileError> {
        if self.deferred_bytes + self.netlist.bytes() as u64 > self.limits.memory_bytes {
            return Err(self.lines.error(
                origin,
                "the circuit is too large for the memory that is available",
            ));
        }
        Ok(())
    }

    /// Stores the commonest cards: four words, the last a plain number. `false`: it is another card.
    fn plain(&mut self, card: &str, origin: Origin) -> Result<bool, FileError> {
        let mut words = card.split_ascii_whitespace();
        let (Some(name), Some(a), Some(b), Some(value), None) = (
            words.next(),
            words.next(),
            words.next(),
            words.next(),
            words.next(),
        ) else {
            return Ok(false);
        };
        let has_marks = card
            .bytes()
            .any(|b| matches!(b, b'(' | b')' | b',' | b'=' | b'{' | b'\''));
        let kind = name.as_bytes()[0];
        if has_marks || !matches!(kind, b'r' | b'v' | b'i') {
            return Ok(false);
        }
        let Some(Ok(value)) = number::whole(value) else {
            return Ok(false);
        };
        let nodes = [self.node(a, origin)?, self.node(b, origin)?];
        match kind {
            b'r' => self.netlist.add_resistor(nodes, value),
            _ => {
                let name = self.netlist.name_source(name);
                let name = name.map_err(|what| self.lines.error(origin, what))?;
                let source = Source { nodes, value, name };
                if kind == b'v' {
                    self.netlist.voltages.push(source);
                } else {
                    self.netlist.currents.push(source);
                }
            }
        }
        Ok(true)
    }

    fn node(&mut self, name: &str, origin: Origin) -> Result<NodeId, FileError> {
        let node = self.netlist.node(name);
        node.ok_or_else(|| self.lines.error(origin, TOO_MANY_NAMES))
    }

    /// A first line that looks like an element was perhaps meant as one.
    fn note_title(&mut self, title: &str) {
        let words: Vec<&str> = title.split_ascii_whitespace().collect();
        if let [name, .., value] = words[..]
            && words.len() == 4
            && matches!(name.as_bytes()[0].to_ascii_lowercase(), b'r' | b'v' | b'i')
            && matches!(number::whole(value), Some(Ok(_)))
        {
            self.netlist.notes.push(format!(
                "line 1, {}, is the title and no element, as in every SPICE netlist",
                quoted(title)
            ));
        }
    }

    /// After the last line: unfolds instances, finds what is referred to.
    fn finish(mut self) -> Result<Netlist, FileError> {
        if let (Some(&(number, origin)), true) = (self.open.last(), self.open.len() > 1) {
            let name = quoted(&self.definitions[number].name);
            return Err(self.lines.error(
                origin,
                format!("the subcircuit {name} does not end; .ends is expected after its elements"),
            ));
        }
        for (name, line) in std::mem::take(&mut self.skipped) {
            self.netlist.notes.push(format!(
                "{name} (line {line}) is skipped: operating points and sweeps of one source (.dc) are computed"
            ));
        }
        instances::unfold(&mut self)?;
        if let Some(card) = self.sweep.take() {
            let mut scope = Scope::new(None);
            for (name, text) in &self.definitions[0].parameters {
                scope.define(name, text);
            }
            self.netlist.analysis = directives::sweep(&self.netlist, &scope, &card.text)
                .map_err(|what| self.lines.error(card.origin, what))?;
        }
        if self.netlist.elements() == 0 {
            let what =
                "there are no elements; a netlist has a title in its first line and elements below";
            return Err(FileError::new(&self.netlist.name, Place::Whole, what));
        }
        debug_assert!(
            matches!(&self.netlist.analysis, Analysis::Sweep { values, .. } if !values.is_empty())
                || self.netlist.analysis == Analysis::OperatingPoint
        );
        Ok(self.netlist)
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }
}

/// A table of names is full.
pub(super) const TOO_MANY_NAMES: &str = "there are more names than fit into 4 GiB";

impl Netlist {
    /// The node with a name, which is new if the name is. `None`: too many names.
    pub(crate) fn node(&mut self, name: &str) -> Option<NodeId> {
        match name {
            "0" | "gnd" => Some(NodeId::GROUND),
            _ => self.nodes.intern(name).map(NodeId),
        }
    }

    /// Adds a resistor, or a short circuit if it has no ohms, or so few that its conductance is no number.
    pub(super) fn add_resistor(&mut self, nodes: super::Pair, ohms: f64) {
        if (1.0 / ohms).is_infinite() {
            self.shorts.push(nodes);
        } else {
            self.resistors.push(Resistor { nodes, ohms });
        }
    }

    /// Gives the name of a source a number. An error is one sentence without the place.
    pub(crate) fn name_source(&mut self, name: &str) -> Result<u32, String> {
        let known = self.sources.len();
        match self.sources.intern(name) {
            Some(number) if number as usize == known => Ok(number),
            Some(_) => Err(format!("there is another element called {}", quoted(name))),
            None => Err(TOO_MANY_NAMES.into()),
        }
    }
}
