//! Whole netlists.

use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    memory_bytes: 64 << 20,
    unfolded_bytes: 1 << 20,
};

fn parse(text: &str) -> Result<Netlist, FileError> {
    from_bytes("in.sp", text.as_bytes(), LIMITS)
}

fn netlist(text: &str) -> Netlist {
    parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    let error = parse(text).expect_err(text).to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn pair(netlist: &Netlist, nodes: Pair) -> [&str; 2] {
    nodes.map(|node| netlist.node_name(node))
}

/// Every element that is read, in all its forms.
#[test]
fn elements_are_read() {
    let circuit = netlist(
        "* all elements\nR1 a 0 1k\nr2 a b r={2*rs} m=2\nR3 b gnd 0\nC1 a 0 1n\nL1 b c 1u\nK1 L1 L2 0.9\n\
         V1 a 0 DC 5 AC 1\nv2 c 0 pulse(1 2 0 1n)\nV3 d 0\nV4 e 0 sin(1 2 1k 0 0 90)\nI1 a b {rs}\nI2 0 a pwl(0 3m 1 4m) dc 1m\n\
         E1 f 0 (a,b) 2\nG1 f 0 a b 1m\nF1 g 0 V3 10\nH1 h 0 v3 1k\nR4 g 0 1\nD1 a b dx 2\nd2 b 0 dx area=3 off\n\
         .param rs=50\n.model dx D (IS=1e-12 N=1.5 RS=2 CJO=1p)\n.op\n.end\nR9 x y z",
    );
    assert_eq!(circuit.title, "* all elements");
    assert_eq!(circuit.resistors.len(), 3);
    assert!(
        circuit
            .resistors
            .iter()
            .any(|r| r.ohms == 50.0 && pair(&circuit, r.nodes) == ["a", "b"])
    );
    assert_eq!(circuit.shorts.len(), 2);
    assert_eq!(circuit.capacitors, 1);
    let volts: Vec<f64> = circuit.voltages.iter().map(|v| v.value).collect();
    assert_eq!(volts, [5.0, 1.0, 0.0, 3.0]);
    let amperes: Vec<f64> = circuit.currents.iter().map(|i| i.value).collect();
    assert_eq!(amperes, [50.0, 1e-3]);
    assert_eq!(circuit.voltage_gains[0].gain, 2.0);
    assert_eq!(circuit.transconductances[0].gain, 1e-3);
    let controls = (
        circuit.current_gains[0].control,
        circuit.transresistances[0].control,
    );
    assert_eq!(
        circuit
            .sources
            .get(circuit.voltages[controls.0 as usize].name),
        "v3"
    );
    assert_eq!(controls.0, controls.1);
    let diodes = &circuit.diodes;
    assert_eq!(
        (
            diodes[0].saturation_amperes,
            diodes[0].emission,
            diodes[0].series_ohms
        ),
        (2e-12, 1.5, 1.0)
    );
    assert_eq!(diodes[1].saturation_amperes, 3.0 * 1e-12);
    assert_eq!(circuit.analysis, Analysis::OperatingPoint);
}

/// Instances have their own nodes, elements and parameters; ground, ports and global nodes are shared.
#[test]
fn instances_are_unfolded() {
    let circuit = netlist(
        "t\n.global vdd\n.param top=7\n.subckt half in out params: r=1k k={r/2}\nR1 in mid {r}\nR2 mid out 'k'\nR3 mid vdd {local}\n\
         .param local={top*k}\nV1 mid 0 1\nF1 out 0 v1 2\n.ends half\n\
         .subckt pair a b\nX1 a m half r=10\nX2 m b half\n.ends\nXp in 0 pair\nVin in 0 1\nRv vdd 0 1\n.dc xp.x2.v1 0 {top/7} 0.25\n",
    );
    let found: Vec<([&str; 2], f64)> = circuit
        .resistors
        .iter()
        .map(|r| (pair(&circuit, r.nodes), r.ohms))
        .collect();
    assert!(found.contains(&(["in", "xp.x1.mid"], 10.0)), "{found:?}");
    assert!(found.contains(&(["xp.x1.mid", "xp.m"], 5.0)));
    assert!(found.contains(&(["xp.x1.mid", "vdd"], 35.0)));
    assert!(found.contains(&(["xp.x2.mid", "0"], 500.0)));
    let control = circuit.voltages[circuit.current_gains[0].control as usize];
    assert_eq!(circuit.sources.get(control.name), "xp.x1.v1");
    let Analysis::Sweep {
        source: SourceRef::Voltage(place),
        values,
    } = &circuit.analysis
    else {
        panic!()
    };
    assert_eq!(
        circuit.sources.get(circuit.voltages[*place as usize].name),
        "xp.x2.v1"
    );
    assert_eq!(*values, [0.0, 0.25, 0.5, 0.75, 1.0]);
}

/// What an instance gives wins over parameters of the subcircuit, and these over defaults; a default that names itself takes the value around it.
#[test]
fn parameters_have_an_order() {
    for (circuit, wanted) in [
        (
            ".subckt s a r=1k\n.param r=3k\nR1 a 0 {r}\n.ends\nX1 x s r=5k",
            5e3,
        ),
        (
            ".subckt s a r=1k\n.param r=3k\nR1 a 0 {r}\n.ends\nX1 x s",
            3e3,
        ),
        (
            ".subckt s a\n.param r=3k\nR1 a 0 {r}\n.ends\nX1 x s r=5k",
            5e3,
        ),
        (
            ".subckt s a r=1k\n.param q={r} r=3k\nR1 a 0 {q}\n.ends\nX1 x s r=5k",
            5e3,
        ),
        (
            ".param r=4k\n.subckt s a r={r}\nR1 a 0 {r}\n.ends\nX1 x s",
            4e3,
        ),
        (
            ".param r=4k\n.subckt s a\n.param r={r*2}\nR1 a 0 {r}\n.ends\nX1 x s",
            8e3,
        ),
        (
            ".param r=2k\n.subckt s a r=1k\nR1 a 0 {r}\n.ends\nX1 x s r={r}",
            2e3,
        ),
    ] {
        let found = netlist(&format!("t\n{circuit}\n"));
        assert_eq!(found.resistors[0].ohms, wanted, "{circuit}");
    }
}

/// A model knows the parameters of where it stands, not those of the instance that uses it.
#[test]
fn models_have_their_own_scope() {
    for (circuit, wanted) in [
        (
            ".param q=1e-14\n.model dm d(is={q})\n.subckt s a q=1e-9\nD1 a 0 dm\n.ends\nX1 x s",
            1e-14,
        ),
        (
            ".subckt s a q=1e-9\n.model dm d(is={q})\nD1 a 0 dm\n.ends\nX1 x s q=1e-12",
            1e-12,
        ),
        (
            ".param q=1e-6\n.subckt o a q=1e-9\n.subckt i b q=1e-14\nD1 b 0 dm\n.ends i\n.model dm d(is={q})\nX1 a i q=1e-15\n.ends o\n\
             X1 x o q=1e-10",
            1e-10,
        ),
    ] {
        let found = netlist(&format!("t\n{circuit}\n"));
        assert_eq!(found.diodes[0].saturation_amperes, wanted, "{circuit}");
    }
}

/// A global node is the same where a port has its name.
#[test]
fn global_nodes_hide_ports() {
    let circuit = netlist("t\n.global vdd\n.subckt s vdd\nR1 vdd 0 1k\n.ends\nX1 x s\n");
    assert_eq!(pair(&circuit, circuit.resistors[0].nodes), ["vdd", "0"]);
}

/// Definitions within definitions are found from inside only; models, too.
#[test]
fn definitions_are_local() {
    let inner = "t\n.subckt outer a\n.subckt inner b\nD1 b 0 d1\n.ends\n.model d1 d(is=2e-15)\nX1 a inner\n.ends\nX1 n outer\n";
    let circuit = netlist(inner);
    assert_eq!(circuit.diodes[0].saturation_amperes, 2e-15);
    assert!(
        refused(&format!("{inner}X2 n inner\n"))
            .contains("line 10: there is no subcircuit 'inner'")
    );
    assert!(refused(&format!("{inner}D2 n 0 d1\n")).contains("line 10: there is no model 'd1'"));
}

/// The format of the IBM power grid benchmarks.
#[test]
fn power_grids_are_read() {
    let circuit = netlist(
        "* layer: M1,VDD net: 1\nrr0 n1_0_0 n1_0_100 0.25\nR1 n1_0_100 n3_0_100 0.0\n* vias\nV5 n3_0_100 n5_0_100 0.0\n\
         rr2 _X_n5_0_100 n5_0_100 1e-2\nvp _X_n5_0_100 0 1.8\niB0_0_v n1_0_0 0 0.1m\n.op\n.end\n",
    );
    assert_eq!(
        (
            circuit.resistors.len(),
            circuit.shorts.len(),
            circuit.voltages.len()
        ),
        (2, 1, 2)
    );
    assert_eq!(circuit.currents[0].value, 1e-4);
    assert!(circuit.nodes.find("n1_0_100").is_some());
    assert!(circuit.notes.is_empty(), "{:?}", circuit.notes);
}

/// What does not concern operating points is skipped and noted, once for each kind.
#[test]
fn harmless_directives_are_noted() {
    let circuit = netlist(
        "t\nR1 a 0 1\nI1 0 a 1\n.tran 1n 1u\n.print dc v(a)\n.print v(b)\n.options reltol=1e-9\n.control\nrun\n.endc\n.temp 27\n",
    );
    assert_eq!(circuit.notes.len(), 4, "{:?}", circuit.notes);
    assert!(
        circuit
            .notes
            .iter()
            .any(|note| note.starts_with(".tran (line 4) is skipped"))
    );
    let titled = netlist("R1 a 0 1k\nR2 a 0 1\n");
    assert!(titled.notes[0].contains("is the title and no element"));
}

/// Each mistake has one line: file, line, what is wrong.
#[test]
fn mistakes_are_located() {
    for (text, wanted) in [
        ("t\n\n+ x", "in.sp: line 3: a line that begins with '+'"),
        ("t\nR1 a 0", "line 2: the resistor has no resistance"),
        ("t\nR1 a", "line 2: the element 'r1' needs two nodes"),
        (
            "t\nR1 a 0 frob",
            "line 2: 'frob' is neither a number nor a parameter",
        ),
        ("t\nR1 a 0 1 2", "after the resistance follows '2'"),
        ("t\nR1 a 0 1 l=3", "a resistor has no 'l'"),
        ("t\nR1 a 0 {1", "a '{' is not closed"),
        ("t\nR1 a 0 {1/0}", "is inf"),
        ("t\nQ1 a b c mod", "'q1' is no element that is read"),
        ("t\n.frob", "line 2: '.frob' is not read; read are .subckt"),
        ("t\n.lib 'x' tt", "'.lib' is not read"),
        (
            "t\n.include other.sp",
            "include 'other.sp': no files are included from here",
        ),
        (
            "t\nV1 a 0 1\nV1 b 0 1",
            "line 3: there is another element called 'v1'",
        ),
        ("t\nD1 a 0 dx", "there is no model 'dx'"),
        (
            "t\n.model n1 npn\nD1 a 0 n1",
            "line 3: the model 'n1' in line 2: the type is 'npn'",
        ),
        (
            "t\n.model d1 d(is=0)\nD1 a 0 d1",
            "is is 0e0; it must be above 0",
        ),
        ("t\n.model d1 d(isr=1)\nD1 a 0 d1", "has no 'isr' here"),
        (
            "t\n.model d1 d(level=2)\nD1 a 0 d1",
            "level is 2; read are level 1",
        ),
        (
            "t\n.model d1 d(is=1e-14 n 2)\nD1 a 0 d1",
            "in the expression '1e-14 n 2'",
        ),
        ("t\nF1 a 0 v9 2", "there is no voltage source 'v9'"),
        ("t\nE1 a 0 poly(1) b 0 1 2", "polynomials, tables"),
        ("t\nX1 a b sub", "there is no subcircuit 'sub'"),
        (
            "t\n.subckt s a\nR1 a 0 1\n.ends\nX1 a b s",
            "has 1 nodes, but 2 are given",
        ),
        (
            "t\n.subckt s a\nR1 a 0 1\n.ends\nX1 a s r=2",
            "line 5: the subcircuit 's' has no parameter 'r'",
        ),
        (
            "t\n.subckt s a\nR1 a 0 q\n.ends\nX1 a s",
            "line 3: 'q' is neither",
        ),
        (
            "t\n.subckt s a\nX1 a s\n.ends\nX1 a s",
            "nested more than 64 deep; does 's' hold itself?",
        ),
        (
            "t\n.subckt s a\nR1 a 0 1",
            "line 2: the subcircuit 's' does not end",
        ),
        ("t\n.subckt s a a\n.ends", "has two nodes 'a'"),
        ("t\n.ends", ".ends without .subckt"),
        ("t\n.subckt s a\n.ends r", "ends the subcircuit 's'"),
        (
            "t\nR1 a 0 1\n.dc v1 0 1 0.1",
            "line 3: .dc: there is no voltage or current source 'v1'",
        ),
        (
            "t\nV1 a 0 1\n.dc x2.v1 0 1 0.1",
            "line 3: .dc: there is no voltage or current source 'x2.v1'",
        ),
        ("t\nV1 a 0 1\n.dc v1 0 1", ".dc takes a source"),
        ("t\nV1 a 0 1\n.dc v1 0 1 -1", "do not lead from"),
        ("t\nV1 a 0 1\n.dc v1 0 1 0", "do not lead from"),
        ("t\nV1 a 0 1\n.dc v1 0 1 1n", "the limit is 100000"),
        ("t\n.param a={b} b={a}\nR1 x 0 a", "refers to itself"),
        ("t\n.temp 85", "at 27 degrees"),
        ("t\n.options temp=85", "at 27 degrees"),
        ("t\n.options gmin=0", "gmin is '0'; accepted are"),
        ("", "in.sp: there are no elements"),
        ("t\n* only comments", "there are no elements"),
        ("t\nR1 a 0 1a", "the suffix 'a'"),
    ] {
        let error = refused(text);
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}

/// A few lines that would unfold to billions of elements are refused.
#[test]
fn unfolding_is_bounded() {
    let mut text = String::from("t\n.subckt s0 a\nR1 a 0 1\n.ends\n");
    for level in 1..60 {
        text += &format!(
            ".subckt s{level} a\nX1 a s{}\nX2 a s{}\n.ends\n",
            level - 1,
            level - 1
        );
    }
    assert!(refused(&format!("{text}X1 a s59\n")).contains("unfold to more than is accepted"));
    assert_eq!(netlist(&format!("{text}X1 a s3\n")).resistors.len(), 8);
}

/// A long model that many diodes share is not read without end.
#[test]
fn models_are_bounded() {
    let spaces = " ".repeat(1 << 16);
    let diodes: String = (0..40).map(|n| format!("D{n} a 0 d\n")).collect();
    let text = format!("t\n.model d d(is=1e-14{spaces}n=1)\n{diodes}");
    assert!(refused(&text).contains("unfold to more than is accepted"));
}

/// Memory is bounded.
#[test]
fn memory_is_bounded() {
    let text: String = (0..10_000).map(|n| format!("\nR{n} a{n} b{n} 1")).collect();
    let limits = Limits {
        memory_bytes: 400_000,
        ..LIMITS
    };
    let error = from_bytes("in.sp", text.as_bytes(), limits)
        .unwrap_err()
        .to_string();
    assert!(error.contains("too large for the memory"), "{error}");
}

/// Files beside the netlist are included, others are not.
#[test]
fn includes_stay_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("sub");
    std::fs::create_dir(&inner).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("sub/Models.inc", ".model d1 d(is=3e-15)\nR1 a 0 1\n.end\n");
    write("self.sp", "t\n.include self.sp\n");
    write("main.sp", "t\n.include \"sub/Models.inc\"\nD1 a 0 d1\n.end");
    let found = read(&folder.path().join("main.sp")).unwrap();
    assert_eq!(
        (found.diodes[0].saturation_amperes, found.resistors.len()),
        (3e-15, 1)
    );
    write("bad.sp", "t\n.include sub/bad.inc\n");
    write("sub/bad.inc", "\nR1 a 0 frob\n");
    let error = read(&folder.path().join("bad.sp")).unwrap_err().to_string();
    assert!(error.contains("sub/bad.inc: line 2: 'frob'"), "{error}");
    assert!(
        read(&folder.path().join("self.sp"))
            .unwrap_err()
            .to_string()
            .contains("8 deep")
    );
    std::os::unix::fs::symlink("/etc", folder.path().join("link")).unwrap();
    for (path, wanted) in [
        ("/etc/passwd", "a relative path"),
        ("../x", "a relative path"),
        ("sub/../../x", "a relative path"),
        ("", "a relative path"),
        ("link/passwd", "leaves the folder"),
        ("sub", "no regular file"),
        ("none.inc", "cannot be read"),
    ] {
        write("out.sp", &format!("t\n.include {path}\nR1 a 0 1\n"));
        let error = read(&folder.path().join("out.sp")).unwrap_err().to_string();
        assert!(error.contains(wanted), "{path}: {error}");
    }
}

/// Compressed files are read as others are; truncated ones are refused.
#[test]
fn compressed_files_are_read() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sp.gz");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder
        .write_all(b"t\nR1 a 0 1k\nI1 0 a 1m\n.end\n")
        .unwrap();
    let bytes = encoder.finish().unwrap();
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&path).unwrap().elements(), 2);
    std::fs::write(&path, &bytes[..bytes.len() - 12]).unwrap();
    assert!(read(&path).is_err());
    assert!(
        read(folder.path())
            .unwrap_err()
            .to_string()
            .contains("directory")
    );
}

