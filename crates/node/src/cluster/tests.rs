use super::*;

fn parse(text: &str) -> Result<ClusterFile, String> {
    ClusterFile::parse(text, Path::new("lab.toml")).map_err(|error| error.to_string())
}

const TWO: &str = "[[node]]\nid = 1\naddr = \"udp:10.0.0.2:7000\"\n\n[[node]]\nid = 0\nhost = \"pc1\"\naddr = \"udp:[fe80::1]:7000\"\n";

/// Nodes may stand in any order; names are optional.
#[test]
fn sound_file_is_read() {
    let file = parse(TWO).expect("sound");
    let names: Vec<&str> = file
        .members()
        .iter()
        .map(|member| member.name.as_str())
        .collect();
    assert_eq!(names, ["pc1", "node 1"]);
    assert_eq!(
        file.members()[1].addr,
        LinkAddr::Inet("10.0.0.2:7000".parse().expect("addr"))
    );
    assert!(
        file.membership(NodeId(1), Path::new("lab.toml"))
            .expect("member")
            .check()
            .is_ok()
    );
    let error = file
        .membership(NodeId(2), Path::new("lab.toml"))
        .expect_err("no node 2");
    assert_eq!(
        error.to_string(),
        "lab.toml: there is no node 2; the file has nodes 0 to 1"
    );
}

/// Slots are nodes of one host with ports of their own; ids count through the entries.
#[test]
fn slots_are_nodes_of_one_host() {
    let three = TWO.replace("id = 1\n", "id = 1\nslots = 2\n");
    let file = parse(&three).expect("sound");
    let found: Vec<String> = file
        .members()
        .iter()
        .map(|member| format!("{} {} {}", member.id.0, member.name, member.addr))
        .collect();
    assert_eq!(
        found,
        [
            "0 pc1 [fe80::1]:7000",
            "1 node 1 10.0.0.2:7000",
            "2 node 1 10.0.0.2:7001"
        ]
    );
    for (slots, problem) in [
        ("0", "lab.toml:3: field `slots`: 0: accepted are 1 to 1024"),
        ("1025", "lab.toml:3: field `slots`: 1025: accepted are"),
    ] {
        let error = parse(&three.replace("slots = 2", &format!("slots = {slots}")));
        let error = error.expect_err(slots);
        assert!(error.starts_with(problem), "{error}");
    }
    let last = three.replace("10.0.0.2:7000", "10.0.0.2:65535");
    let error = parse(&last).expect_err("no port is left");
    assert!(
        error.starts_with("lab.toml:3: field `addr`: no 2 ports follow"),
        "{error}"
    );
    let path = Path::new("lab.toml");
    let all = ClusterFile::parse_with(TWO, path, (Path::new(ETHERS_PATH), Some(3)));
    assert_eq!(all.expect("sound").members().len(), 6);
    let two = "[[node]]\nid = 0\nhost = \"pc1\"\nmac = \"00:1b:21:00:00:01\"\nslots = 2\naddr = \"packet:eth1\"\n";
    let file = parse(two).expect("sound");
    let found: Vec<String> = file
        .hosts()
        .iter()
        .map(|host| format!("{} {}", host.link, host.addr))
        .collect();
    let wanted = [
        "packet:eth1 00:1b:21:00:00:01",
        "packet:eth1:1 06:1b:21:00:00:01",
    ];
    assert_eq!(found, wanted);
    let error = parse(&two.replace("slots = 2", "slots = 65")).expect_err("too many");
    assert!(
        error.contains("at most 64 nodes share an interface"),
        "{error}"
    );
    // Devices that one process must own are reached by a relay, one node alone is not.
    for (given, link, device) in [
        ("packet:eth1:7", "packet:eth1:8", None),
        ("xdp:eth1", "relay:eth1:1", Some("xdp:eth1")),
        ("relay:lab", "relay:lab:1", None),
        (
            "dpdk:0000:03:00.0",
            "relay:0000.03.00.0:1",
            Some("dpdk:0000:03:00.0"),
        ),
        (
            "dpdk:net_af_packet,iface=eth1",
            "relay:eth1:1",
            Some("dpdk:net_af_packet,iface=eth1"),
        ),
    ] {
        let text = two.replace("packet:eth1", given);
        let file = parse(&text).expect(given);
        let node = &file.hosts()[1];
        assert_eq!(node.link.to_string(), link);
        assert_eq!(
            node.device.map(|device| device.to_string()).as_deref(),
            device
        );
        let slot = if given.ends_with(":7") { 8 } else { 1 };
        let mac: MacAddr = "00:1b:21:00:00:01".parse().expect("an address");
        let mac = mac.of_slot(slot).expect("a slot");
        assert_eq!(node.addr, LinkAddr::Ether(mac));
        let one = parse(&text.replace("slots = 2", "slots = 1")).expect(given);
        let direct = (&one.hosts()[0].link, one.hosts()[0].device);
        assert_eq!(direct, (&given.parse().expect(given), None));
    }
    let memif = two.replace("packet:eth1", "dpdk:net_memif,role=server");
    let error = parse(&memif).expect_err("one process");
    assert!(
        error.contains("2 nodes cannot share `dpdk:net_memif"),
        "{error}"
    );
    let udp = two
        .replace("packet:eth1", "udp:10.0.0.1:7000")
        .replace("slots", "interface = \"eth1\"\nslots");
    let over = parse(&udp)
        .expect("sound")
        .over(&LinkSpec::Packet(None), path);
    let addr = over.expect("sound").members()[1].addr;
    assert_eq!(addr.to_string(), "06:1b:21:00:00:01");
    let over = parse(&udp).expect("sound").over(&LinkSpec::Xdp(None), path);
    let over = over.expect("by a relay");
    assert_eq!(over.hosts()[1].link.to_string(), "relay:eth1:1");
    assert_eq!(over.link_name(), "shm+relay");
}

