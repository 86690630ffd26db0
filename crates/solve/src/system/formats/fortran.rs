//! Fortran's edit descriptors as Harwell–Boeing files use them: one kind of field, repeated on each line.
//!
//! Supported are `(16I5)`, `(4E20.12)`, `(1P,5D16.8)`, `(3(1PE25.16))`, `(20F4.1)`, `(4G20.12)`. An empty field is an error, not the zero that
//! Fortran reads, because a truncated line has such fields.

/// Widest field and most fields on a line, far beyond existing files.
const WIDTH_LIMIT: usize = 1024;
const REPEAT_LIMIT: usize = 1024;

/// Layout of the fields of each line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Edit {
    /// Fields on a full line.
    pub(super) per_line: usize,
    /// Characters of a field.
    pub(super) width: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Integer,
    /// Digits after the point where a field has no point, and the scale that divides fields without an exponent.
    Real {
        digits: i32,
        scale: i32,
    },
}

impl Edit {
    /// Reads a descriptor.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "the format {} is not understood; accepted are ones like (16I5), (4E20.12) or (1P,5D16.8)",
                tsumuji_numbers::shown(text.trim())
            )
        };
        let plain: String = text
            .chars()
            .filter(|c| !c.is_whitespace())
            .collect::<String>()
            .to_ascii_uppercase();
        let inner = plain
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'));
        let mut rest = Rest(inner.ok_or_else(refuse)?.as_bytes());
        Self::descriptor(&mut rest)
            .filter(|_| rest.0.is_empty())
            .ok_or_else(refuse)
    }

    fn descriptor(rest: &mut Rest<'_>) -> Option<Self> {
        let mut scale = rest.scale()?;
        let mut per_line = rest.number().unwrap_or(1);
        let grouped = rest.skip(b'(');
        if grouped {
            scale = rest.scale()?.or(scale);
            per_line = per_line.checked_mul(rest.number().unwrap_or(1))?;
        }
        let letter = rest.take()?;
        let width = rest.number()?;
        let kind = match letter {
            b'I' => {
                if rest.skip(b'.') {
                    rest.number()?;
                }
                Kind::Integer
            }
            b'E' | b'D' | b'F' | b'G' => {
                let digits = if rest.skip(b'.') { rest.number()? } else { 0 };
                if rest.skip(b'E') {
                    rest.number()?;
                }
                Kind::Real {
                    digits: i32::try_from(digits).ok().filter(|digits| *digits <= 400)?,
                    scale: scale.unwrap_or(0),
                }
            }
            _ => return None,
        };
        if grouped && !rest.skip(b')') {
            return None;
        }
        let sound = (1..=WIDTH_LIMIT).contains(&width) && (1..=REPEAT_LIMIT).contains(&per_line);
        sound.then_some(Self {
            per_line,
            width,
            kind,
        })
    }

    /// Whether fields are whole numbers.
    pub(super) fn is_integer(&self) -> bool {
        self.kind == Kind::Integer
    }

    /// Field `index` of a line, blanks around it removed.
    pub(super) fn field<'l>(&self, line: &'l [u8], index: usize) -> &'l [u8] {
        let start = (index * self.width).min(line.len());
        let end = (start + self.width).min(line.len());
        line[start..end].trim_ascii()
    }

    /// The number in a field.
    pub(super) fn real(&self, field: &[u8]) -> Option<f64> {
        // Printable ASCII, so that it may be cut anywhere below.
        if field.is_empty() || !field.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let text = std::str::from_utf8(field).ok()?;
        // The exponent: marked by E or D, or by its sign alone.
        let marked = text.find(['E', 'e', 'D', 'd', 'Q', 'q']);
        let (mantissa, exponent) = match marked {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => match text[1..].find(['+', '-']) {
                Some(at) => (&text[..at + 1], Some(&text[at + 1..])),
                None => (text, None),
            },
        };
        if !mantissa
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.'))
        {
            return None;
        }
        let mut power: i32 = match exponent {
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|power: &i32| power.unsigned_abs() < 100_000)?,
            None => 0,
        };
        if let Kind::Real { digits, scale } = self.kind {
            if !mantissa.contains('.') {
                power -= digits;
            }
            if exponent.is_none() {
                power -= scale;
            }
        }
        if power == 0 {
            mantissa.parse().ok()
        } else {
            format!("{mantissa}e{power}").parse().ok()
        }
    }
}

