#!/usr/bin/python3
"""Makes the real matrices in examples/data from packages that bring them.

add32 is the file big.rua of Debian's libsuperlu-dist-dev (Harwell-Boeing); grid2869 is the network case2869pegase of
the Python package pandapower, of which this needs only the wheel, not the dependencies:

  apt-get install libsuperlu-dist-dev
  pip download --no-deps pandapower
  scripts/convert_data.py --rua /usr/lib/x86_64-linux-gnu/superlu-dist/tests/EXAMPLE/big.rua \\
      --wheel pandapower-*.whl --output examples/data

The same inputs give the same bytes.
"""

import argparse
import gzip
import io
import json
import re
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

CASE = "pandapower/networks/power_system_test_case_jsons/case2869pegase.json"


def read_rua(path):
    """An assembled Harwell-Boeing matrix: (order, {(row, column): value}), indices from 0."""
    lines = Path(path).read_text().splitlines()
    counts = [int(word) for word in lines[1].split()]
    kind, order, entries = lines[2][:3].strip(), int(lines[2].split()[1]), int(lines[2].split()[3])
    if kind.upper() != "RUA":
        sys.exit(f"{path}: type {kind}; RUA is expected")
    widths = [int(re.search(r"\d+[iIeE](\d+)", field).group(1)) for field in lines[3].split()[:3]]
    position = 4 + (1 if len(counts) > 4 and counts[4] else 0)
    blocks = []
    for count, width in zip(counts[1:4], widths):
        text = "".join(line.ljust(len(line) // width * width) for line in lines[position : position + count])
        blocks.append([text[at : at + width] for at in range(0, len(text) - width + 1, width)])
        position += count
    starts, rows = [int(word) for word in blocks[0]], [int(word) for word in blocks[1]]
    values = [float(word.replace("D", "E")) for word in blocks[2]]
    if len(starts) != order + 1 or len(rows) < entries or len(values) < entries:
        sys.exit(f"{path}: truncated")
    matrix = {}
    for column in range(order):
        for at in range(starts[column] - 1, starts[column + 1] - 1):
            matrix[rows[at] - 1, column] = values[at]
    return order, matrix


def table(network, name):
    """A pandapower table as a list of rows by column name, with the index as 'index'."""
    frame = json.loads(network[name]["_object"])
    rows = []
    for index, data in zip(frame["index"], frame["data"]):
        rows.append(dict(zip(frame["columns"], data)) | {"index": index})
    return rows


def read_grid(path):
    """B'' of the fast decoupled power flow, in per unit of 100 MVA: susceptances between the buses whose voltage is not
    held by a generator. A symmetric M-matrix."""
    network = json.loads(zipfile.ZipFile(path).read(CASE))["_object"]
    base_mva = 100.0
    volts = {bus["index"]: bus["vn_kv"] for bus in table(network, "bus")}
    held = {source["bus"] for name in ("gen", "ext_grid") for source in table(network, name)}
    branches = []
    for line in table(network, "line"):
        ohm = line["x_ohm_per_km"] * line["length_km"] / line["parallel"]
        per_unit = ohm * base_mva / volts[line["from_bus"]] ** 2
        branches.append((line["from_bus"], line["to_bus"], per_unit))
    for trafo in table(network, "trafo"):
        impedance, resistance = trafo["vk_percent"] / 100, trafo["vkr_percent"] / 100
        reactance = (impedance**2 - resistance**2) ** 0.5
        per_unit = reactance * base_mva / trafo["sn_mva"] / trafo["parallel"]
        branches.append((trafo["hv_bus"], trafo["lv_bus"], per_unit))
    number = {bus: i for i, bus in enumerate(sorted(bus for bus in volts if bus not in held))}
    matrix = defaultdict(float)
    for one, other, reactance in branches:
        susceptance = 1 / reactance
        for bus in (one, other):
            if bus in number:
                matrix[number[bus], number[bus]] += susceptance
        if one in number and other in number and one != other:
            matrix[number[one], number[other]] -= susceptance
            matrix[number[other], number[one]] -= susceptance
    return len(number), matrix


def write_mtx(path, comments, order, matrix, symmetric):
    if symmetric:
        matrix = {place: value for place, value in matrix.items() if place[0] >= place[1]}
    kind = "symmetric" if symmetric else "general"
    text = io.StringIO()
    text.write(f"%%MatrixMarket matrix coordinate real {kind}\n")
    text.writelines(f"% {comment}\n" for comment in comments)
    text.write(f"{order} {order} {len(matrix)}\n")
    for (row, column), value in sorted(matrix.items(), key=lambda item: (item[0][1], item[0][0])):
        text.write(f"{row + 1} {column + 1} {value!r}\n")
    data = gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0)
    path.write_bytes(data)
    print(f"{path}: {order} rows, {len(matrix)} entries, {len(data)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rua", required=True, help="big.rua of libsuperlu-dist-dev")
    parser.add_argument("--wheel", required=True, help="wheel of pandapower")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    order, matrix = read_rua(options.rua)
    comments = ["add32: 32-bit adder, S. Hamm (Motorola); from SuperLU_DIST, BSD-3-Clause; see README.md"]
    write_mtx(options.output / "add32.mtx.gz", comments, order, matrix, symmetric=False)
    order, matrix = read_grid(options.wheel)
    comments = ["grid2869: B'' of the fast decoupled power flow of case2869pegase; from pandapower, BSD-3-Clause; see README.md"]
    write_mtx(options.output / "grid2869.mtx.gz", comments, order, matrix, symmetric=True)


if __name__ == "__main__":
    main()
