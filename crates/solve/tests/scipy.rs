//! Readers and solutions against SciPy: its own files read by us, our files read by it, our solutions beside
//! `spsolve`'s.
//!
//! The interpreter is `TSUMUJI_PYTHON`, by default `/usr/bin/python3`. Where it has no SciPy these tests skip by name,
//! unless `TSUMUJI_REQUIRE` contains `scipy`.

use std::path::{Path, PathBuf};
use std::process::Command;
use tsumuji_solve::local::{Inner, Limits, Relaxation, single, threads};
use tsumuji_solve::system::formats::{read_matrix, read_system, read_vector, write_vector};
use tsumuji_solve::system::{Generate, Matrix, System};

fn python() -> PathBuf {
    std::env::var_os("TSUMUJI_PYTHON").map_or_else(|| "/usr/bin/python3".into(), PathBuf::from)
}

/// Runs a script in `directory`; `None`, and a line that says so, where there is no SciPy.
fn scipy(test: &str, directory: &Path, script: &str) -> Option<String> {
    let run = |script: &str| {
        let run = Command::new(python())
            .arg("-c")
            .arg(script)
            .current_dir(directory)
            .output();
        run.map_err(|error| error.to_string()).and_then(|output| {
            if output.status.success() {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            } else {
                Err(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        })
    };
    if let Err(error) = run("import scipy.io, scipy.sparse.linalg") {
        let why = error.trim().lines().last().unwrap_or_default().to_owned();
        let required = std::env::var("TSUMUJI_REQUIRE").is_ok_and(|list| list.contains("scipy"));
        assert!(
            !required,
            "SciPy is required, but {} has none: {why}",
            python().display()
        );
        println!("SKIPPED {test}: {} has no SciPy: {why}", python().display());
        return None;
    }
    Some(run(script).unwrap_or_else(|error| panic!("{error}")))
}

/// The matrix as coordinate lines, for SciPy to read without our writers or readers.
fn dump(matrix: &Matrix, path: &Path) {
    let mut text = String::new();
    let mut count = 0;
    for row in 0..matrix.n() {
        matrix.for_each_in_row(row, |column, value| {
            text += &format!("{row} {column} {value:e}\n");
            count += 1;
        });
    }
    std::fs::write(path, format!("{} {count}\n{text}", matrix.n())).unwrap();
}

/// What SciPy and NumPy write in all their formats, we read as what they meant.
#[test]
fn files_of_scipy_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"
import numpy as np, scipy.sparse as sp, scipy.io as io
rng = np.random.default_rng(1)
n = 17
A = sp.random(n, n, 0.2, random_state=rng, format="coo") + sp.diags(np.arange(1.0, n + 1))
S = A + A.T
I = sp.coo_matrix((np.ones(n), (range(n), range(n)))) * 3
K = (A - A.T) + sp.diags(np.arange(1.0, n + 1))
names = {}
def keep(name, M):
    M = sp.coo_matrix(M); M.sum_duplicates()
    np.save("ref_" + name + ".npy", np.asarray(M.todense(), dtype="<f8")); names[name] = 1
io.mmwrite("general.mtx", A, symmetry="general", precision=17); keep("general.mtx", A)
io.mmwrite("symmetric.mtx", S, symmetry="symmetric", precision=17); keep("symmetric.mtx", S)
io.mmwrite("integer.mtx", sp.coo_matrix(I.astype(np.int64)), field="integer"); keep("integer.mtx", I)
io.mmwrite("pattern.mtx", A, field="pattern", symmetry="general"); keep("pattern.mtx", A != 0)
io.mmwrite("array.mtx", A.toarray(), precision=17); keep("array.mtx", A)
io.mmwrite("symarray.mtx", S.toarray(), symmetry="symmetric", precision=17); keep("symarray.mtx", S)
import gzip
gzip.open("zipped.mtx.gz", "wb").write(open("general.mtx", "rb").read()); keep("zipped.mtx.gz", A)
io.hb_write("boeing.rua", A.tocsc()); keep("boeing.rua", io.hb_read("boeing.rua"))
D = A.toarray()
for kind in ("<f8", ">f8", "<f4", ">f4"):
    np.save("c%s.npy" % kind.replace("<", "l").replace(">", "b"), D.astype(kind)); keep("c%s.npy" % kind.replace("<", "l").replace(">", "b"), D.astype(kind).astype("f8"))
np.save("fortran.npy", np.asfortranarray(D)); keep("fortran.npy", D)
for kind in ("i1", "i2", ">i4", "i8", "u1", "u2", "u4", ">u8"):
    M = (np.eye(n) * 100 + 1).astype(kind)
    name = "int%s.npy" % kind.replace(">", "b"); np.save(name, M); keep(name, M.astype("f8"))
np.lib.format.write_array(open("v2.npy", "wb"), D, version=(2, 0)); keep("v2.npy", D)
np.lib.format.write_array(open("v3.npy", "wb"), D, version=(3, 0)); keep("v3.npy", D)
print("\n".join(names))
"#;
    let Some(names) = scipy("files_of_scipy_are_read", directory.path(), script) else {
        return;
    };
    assert_eq!(names.lines().count(), 23);
    for name in names.lines() {
        let ours = read_matrix(&directory.path().join(name)).unwrap().matrix;
        let reference = read_matrix(&directory.path().join(format!("ref_{name}.npy")))
            .unwrap()
            .matrix;
        for row in 0..17 {
            let mut line = [0.0; 17];
            ours.for_each_in_row(row, |column, value| line[column] = value);
            reference.for_each_in_row(row, |column, value| {
                assert_eq!(line[column], value, "{name} ({row}, {column})");
            });
        }
    }
}

/// What we write, NumPy and SciPy read bit for bit.
#[test]
fn solutions_are_read_by_scipy() {
    let directory = tempfile::tempdir().unwrap();
    let x: Vec<f64> = (0..100)
        .map(|k| (f64::from(k) - 50.0).powi(3) / 7.0)
        .collect();
    write_vector(&directory.path().join("x.npy"), &x).unwrap();
    write_vector(&directory.path().join("x.mtx"), &x).unwrap();
    let script = "
import numpy as np, scipy.io as io
x = (np.arange(100) - 50.0) ** 3 / 7
a, b = np.load('x.npy'), io.mmread('x.mtx')
assert a.shape == (100,) and b.shape == (100, 1)
assert (a == x).all() and (b[:, 0] == x).all()
";
    scipy("solutions_are_read_by_scipy", directory.path(), script);
}

/// Solves in every way there is on one machine.
fn solutions(system: &System, inner: Inner) -> Vec<(&'static str, Vec<f64>)> {
    let relaxation = Relaxation::new(inner, 1.0).unwrap();
    let limits = Limits::new(1e-12, 100_000).unwrap();
    let how = (relaxation, false);
    let alone = single::solve(system.clone(), how, limits, |_| (), || false).unwrap();
    let threads = threads::solve(system.clone(), 3, how, limits, |_| (), || false).unwrap();
    [("single", alone), ("threads", threads)]
        .map(|(mode, outcome)| {
            assert!(
                outcome.converged,
                "{} {mode}: {}",
                system.name, outcome.reason
            );
            (mode, outcome.x)
        })
        .into()
}

/// Our solutions are `spsolve`'s, for generated systems and for the real circuit and grid, with a right-hand side
/// whose solution is not known beforehand.
#[test]
fn solutions_agree_with_spsolve() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data");
    let mut systems: Vec<System> = ["dense:150", "poisson2d:20", "poisson3d:7", "circuit:400"]
        .map(|text| text.parse::<Generate>().unwrap().system(5).unwrap())
        .into();
    systems.push(read_system(&data.join("add32.mtx.gz"), None).unwrap().0);
    for mut system in systems {
        system.rhs = (0..system.n())
            .map(|row| ((row * 7919) % 101) as f64 - 50.0)
            .collect();
        let directory = tempfile::tempdir().unwrap();
        dump(&system.matrix, &directory.path().join("a.txt"));
        write_vector(&directory.path().join("b.npy"), &system.rhs).unwrap();
        let script = "
import numpy as np, scipy.sparse as sp, scipy.sparse.linalg as sl
with open('a.txt') as f:
    n, count = map(int, f.readline().split())
    t = np.loadtxt(f, ndmin=2)
A = sp.csc_matrix((t[:, 2], (t[:, 0].astype(int), t[:, 1].astype(int))), shape=(n, n))
np.save('x.npy', sl.spsolve(A, np.load('b.npy')))
";
        if scipy("solutions_agree_with_spsolve", directory.path(), script).is_none() {
            return;
        }
        let expected = read_vector(&directory.path().join("x.npy"), system.n()).unwrap();
        let scale = expected.iter().fold(0.0f64, |scale, x| scale.max(x.abs()));
        for (mode, x) in solutions(&system, Inner::Auto) {
            let error = x
                .iter()
                .zip(&expected)
                .map(|(x, e)| (x - e).abs())
                .fold(0.0, f64::max);
            assert!(
                error < 1e-8 * scale,
                "{} {mode}: {error:e} of {scale:e}",
                system.name
            );
        }
    }
}

