#!/usr/bin/env python3
"""PETSc's answer to linear systems, and the dense one among them.

    petsc_solve.py make N A.npy b.npy                        writes A (float64, by rows) and b
    mpiexec -n R petsc_solve.py solve A.npy b.npy TOL        GMRES+Jacobi and Richardson+Jacobi; rank 0 prints a JSON line each
    mpiexec -n R petsc_solve.py sparse A.petsc b.petsc TOL   GMRES with Jacobi and with block ILU(0), and CG with block ILU(0);
                                                             if A is symmetric and its diagonal positive, CG with block ICC(0) and with GAMG, too

Sparse: the methods stop on the unpreconditioned residual; their seconds have the preconditioner's making in them, and read_seconds the reading and
distributing of the file.

The dense system: off-diagonal -U(0,1), diagonal 1.766 times the sum of the row's absolute values, so that Gauss-Seidel needs about
20 laps. b belongs to a random solution: A·1 would be an eigenvector here, and a gift to Krylov methods. Each rank reads its own rows. Times are of the solve alone. The residual is computed from A, b and x in the end.
"""

import glob
import json
import os
import sys
import time

import numpy as np

DOMINANCE = 1.766
RICHARDSON_LAPS_MAX = 2000
SPARSE_ITERATIONS_MAX = 5000
# Name, method, preconditioner, and that of each rank's own rows.
SPARSE = (
    ("gmres+Jacobi", "gmres", "jacobi", None),
    ("gmres+block ILU", "gmres", "bjacobi", "ilu"),
    ("cg+block ILU", "cg", "bjacobi", "ilu"),
)
# Of symmetric positive definite systems only.
DEFINITE = (
    ("cg+block ICC", "cg", "bjacobi", "icc"),
    ("cg+GAMG", "cg", "gamg", None),
)
# A and its transpose differ by rounding at most, relative to A.
ASYMMETRY_MAX = 1e-14


def make(n, path, rhs_path):
    rng = np.random.default_rng(1)
    solution = rng.standard_normal(n)
    rhs = np.empty(n)
    matrix = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n, n))
    for row in range(n):
        values = -rng.random(n)
        values[row] = 0.0
        values[row] = DOMINANCE * -values.sum()
        matrix[row] = values
        rhs[row] = values @ solution
    matrix.flush()
    np.save(rhs_path, rhs)


def import_petsc():
    try:
        import petsc4py
    except ImportError:
        # Debian keeps its builds where only an alternative points to; without that, look there.
        for build in sorted(glob.glob("/usr/lib/petscdir/petsc3*/*-real")):
            sys.path.append(os.path.join(build, "lib/python3/dist-packages"))
        import petsc4py
    petsc4py.init([])
    from petsc4py import PETSc
    return PETSc


def solver(PETSc, matrix, method, preconditioner, own_rows=None):
    ksp = PETSc.KSP().create()
    ksp.setOperators(matrix)
    ksp.setType(method)
    ksp.getPC().setType(preconditioner)
    if own_rows is not None:
        prefix = f"{method}_{own_rows}_"
        PETSc.Options().setValue(prefix + "sub_pc_type", own_rows)
        ksp.setOptionsPrefix(prefix)
        ksp.setFromOptions()
    return ksp


def may_be_definite(PETSc, matrix):
    """Whether the matrix is symmetric and its diagonal positive. If it is not positive definite all the same, CG stops, and its residual tells."""
    _, least = matrix.getDiagonal().min()
    difference = matrix.transpose(PETSc.Mat())
    difference.axpy(-1.0, matrix)
    is_symmetric = difference.norm() <= ASYMMETRY_MAX * matrix.norm()
    difference.destroy()
    return least > 0 and is_symmetric


def measure(PETSc, ksp, rhs, name, read_seconds=0.0):
    """Solves, and prints the line. What is set up before is not in the time."""
    matrix, _ = ksp.getOperators()
    solution = matrix.createVecRight()
    PETSc.COMM_WORLD.barrier()
    start = time.perf_counter()
    ksp.setUp()
    ksp.solve(rhs, solution)
    PETSc.COMM_WORLD.barrier()
    seconds = time.perf_counter() - start
    residual = rhs.duplicate()
    matrix.mult(solution, residual)
    residual.aypx(-1.0, rhs)
    relative = residual.norm() / rhs.norm()
    if PETSc.COMM_WORLD.getRank() == 0:
        print(json.dumps({
            "method": name, "seconds": seconds, "read_seconds": read_seconds,
            "laps": ksp.getIterationNumber(), "residual": relative, "version": ".".join(map(str, PETSc.Sys.getVersion())),
        }), flush=True)


def solve(path, rhs_path, tolerance):
    PETSc = import_petsc()
    file = np.load(path, mmap_mode="r")
    n = file.shape[0]
    matrix = PETSc.Mat().createDense([n, n])
    matrix.setUp()
    first, last = matrix.getOwnershipRange()
    matrix.getDenseArray()[:, :] = file[first:last]
    matrix.assemble()
    rhs = matrix.createVecLeft()
    rhs.getArray()[:] = np.load(rhs_path)[first:last]
    for method in ("gmres", "richardson"):
        ksp = solver(PETSc, matrix, method, "jacobi")
        # PETSc stops on the preconditioned residual: for this system that is the true one to within a few percent.
        ksp.setTolerances(rtol=tolerance, max_it=RICHARDSON_LAPS_MAX)
        ksp.setFromOptions()
        ksp.setUp()
        measure(PETSc, ksp, rhs, method)


def sparse(path, rhs_path, tolerance):
    PETSc = import_petsc()
    PETSc.COMM_WORLD.barrier()
    start = time.perf_counter()
    matrix = PETSc.Mat().load(PETSc.Viewer().createBinary(path, "r"))
    rhs = PETSc.Vec().load(PETSc.Viewer().createBinary(rhs_path, "r"))
    PETSc.COMM_WORLD.barrier()
    read_seconds = time.perf_counter() - start
    methods = SPARSE
    if may_be_definite(PETSc, matrix):
        # PETSc is told, as its users would.
        matrix.setOption(PETSc.Mat.Option.SPD, True)
        methods += DEFINITE
    for name, method, preconditioner, own_rows in methods:
        ksp = solver(PETSc, matrix, method, preconditioner, own_rows)
        if method == "gmres":
            ksp.setPCSide(PETSc.PC.Side.RIGHT)
        ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
        ksp.setTolerances(rtol=tolerance, max_it=SPARSE_ITERATIONS_MAX)
        measure(PETSc, ksp, rhs, name, read_seconds)
        ksp.destroy()


def main(arguments):
    if len(arguments) == 4 and arguments[0] == "make":
        make(int(arguments[1]), arguments[2], arguments[3])
    elif len(arguments) == 4 and arguments[0] == "solve":
        solve(arguments[1], arguments[2], float(arguments[3]))
    elif len(arguments) == 4 and arguments[0] == "sparse":
        sparse(arguments[1], arguments[2], float(arguments[3]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
