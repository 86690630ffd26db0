//! Options of which each value has a name.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Accepts these names, each for its value.
pub(crate) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.map(|(name, _)| name));
    names.try_map(move |name| {
        let found = values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).ok_or("no such name")
    })
}

/// The name of a value, as users write it.
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    let named = value.to_possible_value();
    named.map_or_else(String::new, |named| named.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value is read by its name, and another name is refused with those there are.
    #[test]
    fn values_are_read_by_their_names() {
        let option = clap::Arg::new("of").value_parser(named([("one", 1_u8), ("two", 2)]));
        let command = clap::Command::new("x").arg(option);
        let read = |word: &str| command.clone().try_get_matches_from(["x", word]);
        let found = read("two").expect("it is accepted");
        assert_eq!(found.get_one::<u8>("of"), Some(&2));
        let refused = read("three").expect_err("there is no such").to_string();
        assert!(refused.contains("[possible values: one, two]"), "{refused}");
    }
}
