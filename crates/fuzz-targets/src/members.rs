//! Any bytes as an ask to become a member, as the answer, and as what members tell each other of members.

use tsumuji_node::bootstrap::fuzzing::is_news;
use tsumuji_wire::{Admission, Join};

/// The target.
pub fn members(bytes: &[u8]) {
    is_news(bytes);
    let mut slot = [0; 256];
    if let Some(join) = Join::parse(bytes) {
        let written = join.write(&mut slot).expect("a legal frame fits");
        assert_eq!(Join::parse(&slot[..written]), Some(join));
    }
    if let Some(admission) = Admission::parse(bytes) {
        let written = admission.write(&mut slot).expect("a legal frame fits");
        let again = Admission::parse(&slot[..written]).expect("as written");
        assert_eq!(
            (again.source, again.nonce),
            (admission.source, admission.nonce)
        );
        assert_eq!(again.answer.is_ok(), admission.answer.is_ok());
    }
}
