//! Any text as a cluster file: nodes without gaps or double addresses, each of which can be opened as a membership, or an error of
//! one line.

use std::path::Path;

use tsumuji_node::{ClusterFile, LinkSpec, NodeId};

/// The target.
pub fn cluster(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Names of hosts would be looked up, which takes as long as the network likes.
    let mut addrs = text.split("udp:").skip(1);
    if addrs.any(|addr| !addr.starts_with(|c: char| c.is_ascii_digit() || c == '[')) {
        return;
    }
    let path = Path::new("lab.toml");
    match ClusterFile::parse(text, path) {
        Ok(file) => {
            assert_eq!(file.hosts().len(), file.members().len());
            for (id, member) in (0..=u16::MAX).zip(file.members()) {
                assert_eq!(member.id, NodeId(id));
                match file.membership(member.id, path) {
                    Ok(membership) => assert_eq!(membership.members.len(), file.members().len()),
                    Err(error) => {
                        assert!(!error.to_string().contains('\n'));
                        assert!(file.check_links(path).is_err(), "{error} of a member");
                    }
                }
            }
            for link in ["udp", "packet", "xdp"] {
                let link: LinkSpec = link.parse().expect("a link");
                if let Err(error) = file.clone().over(&link, path) {
                    assert!(!error.to_string().contains('\n'));
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error:?}"),
    }
}
