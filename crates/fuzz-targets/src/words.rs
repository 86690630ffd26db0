//! Any word of an environment variable or an option: what is accepted reads back as it is written; the rest is refused in one
//! line.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use tsumuji_link::ether::MacAddr;
use tsumuji_node::{InterfaceName, LinkSpec, MetricsAt, SealMode};

fn check<T: FromStr + Display + PartialEq + Debug>(word: &str)
where
    T::Err: Display,
{
    match word.parse::<T>() {
        Ok(value) => {
            let again = value.to_string().parse::<T>().ok();
            assert_eq!(again, Some(value), "{word:?}");
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{word:?}"),
    }
}

/// The target.
pub fn words(bytes: &[u8]) {
    let Ok(word) = std::str::from_utf8(bytes) else {
        return;
    };
    check::<LinkSpec>(word);
    check::<MetricsAt>(word);
    check::<SealMode>(word);
    check::<MacAddr>(word);
    if let Some(name) = InterfaceName::new(word) {
        assert_eq!(name.as_str(), word);
    }
}
