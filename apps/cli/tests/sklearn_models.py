"""Data sets of scikit-learn and its models of them: writes the data into the folder given, prints a line of JSON for each model.

The penalties are those of tsumuji: l2 / 2 * |w|^2 beside the mean loss of a row, of standardised columns.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from scipy.optimize import minimize

FOLDER = Path(sys.argv[1])
L2 = 1e-2


def one_versus_rest(fit, rows, targets):
    """Weights and intercept of each class against the others; of two classes only the second."""
    classes = np.unique(targets)
    positive = classes[1:] if len(classes) == 2 else classes
    fitted = [fit(rows, np.where(targets == label, 1.0, -1.0)) for label in positive]
    return np.array([weights for weights, _ in fitted]), np.array([intercept for _, intercept in fitted])


def logistic(rows, signs):
    model = LogisticRegression(C=1 / (L2 * len(rows)), solver="newton-cholesky", tol=1e-10, max_iter=10_000).fit(rows, signs)
    return model.coef_[0], model.intercept_[0]


def squared_hinge(rows, signs):
    """LinearSVC penalises the intercept, so the same objective is minimised by SciPy."""
    def objective(theta):
        missing = np.maximum(0, 1 - signs * (rows @ theta[:-1] + theta[-1]))
        slope = -2 * signs * missing / len(rows)
        gradient = np.append(rows.T @ slope + L2 * theta[:-1], slope.sum())
        return (missing**2).mean() + L2 / 2 * theta[:-1] @ theta[:-1], gradient
    found = minimize(objective, np.zeros(rows.shape[1] + 1), jac=True, method="L-BFGS-B",
                     options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 100_000, "maxfun": 100_000, "maxcor": 50})
    return found.x[:-1], found.x[-1]


def tell(kind, data, scaler, weights, intercepts, score):
    weights = np.atleast_2d(weights) / scaler.scale_
    intercepts = np.atleast_1d(intercepts) - weights @ scaler.mean_
    print(json.dumps({"kind": kind, "data": str(data), "l2": L2, "coefficients": weights.tolist(),
                      "intercepts": intercepts.tolist(), "score": score}))


def main():
    found = datasets.load_diabetes()
    data = FOLDER / "diabetes.npz"
    np.savez_compressed(data, X=found.data, y=found.target)
    scaler = StandardScaler().fit(found.data)
    rows = scaler.transform(found.data)
    for kind, model in ("linear", LinearRegression()), ("ridge", Ridge(alpha=L2 * len(rows), solver="cholesky")):
        model.fit(rows, found.target)
        tell(kind, data, scaler, model.coef_, model.intercept_, model.score(rows, found.target))
    for name in "breast_cancer", "iris", "wine", "digits":
        found = getattr(datasets, f"load_{name}")()
        data = FOLDER / f"{name}.csv"
        header = ",".join([f"x{column}" for column in range(found.data.shape[1])] + ["y"])
        table = np.column_stack([found.data, found.target])
        np.savetxt(data, table, delimiter=",", header=header, comments="", fmt="%.17g")
        scaler = StandardScaler().fit(found.data)
        rows = scaler.transform(found.data)
        for kind, fit in ("logistic", logistic), ("svm", squared_hinge):
            weights, intercepts = one_versus_rest(fit, rows, found.target)
            outputs = rows @ weights.T + intercepts
            best = (outputs[:, 0] > 0).astype(int) if len(weights) == 1 else outputs.argmax(axis=1)
            tell(kind, data, scaler, weights, intercepts, float((best == found.target).mean()))


main()
