#!/usr/bin/env python3
"""Makes bert_curve.json: 20 training steps of tiny BERTs in Hugging Face transformers, fp32, on
dynamically masked tokens.

    python3 tests/golden/make_bert_curve.py > tests/golden/bert_curve.json
    python3 tests/golden/make_bert_curve.py KIND > tests/golden/bert_KIND_curve.json

Needs torch and transformers. The model is BertForMaskedLM without dropout. Initial
weights come from the integer formula of make_gpt2_curve.py, which bert_curve_test.cc repeats. The
file holds one sample, so that a run's sample is that one whatever its number; which of its tokens
are masked depends on the number. The masking is written out here, independently of Milepost: Philox
4x32-10 (Salmon et al. 2011), counter (position, 0, sample), key from (seed, stream).

Case "bert": one document, segments. Case "documents": several, which do not see each other, with
positions that begin anew, and padding. Case "distilbert": the same without segments, which is
DistilBertForMaskedLM.

Besides each step's loss and gradient norm: before the first step, the logits at some positions of
the first masked sample and the norm of every parameter's gradient; after the last step, all
parameters (bert_curve.safetensors).
"""
import json
import sys

import torch
import torch.nn.functional as F
import transformers

from make_gpt2_curve import final_state, lr_at, make_optimizer, uniform, OPTIMIZERS, TRAIN


BATCH = 8
SEED = 7
MODEL = {"layers": 2, "width": 16, "heads": 2, "hidden": 40, "context": 48, "vocabulary": 61,
         "segments": 2, "norm_epsilon": 1e-12}
MASKING = {"probability": 0.25, "mask_token": 60, "special_tokens": [1, 2]}
CASES = {
    "bert": {"segment_separator": 9},
    "documents": {"segment_separator": 9, "document_separator": 4, "padding": 5},
    "distilbert": {"document_separator": 4, "padding": 5},
}
LOGITS_AT = [0, 17, 47]
U32 = 2**32 - 1
U64 = 2**64 - 1
TRAINING_STREAM = 1 << 40
VALIDATION_STREAM = 2 << 40


def token(i):
    return 5 if i >= 44 else (i * i + 3 * (i // 5)) % 60


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


def philox(counter, key):
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (p1 >> 32) ^ b ^ k0, p1 & U32, (p0 >> 32) ^ d ^ k1, p0 & U32
        k0, k1 = (k0 + 0x9E3779B9) & U32, (k1 + 0xBB67AE85) & U32
    return a, b, c, d


def mask(tokens, sample, seed, stream, probability, mask_token, vocabulary, never=()):
    """Inputs and targets of the sample of this number."""
    wide = mix(mix(seed) ^ stream)
    key = (wide & U32, wide >> 32)
    inputs, targets = [], []
    for t, original in enumerate(tokens):
        chosen, fate, random, _ = philox((t, 0, sample & U32, sample >> 32), key)
        inputs.append(original)
        if chosen >= int(probability * 2**32) or original in never:
            targets.append(-100)
            continue
        targets.append(original)
        tenth = fate * 10 >> 32
        if tenth < 8:
            inputs[-1] = mask_token
        elif tenth < 9:
            inputs[-1] = random * vocabulary >> 32
    return inputs, targets


def masked(sample, case):
    return mask([token(t) for t in range(MODEL["context"])], sample, SEED, TRAINING_STREAM,
                MASKING["probability"], MASKING["mask_token"], MODEL["vocabulary"],
                set(MASKING["special_tokens"]) | set(case.values()))


def structure(case):
    """Documents, positions and segments of the (unmasked) tokens."""
    documents, positions, segments = [0], [0], [0]
    for t in range(1, MODEL["context"]):
        before, now = token(t - 1), token(t)
        padding = case.get("padding")
        begins = before == case.get("document_separator") or (
            padding is not None and (before == padding) != (now == padding))
        documents.append(documents[-1] + begins)
        positions.append(0 if begins else positions[-1] + 1)
        after = segments[-1] + (before == case.get("segment_separator"))
        segments.append(0 if begins else min(after, MODEL["segments"] - 1))
    return documents, positions, segments


def distilbert():
    return transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(
        n_layers=MODEL["layers"], dim=MODEL["width"], n_heads=MODEL["heads"],
        hidden_dim=MODEL["hidden"], max_position_embeddings=MODEL["context"],
        vocab_size=MODEL["vocabulary"], dropout=0.0, attention_dropout=0.0, pad_token_id=None,
        attn_implementation="eager"))


def bert():
    config = transformers.BertConfig(
        num_hidden_layers=MODEL["layers"], hidden_size=MODEL["width"],
        num_attention_heads=MODEL["heads"], intermediate_size=MODEL["hidden"],
        max_position_embeddings=MODEL["context"], vocab_size=MODEL["vocabulary"],
        type_vocab_size=MODEL["segments"], layer_norm_eps=MODEL["norm_epsilon"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None,
        attn_implementation="eager")
    return transformers.BertForMaskedLM(config)


def build(case):
    network = (bert() if "segment_separator" in case else distilbert()).float()
    with torch.no_grad():
        for index, (name, weight) in enumerate(network.named_parameters()):
            values = uniform(index, weight.numel()).reshape(weight.shape) * 0.3
            scales = "norm" in name.lower() and name.endswith(".weight")
            weight.copy_(values + 1 if scales else values)
    return network


def forward(network, inputs, case):
    documents, positions, segments = (torch.tensor(x) for x in structure(case))
    batch = inputs.shape[0]
    mask = (documents[:, None] == documents[None, :])[None, None].expand(batch, 1, -1, -1)
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    types = {"token_type_ids": segments.expand(batch, -1)} if "segment_separator" in case else {}
    return network(input_ids=inputs, attention_mask=additive,
                   position_ids=positions.expand(batch, -1), **types).logits


def train(case, kind):
    network = build(case)
    weights = dict(network.named_parameters())
    optimizer = make_optimizer(kind, weights, (".layer.", ".transform."))
    result = {"data": case, "parameters": list(weights), "steps": []}
    for step in range(TRAIN["steps"]):
        samples = [masked(step * BATCH + i, case) for i in range(BATCH)]
        inputs = torch.tensor([s[0] for s in samples])
        targets = torch.tensor([s[1] for s in samples])
        logits = forward(network, inputs, case)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result["first_inputs"] = inputs.tolist()
            result["first_targets"] = targets.tolist()
            result["logits"] = {str(t): logits[0, t].tolist() for t in LOGITS_AT}
            result["gradient_norms"] = {n: w.grad.norm().item() for n, w in weights.items()}
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        result["steps"].append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    result["final"] = final_state(weights)
    return result


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "adamw"
    TRAIN.update(OPTIMIZERS[kind])
    cases = CASES if kind == "adamw" else {"bert": CASES["bert"]}
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "optimizer": kind,
                      "samples": BATCH, "seed": SEED, "model": MODEL, "masking": MASKING,
                      "train": TRAIN,
                      "cases": {name: train(case, kind) for name, case in cases.items()}}))


if __name__ == "__main__":
    main()