proptest! {
    /// Any lines of letters of the language give a circuit or one line.
    #[test]
    fn any_text_is_answered(lines in prop::collection::vec("(\\.(param|subckt|ends|model|dc|global|end|op) |[rcvidxefghlk+*])[-a-c0-3 ={}'().+*kd]{0,14}", 0..30)) {
        let text = format!("t\n{}", lines.join("\n"));
        if let Err(error) = parse(&text) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    /// Random flat resistors come back as they were written, whatever their form.
    #[test]
    fn resistors_come_back(given in prop::collection::vec((0u32..9, 0u32..9, 1u32..1000, 0usize..5), 1..40)) {
        let mut text = String::from("t\n.param one=1\n");
        for (place, (a, b, ohms, form)) in given.iter().enumerate() {
            text += &match form {
                0 => format!("R{place} {a} {b} {ohms}\n"),
                1 => format!("r{place}  {a}\t{b} r={ohms} ; c\n"),
                2 => format!("R{place} {a} {b} {{{ohms}*one}}\n"),
                3 => format!("R{place} {a}\n* c\n+ {b} {ohms}e0ohm $ c\n"),
                _ => format!("R{place} ({a},{b}) '{ohms} + 0'\n"),
            };
        }
        let circuit = netlist(&text);
        let mut found: Vec<_> = circuit.resistors.iter().map(|r| {
            let [a, b] = pair(&circuit, r.nodes);
            (a.to_owned(), b.to_owned(), r.ohms as u32)
        }).collect();
        let mut expected: Vec<_> = given.iter().map(|(a, b, ohms, _)| (a.to_string(), b.to_string(), *ohms)).collect();
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}
