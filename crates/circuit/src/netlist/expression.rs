//! Expressions of parameters: `{a * (1 + 2k)}`, `'max(r1, r2) ** 2'`.
//!
//! Called for values that are no plain number. Operators are + - * / ** (or ^), parentheses and the functions of [`FUNCTIONS`]; names are asked of
//! the caller. Nothing is stored: an expression is evaluated while it is read. As in ngspice powers group from the left, and of a negative base they
//! are those of its magnitude; `pow` keeps the sign.
//!
//! Invariant: recursion is at most [`MOST_DEPTH`] deep, parameters that refer to parameters included.

use super::number;

/// Deepest nesting of parentheses, powers and references together: far beyond what people write, and within any thread's stack.
pub(super) const MOST_DEPTH: usize = 100;

type Unary = fn(f64) -> f64;
type Binary = fn(f64, f64) -> f64;

/// Functions of one argument, natural logarithms and radians.
const FUNCTIONS: [(&str, Unary); 21] = [
    ("abs", f64::abs),
    ("sqrt", f64::sqrt),
    ("exp", f64::exp),
    ("ln", f64::ln),
    ("log", f64::ln),
    ("log10", f64::log10),
    ("sin", f64::sin),
    ("cos", f64::cos),
    ("tan", f64::tan),
    ("asin", f64::asin),
    ("acos", f64::acos),
    ("atan", f64::atan),
    ("sinh", f64::sinh),
    ("cosh", f64::cosh),
    ("tanh", f64::tanh),
    ("floor", f64::floor),
    ("ceil", f64::ceil),
    ("int", f64::trunc),
    ("round", f64::round),
    ("nint", f64::round_ties_even),
    ("sgn", sign),
];

/// Functions of two arguments.
const BINARY_FUNCTIONS: [(&str, Binary); 5] = [
    ("min", f64::min),
    ("max", f64::max),
    ("pow", f64::powf),
    ("pwr", power),
    ("atan2", f64::atan2),
];

fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

/// `x ** y`, also as `pwr(x, y)`.
fn power(x: f64, y: f64) -> f64 {
    x.abs().powf(y)
}

/// The value of a name at a depth of recursion, or one sentence that says what is wrong.
pub(super) type Lookup<'a> = &'a dyn Fn(&str, usize) -> Result<f64, String>;

/// Evaluates `text`, without its braces or quotes. An error is one sentence without the place.
pub(super) fn evaluate(text: &str, depth: usize, lookup: Lookup<'_>) -> Result<f64, String> {
    let mut parser = Parser {
        text,
        at: 0,
        lookup,
    };
    let value = parser.sum(depth)?;
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.complaint("an operator (+ - * / **) or the end"));
    }
    if !value.is_finite() {
        return Err(format!(
            "the expression {} is {value}; values must be finite numbers",
            super::quoted(text)
        ));
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    lookup: Lookup<'a>,
}