/// The residual we verify with is the one NumPy computes in extended precision.
#[test]
fn residuals_agree_with_extended_precision() {
    let directory = tempfile::tempdir().unwrap();
    let system = "dense:200".parse::<Generate>().unwrap().system(9).unwrap();
    // Near the solution, where plain arithmetic has no correct digit left.
    let x: Vec<f64> = (0..200)
        .map(|row| 1.0 + f64::from(row % 3) * f64::EPSILON)
        .collect();
    dump(&system.matrix, &directory.path().join("a.txt"));
    write_vector(&directory.path().join("b.npy"), &system.rhs).unwrap();
    write_vector(&directory.path().join("x.npy"), &x).unwrap();
    let script = "
import numpy as np
from fractions import Fraction
with open('a.txt') as f:
    n, count = map(int, f.readline().split())
    t = np.loadtxt(f, ndmin=2)
b, x = np.load('b.npy'), np.load('x.npy')
r = [Fraction(v) for v in b]
for i, j, v in t:
    r[int(i)] -= Fraction(v) * Fraction(x[int(j)])
print(repr(float(sum(v * v for v in r))))
";
    let Some(exact) = scipy(
        "residuals_agree_with_extended_precision",
        directory.path(),
        script,
    ) else {
        return;
    };
    let exact: f64 = exact.trim().parse().unwrap();
    let ours = (system.relative_residual(&x) * system.rhs_norm()).powi(2);
    assert!((ours - exact).abs() < 1e-12 * exact, "{ours:e} {exact:e}");
}