/// Every refusal is one line that names file, line and field, and says what is accepted.
#[test]
fn refusals_name_the_place() {
    let cases = [
        ("", "lab.toml:1: no [[node]]"),
        (
            &TWO.replace("id = 0", "id = 2"),
            "lab.toml:6: field `id`: 2 leaves a gap; the ids of 2 entries are 0 to 1",
        ),
        (
            &TWO.replace("id = 0", "id = 1"),
            "lab.toml:6: field `id`: 1 is there twice",
        ),
        (
            &TWO.replace("[fe80::1]", "10.0.0.2"),
            "lab.toml:8: field `addr`: 10.0.0.2:7000 is there twice",
        ),
        (
            &TWO.replace("udp:10.0.0.2:7000", "tcp:10.0.0.2:7000"),
            "lab.toml:3: field `addr`: `tcp:10.0.0.2:7000`: accepted is",
        ),
        (
            &TWO.replace("10.0.0.2:7000", "10.0.0.2"),
            "lab.toml:3: field `addr`: `udp:10.0.0.2`: accepted is",
        ),
        (
            &TWO.replace("10.0.0.2:7000", "0.0.0.0:7000"),
            "lab.toml:3: field `addr`: `udp:0.0.0.0:7000`: peers cannot",
        ),
        (&TWO.replace("id = 0", "id = 70000"), "lab.toml:6: "),
        (
            &TWO.replace("host =", "hots ="),
            "lab.toml:7: unknown field `hots`",
        ),
        (
            &TWO.replace("id = 1\n", ""),
            "lab.toml:1: missing field `id`",
        ),
        (&TWO.replace("id = 1\n", "id = \n"), "lab.toml:2: "),
    ];
    for (text, start) in cases {
        let message = parse(text).expect_err(start);
        assert!(
            message.starts_with(start) && !message.contains('\n'),
            "`{message}` does not start with `{start}`"
        );
    }
    let stated = |line: &str| TWO.replace("host = \"pc1\"", line);
    for (line, problem) in [
        (
            "mac = \"02:00\"",
            "field `mac`: `02:00`: accepted is the address of one interface",
        ),
        (
            "mac = \"ff:ff:ff:ff:ff:ff\"",
            "field `mac`: `ff:ff:ff:ff:ff:ff`: accepted is",
        ),
        (
            "ip = \"10.0.0\"",
            "field `ip`: `10.0.0`: accepted is an IP address",
        ),
        ("ip = \"0.0.0.0\"", "field `ip`: `0.0.0.0`: accepted is"),
        (
            "interface = \"a/b\"",
            "field `interface`: `a/b`: accepted is the name",
        ),
        ("via = [\"\"]", "field `via`: accepted are up to 64 words"),
    ] {
        let message = parse(&stated(line)).expect_err(line);
        let start = format!("lab.toml:7: {problem}");
        assert!(message.starts_with(&start), "{message}");
    }
    let missing = ClusterFile::read("/no/such/file.toml")
        .expect_err("no file")
        .to_string();
    assert!(missing.starts_with("/no/such/file.toml: "), "{missing}");
}