impl Parser<'_> {
    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes `what` if it comes next.
    fn take(&mut self, what: &str) -> bool {
        self.skip_blanks();
        let is_next = self.text[self.at..].starts_with(what);
        if is_next {
            self.at += what.len();
        }
        is_next
    }

    fn complaint(&self, wanted: &str) -> String {
        let rest = &self.text[self.at..];
        let found = if rest.is_empty() {
            "it ends".into()
        } else {
            format!("{} follows", super::quoted(rest))
        };
        format!(
            "in the expression {}, {wanted} is expected, but {found}",
            super::quoted(self.text)
        )
    }

    fn sum(&mut self, depth: usize) -> Result<f64, String> {
        let mut value = self.product(depth)?;
        loop {
            if self.take("+") {
                value += self.product(depth)?;
            } else if self.take("-") {
                value -= self.product(depth)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Result<f64, String> {
        let mut value = self.signed(depth)?;
        loop {
            // A power was taken by its operand: what is left here is a product.
            if self.take("*") {
                value *= self.signed(depth)?;
            } else if self.take("/") {
                value /= self.signed(depth)?;
            } else {
                return Ok(value);
            }
        }
    }

    /// −a ** b is −(a ** b).
    fn signed(&mut self, depth: usize) -> Result<f64, String> {
        let is_negative = self.signs();
        let value = self.power(depth)?;
        Ok(if is_negative { -value } else { value })
    }

    /// Takes signs. Returns whether they are a minus together.
    fn signs(&mut self) -> bool {
        let mut is_negative = false;
        loop {
            if self.take("-") {
                is_negative = !is_negative;
            } else if !self.take("+") {
                return is_negative;
            }
        }
    }

    /// a ** b ** c is (a ** b) ** c, and a sign before b or c is theirs.
    fn power(&mut self, depth: usize) -> Result<f64, String> {
        if depth >= MOST_DEPTH {
            return Err(format!(
                "the expression {} is nested more than {MOST_DEPTH} deep, references of parameters included",
                super::quoted(self.text)
            ));
        }
        let mut value = self.operand(depth + 1)?;
        while self.take("**") || self.take("^") {
            let is_negative = self.signs();
            let exponent = self.operand(depth + 1)?;
            value = power(value, if is_negative { -exponent } else { exponent });
        }
        Ok(value)
    }

    fn operand(&mut self, depth: usize) -> Result<f64, String> {
        if self.take("(") {
            let value = self.sum(depth)?;
            return if self.take(")") {
                Ok(value)
            } else {
                Err(self.complaint("')'"))
            };
        }
        let rest = &self.text[self.at..];
        if let Some(number) = number::leading(rest) {
            let (value, length) = number?;
            self.at += length;
            return Ok(value);
        }
        let length = rest
            .bytes()
            .take_while(|&b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
            .count();
        if length == 0 {
            return Err(self.complaint("a number, a parameter or '('"));
        }
        let name = &rest[..length];
        self.at += length;
        if self.take("(") {
            return self.call(name, depth);
        }
        (self.lookup)(name, depth)
    }

    /// The arguments of a function, and its value.
    fn call(&mut self, name: &str, depth: usize) -> Result<f64, String> {
        let first = self.sum(depth)?;
        let second = if self.take(",") {
            Some(self.sum(depth)?)
        } else {
            None
        };
        if !self.take(")") {
            return Err(self.complaint("')'"));
        }
        let one = FUNCTIONS.iter().find(|known| known.0 == name);
        let two = BINARY_FUNCTIONS.iter().find(|known| known.0 == name);
        match (one, two, second) {
            (Some(function), _, None) => Ok(function.1(first)),
            (_, Some(function), Some(second)) => Ok(function.1(first, second)),
            (Some(_), ..) => Err(format!("the function {name} takes one argument")),
            (_, Some(_), _) => Err(format!("the function {name} takes two arguments")),
            (None, None, _) => {
                let names = FUNCTIONS.iter().map(|known| known.0);
                let names = names.chain(BINARY_FUNCTIONS.iter().map(|known| known.0));
                let names = names.collect::<Vec<_>>().join(" ");
                Err(format!(
                    "there is no function {}; there are {names}",
                    super::quoted(name)
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> Result<f64, String> {
        evaluate(text, 0, &|name, _| match name {
            "a" => Ok(3.0),
            "r_1" => Ok(50.0),
            _ => Err(format!("no parameter '{name}'")),
        })
    }

    /// Precedence, associativity, signs, suffixes and functions.
    #[test]
    fn expressions_are_evaluated() {
        for (text, expected) in [
            ("1+2*3", 7.0),
            ("(1+2)*3", 9.0),
            ("2**3**2", 64.0),
            ("2^3^2", 64.0),
            ("2**-2**-1", 4.0),
            ("2*3**2*2", 36.0),
            ("(-2)**3", 8.0),
            ("pow(-2, 3)", -8.0),
            ("2^3", 8.0),
            ("-2**2", -4.0),
            ("2**-1", 0.5),
            ("7 - 2 - 1", 4.0),
            ("8/4/2", 1.0),
            ("1k*a", 3000.0),
            ("2*r_1 + a", 103.0),
            ("--a", 3.0),
            ("max(a, 5) + min(1, 2)", 6.0),
            ("sqrt(16) * abs(-2)", 8.0),
            ("pow(2, 10)", 1024.0),
            ("pwr(-2, 3)", 8.0),
            ("log(exp(2)) + log10(100)", 4.0),
            ("sgn(-3) + int(-2.7)", -3.0),
            ("4*atan(1)", std::f64::consts::PI),
            ("1e-3*1meg", 1e3),
        ] {
            let found = value(text).unwrap();
            assert!((found - expected).abs() < 1e-12, "{text}: {found}");
        }
    }

    /// Each mistake has one sentence that quotes it.
    #[test]
    fn mistakes_are_told() {
        for (text, wanted) in [
            ("", "a number, a parameter or '(' is expected, but it ends"),
            ("1+", "but it ends"),
            ("(1", "')' is expected"),
            (
                "1 2",
                "an operator (+ - * / **) or the end is expected, but '2' follows",
            ),
            ("b", "no parameter 'b'"),
            ("1/0", "is inf"),
            ("sqrt(0-1)", "is NaN"),
            ("sin(1,2)", "takes one argument"),
            ("max(1)", "takes two arguments"),
            ("frob(1)", "there is no function 'frob'; there are abs sqrt"),
        ] {
            let error = value(text).unwrap_err();
            assert!(
                error.contains(wanted) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }

    /// Deep nesting is refused before the stack ends.
    #[test]
    fn depth_is_bounded() {
        for text in [
            "(".repeat(100_000),
            "2**(".repeat(100_000),
            "abs(".repeat(100_000),
            "2**-(".repeat(100_000),
        ] {
            assert!(value(&text).unwrap_err().contains("nested more than"));
        }
        assert_eq!(value(&format!("{}1", "-".repeat(100_000))), Ok(1.0));
        assert_eq!(value(&format!("{}1", "1**".repeat(100_000))), Ok(1.0));
    }

    /// An expression and its value by plain arithmetic.
    fn arbitrary() -> impl Strategy<Value = (String, f64)> {
        let leaf = prop_oneof![
            (1u32..100).prop_map(|n| (n.to_string(), f64::from(n))),
            (1u32..100).prop_map(|n| (format!("{n}k"), f64::from(n) * 1e3)),
            Just(("a".to_owned(), 3.0)),
        ];
        leaf.prop_recursive(5, 40, 2, |inner| {
            (inner.clone(), inner, 0..4usize).prop_map(|((left, x), (right, y), operator)| {
                let value = [x + y, x - y, x * y, x / y][operator];
                (
                    format!("({left}) {} ({right})", ["+", "-", "*", "/"][operator]),
                    value,
                )
            })
        })
    }

    proptest! {
        /// Any tree of operators has the value of plain arithmetic.
        #[test]
        fn agrees_with_arithmetic((text, expected) in arbitrary()) {
            match value(&text) {
                Ok(found) => prop_assert!((found - expected).abs() <= 1e-12 * expected.abs()),
                Err(error) => prop_assert!(!expected.is_finite(), "{}", error),
            }
        }

        /// Any text gives a value or one line.
        #[test]
        fn any_text_is_answered(text in "[-+*/^(), 0-9a-ek.]{0,40}") {
            if let Err(error) = value(&text) {
                prop_assert!(!error.contains('\n'));
            }
        }
    }
}
