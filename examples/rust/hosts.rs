//! Several hosts: each process says where it runs, and whom it has met by which address.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch --hosts examples/hosts.toml -- target/debug/hosts     # two nodes of this host, over UDP
//! tsumuji launch --hosts lab.toml --key lab.key -- target/debug/hosts  # yours: each has its host, address, and way there
//! ```
//!
//! Without a launcher `TSUMUJI_CLUSTER=examples/hosts.toml TSUMUJI_NODE=0 target/debug/hosts` starts one of them, and so on each host. Each
//! node prints, for example, `node 0 on pc0: met node 1 on pc1 at 127.0.0.1:7001 over udp`.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_node::{Channel, MeetError, Options, endpoint_from_env, report_error};

/// Hosts are not started at the same moment.
const PATIENCE: Duration = Duration::from_secs(60);
const CHANNEL: Channel = Channel::ordered(0);

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("hosts: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoint = endpoint_from_env(Options::default())?;
    endpoint.meet(PATIENCE, |missing| -> Result<(), MeetError> {
        if let Some(missing) = missing {
            eprintln!("hosts: waiting for {missing}");
        }
        Ok(())
    })?;

    let me = endpoint.me();
    let own_name = endpoint.name_of(me).to_owned();
    let others: Vec<_> = (endpoint.members().iter())
        .filter(|member| member.id != me)
        .cloned()
        .collect();
    let mut batch = endpoint.batch();
    for other in &others {
        batch.send(other.id, CHANNEL, own_name.as_bytes())?;
    }
    drop(batch);
    for other in &others {
        let hello = (endpoint.recv_from(other.id, PATIENCE)?).ok_or("a host went silent")?;
        let (name, link) = (String::from_utf8(hello.body)?, endpoint.link_name());
        println!("{own_name}: met {name} at {} over {link}", other.addr);
    }
    endpoint.close(PATIENCE)?;
    Ok(())
}
