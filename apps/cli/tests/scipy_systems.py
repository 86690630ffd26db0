"""Writes systems and their solutions by SciPy: scipy_systems.py FOLDER [MATRIX.mtx[.gz] ...]

For each system NAME: its matrix, NAME.b.mtx or NAME.b.npy, and NAME.x.npy, the solution. Matrices given on the command line
get b = A·1 (as the program takes without --rhs) and a solution only. Prints one NAME and matrix file per line.
"""

import gzip
import os
import shutil
import sys

import numpy as np
import scipy.io
import scipy.sparse as sp
import scipy.sparse.linalg


def dominant(n, density, symmetric, rng):
    matrix = sp.random(n, n, density=density, random_state=rng, data_rvs=lambda k: rng.uniform(-1, 1, k)).tolil()
    if symmetric:
        matrix = (matrix + matrix.T).tolil()
    matrix.setdiag(0)
    matrix = matrix.tocsr()
    sums = np.asarray(abs(matrix).sum(axis=1)).ravel()
    return (matrix + sp.diags(1.3 * sums + 0.5)).tocsr()


def main():
    folder, given = sys.argv[1], sys.argv[2:]
    rng = np.random.default_rng(5)

    def path(name):
        return os.path.join(folder, name)

    general = dominant(300, 0.02, False, rng)
    rhs = rng.standard_normal(300)
    scipy.io.mmwrite(path("general.mtx"), general, symmetry="general")
    scipy.io.mmwrite(path("general.b.mtx"), rhs.reshape(-1, 1))
    np.save(path("general.x.npy"), scipy.sparse.linalg.spsolve(general.tocsc(), rhs))
    print("general", path("general.mtx"))

    symmetric = dominant(250, 0.02, True, rng)
    scipy.io.mmwrite(path("symmetric.mtx"), symmetric, symmetry="symmetric")
    with open(path("symmetric.mtx"), "rb") as plain, gzip.open(path("symmetric.mtx.gz"), "wb") as packed:
        shutil.copyfileobj(plain, packed)
    rhs = rng.standard_normal(250)
    np.save(path("symmetric.b.npy"), rhs)
    np.save(path("symmetric.x.npy"), scipy.sparse.linalg.spsolve(symmetric.tocsc(), rhs))
    print("symmetric", path("symmetric.mtx.gz"))

    dense = rng.uniform(-1, 1, (200, 200))
    np.fill_diagonal(dense, 1.5 * abs(dense).sum(axis=1))
    rhs = rng.standard_normal(200)
    np.save(path("dense.npy"), dense)
    np.save(path("dense.b.npy"), rhs)
    np.save(path("dense.x.npy"), np.linalg.solve(dense, rhs))
    print("dense", path("dense.npy"))

    for file in given:
        name = os.path.basename(file).split(".")[0]
        matrix = scipy.io.mmread(file).tocsc()
        np.save(path(name + ".x.npy"), scipy.sparse.linalg.spsolve(matrix, matrix @ np.ones(matrix.shape[0])))
        print(name, file)


if __name__ == "__main__":
    main()
