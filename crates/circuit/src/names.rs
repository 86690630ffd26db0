//! A table of names: each distinct name has a number, and each number its name.
//!
//! Used for the nodes and the sources of a netlist. All names lie in one string, so that a million of them cost little more than their letters. The
//! hash is keyed at random: names of a hostile file cannot be chosen to collide.
//!
//! Invariant: `ends` never falls, and `table` holds every number below `ends.len()` once.

use hashbrown::HashTable;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Most bytes of all names together: their ends are kept in 32 bits.
const MOST_BYTES: usize = u32::MAX as usize;

/// Distinct names, numbered from 0 in the order in which they came.
#[derive(Debug, Clone, Default)]
pub struct Names {
    letters: String,
    ends: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
}

impl Names {
    /// The number of `name`, which is new if the name is. `None`: the table is full (4 GiB of names).
    pub fn intern(&mut self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name.as_bytes());
        let (letters, ends) = (&self.letters, &self.ends);
        if let Some(&number) = self
            .table
            .find(hash, |&number| slice(letters, ends, number) == name)
        {
            return Some(number);
        }
        if self.letters.len() + name.len() > MOST_BYTES || self.ends.len() >= u32::MAX as usize - 1
        {
            return None;
        }
        let number = self.ends.len() as u32;
        self.letters.push_str(name);
        self.ends.push(self.letters.len() as u32);
        let (letters, ends, hasher) = (&self.letters, &self.ends, &self.hasher);
        self.table.insert_unique(hash, number, |&number| {
            hasher.hash_one(slice(letters, ends, number).as_bytes())
        });
        Some(number)
    }

    /// The number of `name`, if it has one.
    pub fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name.as_bytes());
        self.table
            .find(hash, |&number| self.get(number) == name)
            .copied()
    }

    /// The name with this number, which must have been given out by this table.
    pub fn get(&self, number: u32) -> &str {
        slice(&self.letters, &self.ends, number)
    }

    /// Names held.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of names, ends and table, about.
    pub fn bytes(&self) -> usize {
        // A number and a byte of control for each place of the table, which is half full at least.
        self.letters.len() + self.ends.len() * (size_of::<u32>() + 2 * (size_of::<u32>() + 1))
    }
}

fn slice<'a>(letters: &'a str, ends: &[u32], number: u32) -> &'a str {
    let number = number as usize;
    let begin = match number {
        0 => 0,
        _ => ends[number - 1] as usize,
    };
    &letters[begin..ends[number] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Numbers are those of a plain list, whatever the names.
        #[test]
        fn agrees_with_a_list(given in prop::collection::vec("[a-c]{0,3}", 0..80)) {
            let mut names = Names::default();
            let mut list: Vec<String> = Vec::new();
            for name in &given {
                let expected = list.iter().position(|known| known == name).unwrap_or_else(|| {
                    list.push(name.clone());
                    list.len() - 1
                });
                prop_assert_eq!(names.intern(name), Some(expected as u32));
            }
            prop_assert_eq!(names.len(), list.len());
            for (number, name) in list.iter().enumerate() {
                prop_assert_eq!(names.get(number as u32), name.as_str());
                prop_assert_eq!(names.find(name), Some(number as u32));
            }
            prop_assert_eq!(names.find("absent"), None);
        }
    }
}
