//! Message sizes in the usual notation: `8`, `64K`, `4..64M`.

/// The accepted notations, for errors.
const ACCEPTED: &str = "accepted are numbers of bytes like 8, 1500, 64K, 1M";
/// Largest message.
const BYTES_MAX: usize = 1 << 30;

/// `64`, `64K`, `64KiB`, `1M`: bytes.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    match tsumuji_node::quantity::bytes(text) {
        Some(bytes) if bytes <= BYTES_MAX => Ok(bytes),
        Some(_) => Err("at most 1 GiB is accepted".to_owned()),
        None => Err(ACCEPTED.to_owned()),
    }
}

/// One size, or a range of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl Sizes {
    /// All of several.
    pub(crate) fn of_all(all: &[Self]) -> Vec<usize> {
        all.iter().flat_map(|sizes| sizes.0.clone()).collect()
    }
}

impl std::str::FromStr for Sizes {
    type Err = String;

    /// `4..64M`: 4 bytes, doubled repeatedly, up to 64 MiB.
    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| {
            size(text).map_err(|why| format!("{why}, and ranges by powers of two like 4..64M"))
        };
        let Some((first, last)) = text.split_once("..") else {
            return Ok(Self(vec![size(text)?]));
        };
        let (first, last) = (size(first)?, size(last)?);
        if first == 0 || first > last {
            return Err(
                "a range begins with 1 or more and ends with no less, like 4..64M".to_owned(),
            );
        }
        let doubled = std::iter::successors(Some(first), |size| size.checked_mul(2));
        Ok(Self(doubled.take_while(|&size| size <= last).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in the usual notation are parsed; the error for others lists the accepted ones.
    #[test]
    fn sizes() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64K"), Ok(65536));
        assert_eq!(size("1G"), Ok(1 << 30));
        for wrong in ["", "K", "-1", "1.5K", "8x", "2G", "99999999999999999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    /// Ranges double and include their end where it is reached; those that never end or go backwards are refused.
    #[test]
    fn ranges() {
        let read = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(read("4..64"), Ok(vec![4, 8, 16, 32, 64]));
        assert_eq!(read("3..13"), Ok(vec![3, 6, 12]));
        assert_eq!(read("1K..1K"), Ok(vec![1024]));
        assert_eq!(read("4..64M").map(|sizes| sizes.len()), Ok(25));
        assert_eq!(read("1500"), Ok(vec![1500]));
        for wrong in ["..", "4..", "..4", "0..4", "8..4", "4..2G", "4...8", "4-8"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
