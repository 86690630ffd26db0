//! The hosts file: the hosts, their addresses, and how to start a program on each. Commands with `--hosts` read it.
//!
//! `up` writes it when the testbed works, whole or not at all; `down` removes it. The testbed itself does not use it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Host;
use crate::spec::{Mac, Name};

/// The port in the hosts' addresses.
pub const PORT: u16 = 7000;
/// Folder of the files; those of ordinary users are in `$XDG_RUNTIME_DIR/tsumuji`.
const FOLDER: &str = "/run/tsumuji";

#[derive(Serialize)]
struct File<'a> {
    node: Vec<Node<'a>>,
}

#[derive(Serialize)]
struct Node<'a> {
    id: u16,
    host: &'a str,
    addr: String,
    interface: &'a str,
    mac: Mac,
    via: [&'a str; 4],
}

/// The path of a testbed's hosts file, which need not exist.
pub(crate) fn path(name: &Name) -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let folder = match own {
        Some(folder) if !rustix::process::geteuid().is_root() => Path::new(&folder).join("tsumuji"),
        _ => PathBuf::from(FOLDER),
    };
    folder.join(format!("{name}.hosts.toml"))
}

/// Where the file is written first. The name is known, so that `remove` finds what a writer that was killed has left.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("toml.new")
}

/// Writes the file and makes it readable to all.
pub(crate) fn write(name: &Name, hosts: &[Host]) -> std::io::Result<()> {
    let path = path(name);
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    let unfinished = unfinished(&path);
    let written = std::fs::write(&unfinished, text(name, hosts)?)
        .and_then(|()| std::fs::set_permissions(&unfinished, Permissions::from_mode(0o644)))
        .and_then(|()| std::fs::rename(&unfinished, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished); // the first error is the one to report
    }
    written
}

/// Removes the file; it need not be there.
pub(crate) fn remove(name: &Name) -> std::io::Result<()> {
    let path = path(name);
    for path in [unfinished(&path), path] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn text(name: &Name, hosts: &[Host]) -> std::io::Result<String> {
    let node = hosts
        .iter()
        .map(|host| Node {
            id: host.id(),
            host: host.name(),
            addr: format!("udp:{}:{PORT}", host.ip()),
            interface: host.interface(),
            mac: host.mac(),
            via: ["ip", "netns", "exec", host.netns()],
        })
        .collect();
    let body = toml::to_string(&File { node }).map_err(std::io::Error::other)?;
    Ok(format!(
        "# Hosts of the testbed {name}: made by `tsumuji testbed up`, removed by `tsumuji testbed down`.\n{body}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file has the fields that `--hosts` reads.
    #[test]
    fn file_has_the_promised_fields() {
        let name = Name::default();
        let hosts = [Host::new(&name, 0), Host::new(&name, 1)];
        let text = text(&name, &hosts).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let nodes = table["node"].as_array().unwrap();
        assert_eq!(nodes.len(), 2);
        let wanted: toml::Table = r#"
            id = 1
            host = "tsumuji-1"
            addr = "udp:10.77.0.2:7000"
            interface = "eth0"
            mac = "02:74:73:00:00:02"
            via = ["ip", "netns", "exec", "tsumuji-1"]
        "#
        .parse()
        .unwrap();
        assert_eq!(nodes[1].as_table().unwrap(), &wanted);
    }
}