struct Rest<'t>(&'t [u8]);

impl Rest<'_> {
    fn take(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn skip(&mut self, wanted: u8) -> bool {
        let found = self.0.first() == Some(&wanted);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn number(&mut self) -> Option<usize> {
        let end = self
            .0
            .iter()
            .position(|byte| !byte.is_ascii_digit())
            .unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        let number = super::words::whole(digits)?;
        self.0 = rest;
        usize::try_from(number).ok()
    }

    /// A scale factor like `1P,` or `-2P` if one stands here: outer `None` if it is out of bounds.
    #[allow(clippy::option_option)]
    fn scale(&mut self) -> Option<Option<i32>> {
        let before = self.0;
        let negative = self.skip(b'-');
        if !negative {
            self.skip(b'+');
        }
        match self.number() {
            Some(number) if self.skip(b'P') => {
                self.skip(b',');
                let scale = i32::try_from(number).ok().filter(|scale| *scale <= 100)?;
                Some(Some(if negative { -scale } else { scale }))
            }
            _ => {
                self.0 = before;
                Some(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(text: &str) -> (usize, usize, bool) {
        let edit = Edit::parse(text).unwrap();
        (edit.per_line, edit.width, edit.is_integer())
    }

    /// The descriptors of real files are understood.
    #[test]
    fn descriptors_are_understood() {
        assert_eq!(layout("(8I10)          "), (8, 10, true));
        assert_eq!(layout("(16I5)"), (16, 5, true));
        assert_eq!(layout("(4E20.12)"), (4, 20, false));
        assert_eq!(layout("(1P,4E20.12)"), (4, 20, false));
        assert_eq!(layout("(1P4E20.12)"), (4, 20, false));
        assert_eq!(layout("(5d16.8)"), (5, 16, false));
        assert_eq!(layout("(3(1PE25.16E3))"), (3, 25, false));
        assert_eq!(layout("(20F4.1)"), (20, 4, false));
        assert_eq!(layout("(I8)"), (1, 8, true));
    }

    /// Descriptors of other than a single kind of field, or without a valid size, are refused.
    #[test]
    fn other_descriptors_are_refused() {
        for text in [
            "",
            "()",
            "8I10",
            "(8I)",
            "(8I0)",
            "(0I8)",
            "(8I10",
            "(A72)",
            "(2I5,3E10.2)",
            "(99999I8)",
            "(1X,8I9)",
            "(1P)",
            "(4E20.99999999999)",
        ] {
            assert!(Edit::parse(text).is_err(), "{text}");
        }
    }

    /// Fields are read as Fortran reads them.
    #[test]
    fn fields_are_read_as_fortran_does() {
        let plain = Edit::parse("(4E10.3)").unwrap();
        for (field, value) in [
            ("1.5D+03", 1500.0),
            ("1.5+03", 1500.0),
            ("-2.5-01", -0.25),
            ("1.E2", 100.0),
            ("-.5", -0.5),
            ("1500", 1.5),
            ("+3.25", 3.25),
        ] {
            assert_eq!(plain.real(field.as_bytes()), Some(value), "{field}");
        }
        let scaled = Edit::parse("(1P,4F10.3)").unwrap();
        assert_eq!(scaled.real(b"25.0"), Some(2.5));
        assert_eq!(scaled.real(b"25.0E0"), Some(25.0));
        for field in [
            "",
            "x",
            "1 2",
            "nan",
            "inf",
            "1.2.3",
            "1e",
            "--1",
            "1e999999999",
            "é1",
        ] {
            assert_eq!(plain.real(field.as_bytes()), None, "{field}");
        }
        assert_eq!(plain.field(b"  1.0        2.0", 1), b"2.0");
        assert_eq!(plain.field(b"  1.0", 3), b"");
    }
}