const LAB: &str = "[[node]]\nid = 0\nhost = \"pc1\"\naddr = \"packet:eth1\"\n\n\
    [[node]]\nid = 1\nhost = \"pc2\"\naddr = \"udp:10.0.0.2:7100\"\ninterface = \"eth0\"\nmac = \"2:0:0:0:0:2\"\nvia = [\"ssh\", \"pc2\"]\n";

fn mac(last: u8) -> LinkAddr {
    LinkAddr::Ether(MacAddr([2, 0, 0, 0, 0, last]))
}

/// An Ethernet address is the one in the file, else that of the host in `/etc/ethers`, else an error that says so.
#[test]
fn stations_are_resolved() {
    let ethers = std::env::temp_dir().join(format!("tsumuji-ethers-{}", std::process::id()));
    std::fs::write(&ethers, "# lab\n02:00:00:00:00:01 pc1\n").expect("write");
    let read = |text: &str| ClusterFile::parse_with(text, Path::new("lab.toml"), (&ethers, None));
    let file = read(LAB).expect("sound");
    assert_eq!(file.members()[0].addr, mac(1));
    assert_eq!(file.hosts()[0].link.to_string(), "packet:eth1");
    let error = read(&LAB.replace("pc1", "pc7"))
        .expect_err("nobody")
        .to_string();
    assert!(
        error.starts_with(
            "lab.toml:4: field `addr`: `packet:eth1` needs the field `mac`, because pc7 is not in "
        ),
        "{error}"
    );
    std::fs::remove_file(&ethers).expect("remove");
    let error = read(LAB).expect_err("no file").to_string();
    assert!(
        error.contains("needs the field `mac`, because cannot read "),
        "{error}"
    );
}

/// All nodes can be moved to another link if the file states the fields that it needs.
#[test]
fn another_link_is_taken() {
    let path = Path::new("lab.toml");
    let text = LAB.replace(
        "addr = \"packet:eth1\"",
        "addr = \"packet:eth1\"\nmac = \"2:0:0:0:0:1\"",
    );
    let file = parse(&text).expect("sound");
    let packet = file
        .clone()
        .over(&LinkSpec::Packet(None), path)
        .expect("interfaces");
    let links: Vec<String> = packet
        .hosts()
        .iter()
        .map(|host| host.link.to_string())
        .collect();
    assert_eq!(links, ["packet:eth1", "packet:eth0"]);
    assert_eq!(packet.members()[1].addr, mac(2));
    assert_eq!(
        packet.hosts()[1].via.as_deref(),
        Some(&["ssh".to_owned(), "pc2".to_owned()][..])
    );
    let error = file
        .clone()
        .over(&LinkSpec::Udp(None), path)
        .expect_err("no ip")
        .to_string();
    assert_eq!(
        error,
        "lab.toml: node 0 (`pc1`): link `udp` needs the field `ip`"
    );
    let with_ip = parse(&text.replace("host = \"pc1\"", "ip = \"10.0.0.1\"")).expect("sound");
    let udp = with_ip.over(&LinkSpec::Udp(None), path).expect("addresses");
    let links: Vec<String> = udp
        .hosts()
        .iter()
        .map(|host| host.link.to_string())
        .collect();
    assert_eq!(links, ["udp:10.0.0.1:7000", "udp:10.0.0.2:7100"]);
    let over = |text: &str| {
        let link: LinkSpec = text.parse().expect(text);
        let over = file.clone().over(&link, path);
        over.map(|file| file.hosts()[1].link.to_string())
            .map_err(|error| error.to_string())
    };
    for (given, taken) in [
        ("dpdk:net_af_packet", "dpdk:net_af_packet,iface=eth0"),
        ("dpdk:net_af_xdp,iface=eth7", "dpdk:net_af_xdp,iface=eth7"),
        ("dpdk:03:00.0", "dpdk:0000:03:00.0"),
    ] {
        assert_eq!(over(given).expect(given), taken);
    }
    let error = over("dpdk:net_memif").expect_err("one host's");
    assert!(error.contains("joins processes of one host"), "{error}");
    assert!(file.over(&LinkSpec::Shm, path).is_err());
}

