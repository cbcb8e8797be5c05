#!/usr/bin/env python3
"""Makes nf4.json: tensors in 4 bits, as bitsandbytes packs them.

    python3 tests/golden/make_nf4.py > tests/golden/nf4.json

Needs torch and bitsandbytes. Values come from the integer formula of make_gpt2_curve.py, which
nf4_test.cc repeats; one block of the second tensor is zeros.
"""
import json

import bitsandbytes
import torch

from make_gpt2_curve import uniform


def pack(elements, zeros):
    values = uniform(elements, elements)
    values[zeros[0]:zeros[1]] = 0
    codes, state = bitsandbytes.functional.quantize_4bit(
        values, blocksize=64, quant_type="nf4", compress_statistics=False)
    return {"elements": elements, "zeros": zeros, "codes": bytes(codes.flatten().tolist()).hex(),
            "scales": state.absmax.tolist()}


print(json.dumps({"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__,
                  "tensors": [pack(1024, [0, 0]), pack(1000, [64, 128])]}, indent=1))
