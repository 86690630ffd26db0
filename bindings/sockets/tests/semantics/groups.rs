//! The cases of TCP's semantics: in which groups they run, and what each has written. For the tests of the sockets layer and of gateways.

use std::collections::BTreeMap;

/// Groups run one after the other, each within the limit of time: names begin with these words, and every case belongs to one group.
pub(crate) const GROUPS: [&[&str]; 4] = [
    &[
        "data_", "size_", "pieces_", "peek", "waitall", "dontwait", "discard", "e",
    ],
    &[
        "many", "recv", "fionread", "full", "b", "half", "shut", "close", "write", "linger", "res",
        "killed", "receive", "send", "low", "option", "corked",
    ],
    &[
        "connect",
        "names",
        "accept",
        "listener",
        "written",
        "printed",
        "slots",
        "reconnect",
        "ready_",
        "wait_",
        "poll_",
        "select_",
        "splice",
        "stdio",
        "urgent",
    ],
    &[
        "copy", "spawn", "numbers", "fork", "system", "threads", "signal", "pass",
    ],
];

/// What each case has written, by its name.
pub(crate) fn cases(output: &str) -> BTreeMap<String, Vec<String>> {
    let mut cases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last = None;
    for line in output.lines() {
        match line.strip_prefix("== ") {
            Some(name) => {
                last = Some(name.to_owned());
                cases.insert(name.to_owned(), Vec::new());
            }
            None => {
                let lines = last.as_ref().and_then(|name| cases.get_mut(name));
                lines.expect("a case").push(line.to_owned());
            }
        }
    }
    cases
}
