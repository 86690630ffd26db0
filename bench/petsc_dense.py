#!/usr/bin/env python3
"""The dense test system, and PETSc's answer to it.

    petsc_dense.py make N A.npy b.npy                    writes A (float64, by rows) and b
    mpiexec -n R petsc_dense.py solve A.npy b.npy TOL    GMRES+Jacobi and Richardson+Jacobi; rank 0 prints a JSON line each

The system: off-diagonal -U(0,1), diagonal 1.766 times the sum of the row's absolute values, so that Gauss-Seidel needs about
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
        ksp = PETSc.KSP().create()
        ksp.setOperators(matrix)
        ksp.setType(method)
        ksp.getPC().setType("jacobi")
        # PETSc stops on the preconditioned residual: for this system that is the true one to within a few percent.
        ksp.setTolerances(rtol=tolerance, max_it=RICHARDSON_LAPS_MAX)
        ksp.setFromOptions()
        solution = matrix.createVecRight()
        ksp.setUp()
        PETSc.COMM_WORLD.barrier()
        start = time.perf_counter()
        ksp.solve(rhs, solution)
        PETSc.COMM_WORLD.barrier()
        seconds = time.perf_counter() - start
        residual = rhs.duplicate()
        matrix.mult(solution, residual)
        residual.aypx(-1.0, rhs)
        relative = residual.norm() / rhs.norm()
        if PETSc.COMM_WORLD.getRank() == 0:
            print(json.dumps({
                "method": method, "ranks": PETSc.COMM_WORLD.getSize(), "n": n, "seconds": seconds,
                "laps": ksp.getIterationNumber(), "residual": relative, "version": ".".join(map(str, PETSc.Sys.getVersion())),
            }), flush=True)


def main(arguments):
    if len(arguments) == 4 and arguments[0] == "make":
        make(int(arguments[1]), arguments[2], arguments[3])
    elif len(arguments) == 4 and arguments[0] == "solve":
        solve(arguments[1], arguments[2], float(arguments[3]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
