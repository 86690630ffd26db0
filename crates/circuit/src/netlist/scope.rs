//! Parameters: names for values that expressions may use.
//!
//! Each instance of a subcircuit has a scope; around it are those of the instances that hold it, the outermost that of the file. A parameter may
//! refer to others of its scope or around it, wherever they are defined; its expression is evaluated when its value is asked for, once. Its own name
//! within it means the parameter of that name around its scope.

use super::{expression, number, quoted, values};
use std::cell::Cell;
use std::collections::HashMap;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Not asked for yet.
    Text,
    /// Being evaluated: who asks now refers to itself.
    Open,
    Value(f64),
}

#[derive(Debug)]
struct Parameter<'a> {
    text: &'a str,
    state: Cell<State>,
}

/// The parameters of one instance, or of the file.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    around: Option<&'a Scope<'a>>,
    parameters: HashMap<&'a str, Parameter<'a>>,
}

impl<'a> Scope<'a> {
    /// A scope without parameters.
    pub(super) fn new(around: Option<&'a Scope<'a>>) -> Self {
        Self {
            around,
            parameters: HashMap::new(),
        }
    }

    /// Defines a parameter by an expression of this scope. One that is there already is replaced.
    pub(super) fn define(&mut self, name: &'a str, text: &'a str) {
        let state = Cell::new(State::Text);
        self.parameters.insert(name, Parameter { text, state });
    }

    /// Gives a parameter of this scope a value. `false`: it has no such parameter.
    pub(super) fn set(&mut self, name: &str, value: f64) -> bool {
        let parameter = self.parameters.get(name);
        if let Some(parameter) = parameter {
            parameter.state.set(State::Value(value));
        }
        parameter.is_some()
    }

    /// The value of a number, or of an expression with or without braces. An error is one sentence without the place.
    pub(super) fn value(&self, text: &str) -> Result<f64, String> {
        self.value_at(text, 0)
    }

    fn value_at(&self, text: &str, depth: usize) -> Result<f64, String> {
        match number::whole(text) {
            Some(value) => value,
            None => expression::evaluate(values::unwrapped(text), depth, &|name, depth| {
                self.parameter(name, depth)
            }),
        }
    }

    /// The value of the parameter `name` of this scope, whose expression is `text`.
    fn own_value(&self, name: &str, text: &str, depth: usize) -> Result<f64, String> {
        if let Some(value) = number::whole(text) {
            return value;
        }
        expression::evaluate(
            values::unwrapped(text),
            depth,
            &|asked, depth| match self.around {
                Some(around) if asked == name => around.parameter(asked, depth),
                _ => self.parameter(asked, depth),
            },
        )
    }

    fn parameter(&self, name: &str, depth: usize) -> Result<f64, String> {
        let Some(parameter) = self.parameters.get(name) else {
            return match (self.around, name) {
                (Some(around), _) => around.parameter(name, depth),
                (None, "pi") => Ok(std::f64::consts::PI),
                (None, _) => Err(format!(
                    "{} is neither a number nor a parameter that is defined",
                    quoted(name)
                )),
            };
        };
        match parameter.state.get() {
            State::Value(value) => Ok(value),
            State::Open => Err(format!("the parameter {} refers to itself", quoted(name))),
            State::Text => {
                parameter.state.set(State::Open);
                let value = self.own_value(name, parameter.text, depth)?;
                parameter.state.set(State::Value(value));
                Ok(value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters are found in any order, inner ones before outer ones.
    #[test]
    fn inner_parameters_come_first() {
        let mut outer = Scope::new(None);
        outer.define("a", "{b * 2}");
        outer.define("b", "1k");
        outer.define("c", "'b + pi - pi'");
        let mut inner = Scope::new(Some(&outer));
        assert!(!inner.set("b", 3.0));
        inner.define("b", "2");
        assert!(inner.set("b", 3.0));
        assert_eq!(outer.value("a"), Ok(2000.0));
        assert_eq!(inner.value("b"), Ok(3.0));
        assert_eq!(inner.value("a*b"), Ok(6000.0));
        assert_eq!(inner.value("{c}"), Ok(1000.0));
        assert!(inner.value("d").unwrap_err().contains("'d' is neither"));
    }

    /// A parameter that refers to its own name takes the value around its scope.
    #[test]
    fn own_names_mean_outer_parameters() {
        let mut outer = Scope::new(None);
        outer.define("r", "4k");
        let mut inner = Scope::new(Some(&outer));
        inner.define("r", "{r * 2}");
        inner.define("q", "{q + r}");
        assert_eq!(inner.value("r"), Ok(8000.0));
        assert!(inner.value("q").unwrap_err().contains("'q' is neither"));
        let mut file = Scope::new(None);
        file.define("r", "{r}");
        assert!(file.value("r").unwrap_err().contains("refers to itself"));
    }

    /// Circles and endless chains are refused.
    #[test]
    fn circles_are_refused() {
        let mut scope = Scope::new(None);
        scope.define("a", "b");
        scope.define("b", "{a + 1}");
        assert!(scope.value("a").unwrap_err().contains("refers to itself"));
        let names: Vec<String> = (0..2000).map(|n| format!("p{n}")).collect();
        let mut chain = Scope::new(None);
        for pair in names.windows(2) {
            chain.define(&pair[0], &pair[1]);
        }
        chain.define("p1999", "1");
        assert_eq!(chain.value("p1950"), Ok(1.0));
        assert!(chain.value("p0").unwrap_err().contains("nested more than"));
    }
}