/// memif joins two namespaces of this machine: server and client of one socket beside the file, with the stations' addresses.
#[test]
fn namespaces_meet_by_memif() {
    let node = |id: u16| {
        format!(
            "[[node]]\nid = {id}\nhost = \"t-{id}\"\naddr = \"udp:10.0.0.{id}1:7000\"\nmac = \"2:0:0:0:0:{id}\"\n\
             via = [\"ip\", \"netns\", \"exec\", \"t-{id}\"]\n"
        )
    };
    let link: LinkSpec = "dpdk:net_memif,bsize=9216".parse().expect("a device");
    let path = Path::new("/run/lab.toml");
    let over = |nodes: u16| {
        let text: String = (0..nodes).map(node).collect();
        parse(&text).expect("sound").over(&link, path)
    };
    let pair = over(2).expect("two namespaces");
    assert_eq!(
        pair.hosts()[1].link.to_string(),
        "dpdk:net_memif,bsize=9216,role=client,socket=/run/lab.toml.memif,socket-abstract=no,id=0,mac=02:00:00:00:00:01"
    );
    assert!(pair.hosts()[0].link.to_string().contains("role=server"));
    assert_eq!(pair.members()[1].addr, mac(1));
    let error = over(3).expect_err("three ends").to_string();
    assert!(error.contains("joins two processes"), "{error}");
}

/// A group is stated once for all nodes, by the file or by the link, or is made from their addresses: the same at every node, another for others.
#[test]
fn all_nodes_have_one_group() {
    let path = Path::new("lab.toml");
    let v4 = TWO.replace("[fe80::1]", "10.0.0.1");
    let groups = |file: ClusterFile| {
        let group = |node: &HostNode| match node.link {
            LinkSpec::Multicast {
                own: Some(own),
                group: Some(group),
            } if LinkAddr::Inet(own) == node.addr => Some(group),
            _ => None,
        };
        let groups: Vec<_> = file.hosts().iter().map(group).collect();
        assert_eq!(groups[0], groups[1]);
        groups[0]
    };
    let stated = Some("239.77.0.1:7400".parse().expect("group"));
    let with_key = format!("multicast = \"239.77.0.1:7400\"\n{v4}");
    let read = |text: &str| ClusterFile::parse(text, path);
    let over = |text: &str, link: &str| {
        let file = read(text).expect("valid");
        file.over(&link.parse().expect("link"), path).expect("over")
    };
    assert_eq!(groups(read(&with_key).expect("valid")), stated);
    assert_eq!(groups(over(&with_key, "udp+multicast")), stated);
    assert_eq!(groups(over(&v4, "udp+multicast:239.77.0.1:7400")), stated);
    assert_eq!(groups(over(&with_key, "udp")), None, "fan-out");
    let made = groups(over(&v4, "udp+multicast"));
    assert!(made.is_some_and(|group| group.ip().is_multicast() && group.port() >= 20_000));
    assert_eq!(made, groups(over(&v4, "udp+multicast")));
    let others = v4.replace("10.0.0.1:7000", "10.0.0.1:7001");
    assert_ne!(made, groups(over(&others, "udp+multicast")));
    for (text, wanted) in [
        (
            with_key.replace("239.77", "10.77"),
            "lab.toml:1: field `multicast`: `10.77.0.1:7400`: accepted is an IPv4 group",
        ),
        (
            format!("multicast = \"239.77.0.1:7400\"\n{TWO}"),
            "accepted are nodes of `udp` with IPv4 addresses",
        ),
    ] {
        let message = read(&text).expect_err("refused").to_string();
        assert!(message.contains(wanted), "{message}");
        assert_eq!(message.lines().count(), 1);
    }
}
