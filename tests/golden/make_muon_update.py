"""What torch.optim.Muon's iterations, in bf16, make of a few matrices; CI needs no torch.

    python3 tests/golden/make_muon_update.py > tests/golden/muon_update.json

Needs torch only. The matrices come from an integer formula (make_gpt2_curve.py's `uniform`) that
muon_update_test.cc repeats. Results are the 16 bits of each number, in hexadecimal, row by row.
"""
import json

import torch

from make_gpt2_curve import uniform

SHAPES = [(16, 48), (48, 16), (24, 24), (40, 7)]
STEPS = [1, 2, 5]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPSILON = 1e-7


def bits(matrix):
    numbers = matrix.contiguous().view(torch.int16).flatten().tolist()
    return "".join(f"{number & 0xffff:04x}" for number in numbers)


def main():
    torch.set_num_threads(1)
    cases = []
    for number, (rows, cols) in enumerate(SHAPES):
        update = uniform(number, rows * cols).view(rows, cols)
        for steps in STEPS:
            result = torch.optim._muon._zeropower_via_newtonschulz(
                update, COEFFICIENTS, steps, EPSILON)
            assert result.dtype == torch.bfloat16
            cases.append({"number": number, "rows": rows, "cols": cols, "steps": steps,
                          "bits": bits(result)})
    print(json.dumps({"torch": torch.__version__, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
