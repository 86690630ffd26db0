//! Objects that C programs hold by pointer beside endpoints: options, tables of members, address databases.
//!
//! The pointer is a name that is never dereferenced, and no name is given twice. So a freed object, even one freed twice, or another kind of object
//! is an error and not a fault, and two threads may use one object. All of this is rare: one lock serves everything.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;

/// Distance of names, like that of addresses; names begin in the first page, which is never mapped.
const STEP: usize = 16;

struct Objects {
    alive: BTreeMap<usize, Box<dyn Any + Send>>,
    last: usize,
}

static OBJECTS: Mutex<Objects> = Mutex::new(Objects {
    alive: BTreeMap::new(),
    last: 0,
});

fn objects() -> MutexGuard<'static, Objects> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner) // each change is one step
}

/// Gives an object to C.
pub(crate) fn give<T: Any + Send>(value: T) -> *mut T {
    let mut objects = objects();
    objects.last += STEP;
    let name = objects.last;
    objects.alive.insert(name, Box::new(value));
    std::ptr::without_provenance_mut(name)
}

/// Frees an object; an unknown name has no effect.
pub(crate) fn free<T: Any>(object: *mut T) {
    let mut objects = objects();
    let name = object.addr();
    if objects
        .alive
        .get(&name)
        .is_some_and(|found| found.is::<T>())
    {
        drop(objects.alive.remove(&name));
    }
}

/// Runs `call` on a named object.
pub(crate) fn with<T: Any, R>(
    object: *const T,
    what: &str,
    call: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    if object.is_null() {
        return Err(Failure::invalid(format!("{what}: NULL")));
    }
    let mut objects = objects();
    let found = objects.alive.get_mut(&object.addr());
    let found = found.and_then(|found| found.downcast_mut());
    call(
        found.ok_or_else(|| {
            Failure::invalid(format!("{what}: not of this library, or freed before"))
        })?,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A freed object is gone; it is not found under another type, and its name is not given again.
    #[test]
    fn stale_names_are_refused() {
        let (number, text) = (give(7_u8), give(String::from("x")));
        let seen = with(number, "number", |number| {
            *number += 1;
            Ok(*number)
        });
        assert_eq!(seen.expect("alive"), 8);
        assert!(with(text.cast::<u8>(), "number", |_| Ok(())).is_err());
        free(text.cast::<u8>());
        assert!(with(text, "text", |_| Ok(())).is_ok(), "of another kind");
        free(number);
        free(number);
        assert!(with(number, "number", |_| Ok(())).is_err());
        assert!(give(9_u8) != number);
        assert!(with(std::ptr::null::<u8>(), "number", |_| Ok(())).is_err());
        free(text);
    }
}
