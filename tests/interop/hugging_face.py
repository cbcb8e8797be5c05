#!/usr/bin/env python3
"""Weights to and from transformers, with the real programs.

    scripts/test --interop                                 builds, makes the environment, runs this
    tests/interop/hugging_face.py build/dev/bin            with python's transformers and torch

For each family a randomly initialised transformers model is saved, trained one step from
`train.init_from` at a learning rate too small to change a bit, even of a zero, and exported:
- our validation loss is transformers' loss on the same tokens (1e-5 relative);
- the exported weights are the saved ones, bit for bit, and load with from_pretrained (those of a
  Phi-3 as a Llama's, those of a RoBERTa as a BERT's);
- logits of the export are the saved model's (1e-4);
- our logits are transformers' (1e-4);
- `milepost generate` writes greedily what transformers' `generate` writes, to the context's end;
- a bf16 export is the rounded weights; a sharded folder is read as well.
Of image models the loss and the weights are compared; of a ViT adapters too, in PEFT and merged.
A model with further heads starts from a folder that has none, exports them beside what transformers
knows and loads, and starts from that again.
Passed with transformers 5.23.0, torch 2.15.0, safetensors 0.8.0.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers

transformers.utils.logging.disable_progress_bar()

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from make_bert_curve import mask, VALIDATION_STREAM  # noqa: E402

T = 32
VOCABULARY = 128
SAMPLES = 12
FAMILIES = {
    "gpt2": (
        transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=T,
                                vocab_size=VOCABULARY, initializer_range=0.2, bos_token_id=None,
                                eos_token_id=None),
        f"gpt2: {{layers: 2, width: 64, heads: 4, context: {T}, vocabulary: {VOCABULARY}}}"),
    "llama": (
        transformers.LlamaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                 num_key_value_heads=2, intermediate_size=96,
                                 max_position_embeddings=T, vocab_size=VOCABULARY,
                                 initializer_range=0.2, rms_norm_eps=1e-5),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}}}"),
    "llama3": (
        transformers.LlamaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                 num_key_value_heads=1, head_dim=8, intermediate_size=96,
                                 max_position_embeddings=T, vocab_size=VOCABULARY,
                                 initializer_range=0.2, rms_norm_eps=1e-6,
                                 tie_word_embeddings=True,
                                 rope_parameters={
                                     "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0,
                                     "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                     "original_max_position_embeddings": 16}),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 1, head_dim: 8, hidden: 96, "
        f"context: {T}, vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, tied: true, "
        "rope_theta: 500, rope_scaling: {factor: 4, original_context: 16}}"),
    "qwen2": (
        transformers.Qwen2Config(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                 num_key_value_heads=2, intermediate_size=96,
                                 max_position_embeddings=T, vocab_size=VOCABULARY,
                                 initializer_range=0.2, rms_norm_eps=1e-6, bos_token_id=None,
                                 eos_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, qkv_bias: true}}"),
    "qwen3": (
        transformers.Qwen3Config(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                 num_key_value_heads=2, head_dim=24, intermediate_size=96,
                                 max_position_embeddings=T, vocab_size=VOCABULARY,
                                 initializer_range=0.2, rms_norm_eps=1e-6,
                                 tie_word_embeddings=True, bos_token_id=None, eos_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, head_dim: 24, hidden: 96, "
        f"context: {T}, vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, tied: true, qk_norm: true}}"),
    "phi3": (
        transformers.Phi3Config(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                num_key_value_heads=2, intermediate_size=96,
                                max_position_embeddings=T, vocab_size=VOCABULARY,
                                initializer_range=0.2, rms_norm_eps=1e-5, sliding_window=T,
                                bos_token_id=None, eos_token_id=None, pad_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}}}"),
    "mistral": (
        transformers.MistralConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                   num_key_value_heads=2, intermediate_size=96, head_dim=16,
                                   max_position_embeddings=T, vocab_size=VOCABULARY,
                                   initializer_range=0.2, rms_norm_eps=1e-6, sliding_window=6,
                                   bos_token_id=None, eos_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, window: {{positions: 6}}}}"),
    "mixtral": (
        transformers.MixtralConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                   num_key_value_heads=2, intermediate_size=48,
                                   max_position_embeddings=T, vocab_size=VOCABULARY,
                                   initializer_range=0.2, num_local_experts=5,
                                   num_experts_per_tok=2, sliding_window=6, bos_token_id=None,
                                   eos_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 48, context: {T}, "
        f"vocabulary: {VOCABULARY}, rope_theta: 1e6, window: {{positions: 6}}, "
        "experts: {count: 5, per_token: 2}}"),
    "qwen3_moe": (
        transformers.Qwen3MoeConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                    num_key_value_heads=2, head_dim=24, intermediate_size=96,
                                    moe_intermediate_size=40, max_position_embeddings=T,
                                    vocab_size=VOCABULARY, initializer_range=0.2, num_experts=6,
                                    num_experts_per_tok=3, norm_topk_prob=False,
                                    tie_word_embeddings=True, bos_token_id=None,
                                    eos_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, head_dim: 24, hidden: 96, "
        f"context: {T}, vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, tied: true, qk_norm: true, "
        "experts: {count: 6, per_token: 3, hidden: 40, normalize: false}}"),
    "gemma": (
        transformers.GemmaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                 num_key_value_heads=1, head_dim=24, intermediate_size=96,
                                 max_position_embeddings=T, vocab_size=VOCABULARY,
                                 initializer_range=0.2, bos_token_id=None, eos_token_id=None,
                                 pad_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 1, head_dim: 24, hidden: 96, "
        f"context: {T}, vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, tied: true, "
        "activation: geglu, norm_offset: true, scale_embedding: true}"),
    "gemma3": (
        transformers.Gemma3TextConfig(
            num_hidden_layers=4, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
            head_dim=24, intermediate_size=96, max_position_embeddings=T, vocab_size=VOCABULARY,
            initializer_range=0.2, query_pre_attn_scalar=24, sliding_window=5,
            layer_types=["sliding_attention", "sliding_attention", "full_attention",
                         "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
            bos_token_id=None, eos_token_id=None, pad_token_id=None),
        f"llama: {{layers: 4, width: 64, heads: 4, kv_heads: 2, head_dim: 24, hidden: 96, "
        f"context: {T}, vocabulary: {VOCABULARY}, norm_epsilon: 1e-6, tied: true, qk_norm: true, "
        "activation: geglu, norm_offset: true, post_norms: true, scale_embedding: true, "
        "rope_theta: 5000, rope_scaling: {type: linear, factor: 4}, "
        "window: {positions: 5, full_every: 3, rope_theta: 100}}"),
    "olmo2": (
        transformers.Olmo2Config(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                 num_key_value_heads=2, intermediate_size=96,
                                 max_position_embeddings=T, vocab_size=VOCABULARY,
                                 initializer_range=0.2, bos_token_id=None, eos_token_id=None,
                                 pad_token_id=None),
        f"llama: {{layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}, wide_qk_norm: true, pre_norms: false, post_norms: true}}"),
    "olmo3": (
        transformers.Olmo3Config(
            num_hidden_layers=4, hidden_size=64, num_attention_heads=4, num_key_value_heads=1,
            intermediate_size=96, max_position_embeddings=T, vocab_size=VOCABULARY,
            initializer_range=0.2, sliding_window=5, tie_word_embeddings=True,
            rope_parameters={
                "full_attention": {
                    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0,
                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
            bos_token_id=None, eos_token_id=None, pad_token_id=None),
        f"llama: {{layers: 4, width: 64, heads: 4, kv_heads: 1, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}, tied: true, wide_qk_norm: true, pre_norms: false, "
        "post_norms: true, rope_theta: 500, rope_scaling: {factor: 4, original_context: 16}, "
        "window: {positions: 5, full_every: 4, rope_theta: 100}}"),
    "distilbert": (
        transformers.DistilBertConfig(n_layers=2, dim=64, n_heads=4, hidden_dim=96,
                                      max_position_embeddings=T, vocab_size=VOCABULARY,
                                      initializer_range=0.2, sinusoidal_pos_embds=True),
        f"bert: {{layers: 2, width: 64, heads: 4, hidden: 96, context: {T}, segments: 0, "
        f"vocabulary: {VOCABULARY}}}"),
    "bert": (
        transformers.BertConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                intermediate_size=96, max_position_embeddings=T,
                                vocab_size=VOCABULARY, initializer_range=0.2),
        f"bert: {{layers: 2, width: 64, heads: 4, hidden: 96, context: {T}, "
        f"vocabulary: {VOCABULARY}}}"),
    "roberta": (
        transformers.RobertaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
                                   intermediate_size=96, max_position_embeddings=T + 2,
                                   vocab_size=VOCABULARY, type_vocab_size=1,
                                   initializer_range=0.2, layer_norm_eps=1e-5),
        f"bert: {{layers: 2, width: 64, heads: 4, hidden: 96, context: {T}, segments: 1, "
        f"norm_epsilon: 1e-5, vocabulary: {VOCABULARY}}}"),
}
# What their exports are where it is another one.
EXPORTED_AS = {"phi3": transformers.LlamaForCausalLM, "roberta": transformers.BertForMaskedLM}
MASK = VOCABULARY - 1
MASKED = ("bert", "distilbert", "roberta")


def auto_class(config):
    return (transformers.AutoModelForMaskedLM if config.model_type in MASKED
            else transformers.AutoModelForCausalLM)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def load(folder, **options):
    config = transformers.AutoConfig.from_pretrained(folder)
    return auto_class(config).from_pretrained(folder, **options).eval()


def weights(model):
    """By name, without tied duplicates."""
    return {name: value.detach() for name, value in model.named_parameters()}


ROBERTA_NAMES = (("roberta.", "bert."),
                 ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
                 ("lm_head.dense.", "cls.predictions.transform.dense."),
                 ("lm_head.bias", "cls.predictions.bias"))


def converted(tensors):
    """As a Llama has them what a Phi-3 keeps below each other, and as a BERT what a RoBERTa has."""
    parts, roberta = {}, "lm_head.bias" in tensors
    for name, value in tensors.items():
        if name.endswith("qkv_proj.weight"):
            names, rows = ("q_proj", "k_proj", "v_proj"), (64, 32, 32)
        elif name.endswith("gate_up_proj.weight"):
            names, rows = ("gate_proj", "up_proj"), (96, 96)
        elif roberta:
            for old, new in ROBERTA_NAMES:
                name = name.replace(old, new)
            parts[name] = value[2:] if "position_embeddings" in name else value
            continue
        else:
            parts[name] = value
            continue
        old = name.split(".")[-2]
        for part, piece in zip(names, value.split(rows)):
            parts[name.replace(old, part)] = piece
    return parts


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    check(result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def write_tokens(path, count, seed):
    generator = numpy.random.default_rng(seed)
    tokens = generator.integers(0, VOCABULARY, count).astype(numpy.uint16)
    tokens[tokens == 1] = 0  # RoBERTa gives that token, its padding, no position
    numpy.save(path, tokens)
    return torch.from_numpy(tokens.astype(numpy.int64))


def spec_text(model, saved):
    masking = f", masking: {{mask_token: {MASK}}}" if model.startswith("bert") else ""
    return f"""
model:
  {model}
data: {{train: train.npy, validation: validation.npy{masking}}}
train:
  steps: 1
  precision: fp32
  init_from: {saved}
  batch: {{global: 4, micro: 2}}
  optimizer: {{lr: 1e-50, weight_decay: 0}}
  validation: {{samples: {SAMPLES}}}
resources: {{ranks: 2, threads_per_rank: 1}}
"""


def reference_loss(model, tokens):
    with torch.no_grad():
        inputs = torch.stack([tokens[i * T:i * T + T] for i in range(SAMPLES)])
        targets = torch.stack([tokens[i * T + 1:i * T + T + 1] for i in range(SAMPLES)])
        if model.config.model_type in MASKED:
            samples = [mask(sample.tolist(), i, 0, VALIDATION_STREAM, 0.15, MASK, VOCABULARY)
                       for i, sample in enumerate(inputs)]
            inputs, targets = (torch.tensor([s[k] for s in samples]) for k in (0, 1))
        logits = model(inputs).logits.double()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def check_text(milepost, model, tokens, family, data_dir):
    prompt = tokens[:5]
    with torch.no_grad():
        theirs = model.generate(prompt[None], do_sample=False, max_new_tokens=T - 5,
                                min_new_tokens=T - 5, pad_token_id=0)[0].tolist()
    ids = ",".join(map(str, prompt.tolist()))
    ours = run(milepost, "generate", "--checkpoint", "1", "--prompt-ids", ids, "--temperature", "0",
               "--tokens", T - 5, *data_dir)
    same = [int(x) for x in ours.split()] == theirs
    check(same, f"{family}: text {ours}, transformers' {theirs}")


def check_family(bin_dir, folder, family):
    config, model = FAMILIES[family]
    torch.manual_seed(1)
    original = auto_class(config).from_config(config).float().eval()
    for parameter in original.parameters():  # biases and norms that say something
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    saved = folder / "saved"
    original.save_pretrained(saved, max_shard_size="50KB")
    check((saved / "model.safetensors.index.json").exists(), "the saved model has shards")
    write_tokens(folder / "train.npy", 40 * T + 1, 1)
    tokens = write_tokens(folder / "validation.npy", SAMPLES * T + 1, 2)
    spec = folder / "spec.yaml"
    spec.write_text(spec_text(model, "saved"))

    data_dir = ["--data-dir", folder / "data"]
    milepost = bin_dir / "milepost"
    run(milepost, "run", spec, *data_dir)
    described = json.loads(run(milepost, "checkpoint", "describe", "1", "-o", "json", *data_dir))
    ours, theirs = described["state"]["validation_loss"], reference_loss(original, tokens)
    check(abs(ours - theirs) <= 1e-5 * theirs, f"{family}: loss {ours}, transformers' {theirs}")

    exported = folder / "exported"
    run(milepost, "checkpoint", "export", "1", "--format", "safetensors", "--out", exported,
        *data_dir)
    again = load(exported)
    wanted = EXPORTED_AS.get(family, type(original))
    check(type(again) is wanted, f"{family}: loaded as {type(again).__name__}")
    before, after = converted(weights(original)), weights(again)
    check(before.keys() == after.keys(), f"{family}: {before.keys() ^ after.keys()}")
    for name, value in before.items():
        check(torch.equal(value, after[name]), f"{family}: {name} is not the same bit for bit")

    ids = tokens[:T]
    with torch.no_grad():
        expected = again(ids[None]).logits[0].double()
        error = (original(ids[None]).logits[0].double() - expected).abs().max().item()
    check(error <= 1e-4, f"{family}: logits of the export differ by {error}")
    text = run(bin_dir / "interop_logits", spec, exported, ",".join(map(str, ids.tolist())))
    found = torch.tensor([[float(x) for x in line.split()] for line in text.splitlines()],
                         dtype=torch.float64)
    error = (found - expected).abs().max().item()
    check(error <= 1e-4, f"{family}: logits differ by {error}")

    if family not in MASKED:
        check_text(milepost, again, tokens, family, data_dir)
    rounded = folder / "rounded"
    run(milepost, "checkpoint", "export", "1", "--dtype", "bf16", "--out", rounded, *data_dir)
    for name, value in weights(load(rounded)).items():
        check(value.dtype == torch.bfloat16, f"{family}: {name} is {value.dtype}")
        check(torch.equal(value, before[name].bfloat16()), f"{family}: {name} is not rounded")
    print(f"ok    {family}: loss {ours:.6f} (transformers {theirs:.6f}), "
          f"{len(before)} tensors bit for bit, logits within {error:.1e}")


RESNET = """
model:
  resnet:
    {stages: [{layers: 1}, {layers: 2}], bottleneck: true, classes: 5, image_size: 32, width: 8}
data: {train: train.npy, validation: validation.npy}
train:
  steps: 1
  precision: fp32
  init_from: saved
  batch: {global: 8, micro: 4}
  optimizer: {lr: 1e-50, weight_decay: 0}
  validation: {samples: 12}
resources: {ranks: 2, threads_per_rank: 1}
"""


def write_images(folder, name, count, seed):
    random = numpy.random.default_rng(seed)
    images = random.integers(0, 256, (count, 32, 32, 3), dtype=numpy.uint8)
    labels = random.integers(0, 5, count, dtype=numpy.int32)
    numpy.save(folder / f"{name}.npy", images)
    numpy.save(folder / f"{name}.labels.npy", labels)
    return images, labels


def check_resnet(bin_dir, folder):
    """The step moves running statistics; transformers must then see ours in the export."""
    torch.manual_seed(1)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[32, 64], depths=[1, 2],
                                       layer_type="bottleneck", num_labels=5)
    original = transformers.AutoModelForImageClassification.from_config(config).float().eval()
    original.save_pretrained(folder / "saved")
    write_images(folder, "train", 24, 1)
    images, labels = write_images(folder, "validation", 12, 2)
    (folder / "spec.yaml").write_text(RESNET)
    data_dir = ["--data-dir", folder / "data"]
    milepost, exported = bin_dir / "milepost", folder / "exported"
    run(milepost, "run", folder / "spec.yaml", *data_dir)
    described = json.loads(run(milepost, "checkpoint", "describe", "1", "-o", "json", *data_dir))
    run(milepost, "checkpoint", "export", "1", "--out", exported, *data_dir)
    again = transformers.AutoModelForImageClassification.from_pretrained(exported).eval()
    before, after = weights(original), weights(again)
    check(before.keys() == after.keys(), f"resnet: {before.keys() ^ after.keys()}")
    for name, value in before.items():
        check(torch.equal(value, after[name]), f"resnet: {name} is not the same bit for bit")
    counted = [v for n, v in again.named_buffers() if n.endswith("num_batches_tracked")]
    check(counted and all(v.item() == 1 for v in counted), "resnet: batches are not counted")
    mean, deviation = (torch.tensor(x) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    pixels = ((torch.tensor(images) / 255 - mean) / deviation).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = again(pixels).logits.double()
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(labels).long()).item()
    ours = described["state"]["validation_loss"]
    check(abs(ours - theirs) <= 1e-5 * theirs, f"resnet: loss {ours}, transformers' {theirs}")
    print(f"ok    resnet: loss {ours:.6f} (transformers {theirs:.6f}), {len(before)} tensors"
          " bit for bit")


VIT = """
model:
  hugging_face: saved
  vit: {{pixel_mean: {{red: 0.4, green: 0.5, blue: 0.6}}}}{lora}
data: {{train: train.npy, validation: validation.npy}}
train:
  steps: {steps}
  precision: fp32
  batch: {{global: 8, micro: 4}}
  optimizer: {{lr: {lr}, weight_decay: 0}}
  validation: {{samples: 12}}
resources: {{ranks: 2, threads_per_rank: 1}}
"""


def run_vit(bin_dir, folder, name, **options):
    """Our validation loss and accuracy, and the arguments for its checkpoint."""
    (folder / f"{name}.yaml").write_text(VIT.format(**options))
    data_dir = ["--data-dir", folder / f"data-{name}"]
    run(bin_dir / "milepost", "run", folder / f"{name}.yaml", *data_dir)
    described = json.loads(run(bin_dir / "milepost", "checkpoint", "describe", "1", "-o", "json",
                               *data_dir))
    return described["state"]["validation_loss"], data_dir


def vit_logits(model, images):
    mean, deviation = torch.tensor([0.4, 0.5, 0.6]), 0.5
    pixels = ((torch.tensor(images) / 255 - mean) / deviation).permute(0, 3, 1, 2)
    with torch.no_grad():
        return model(pixels).logits.double()


def check_vit(bin_dir, folder):
    """The whole model there and back; then adapters, which PEFT loads, and the two as one."""
    import peft
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        num_hidden_layers=2, hidden_size=48, num_attention_heads=3, intermediate_size=96,
        image_size=32, patch_size=8, num_labels=5, initializer_range=0.2, layer_norm_eps=1e-6)
    auto = transformers.AutoModelForImageClassification
    original = auto.from_config(config).float().eval()
    for parameter in original.parameters():  # biases and norms that say something
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    original.save_pretrained(folder / "saved")
    write_images(folder, "train", 24, 1)
    images, labels = write_images(folder, "validation", 12, 2)

    def compare(what, model, ours):
        theirs = torch.nn.functional.cross_entropy(vit_logits(model, images),
                                                   torch.tensor(labels).long()).item()
        check(abs(ours - theirs) <= 1e-5 * theirs, f"{what}: loss {ours}, transformers' {theirs}")
        return theirs

    ours, data_dir = run_vit(bin_dir, folder, "vit", lora="", steps=1, lr=1e-50)
    milepost, export = bin_dir / "milepost", ("checkpoint", "export", "1", "--out")
    run(milepost, *export, folder / "exported", *data_dir)
    again = auto.from_pretrained(folder / "exported").eval()
    check(type(again) is type(original), f"vit: loaded as {type(again).__name__}")
    before = safetensors.torch.load_file(folder / "saved" / "model.safetensors")
    after = safetensors.torch.load_file(folder / "exported" / "model.safetensors")
    check(before.keys() == after.keys(), f"vit: {before.keys() ^ after.keys()}")
    for name, value in before.items():
        check(torch.equal(value, after[name]), f"vit: {name} is not the same bit for bit")
    error = (vit_logits(again, images) - vit_logits(original, images)).abs().max().item()
    check(error == 0, f"vit: logits of the export differ by {error}")
    theirs = compare("vit", original, ours)

    lora = "\n  lora: {rank: 4, alpha: 8, also_train: [classifier.*]}"
    tuned, data_dir = run_vit(bin_dir, folder, "lora", lora=lora, steps=10, lr=0.01)
    check(abs(tuned - ours) > 1e-3, "vit: adapters learn nothing")
    run(milepost, *export, folder / "adapters", *data_dir)
    adapted = peft.PeftModel.from_pretrained(auto.from_pretrained(folder / "saved"),
                                             folder / "adapters").eval()
    compare("vit with PEFT", adapted, tuned)
    run(milepost, *export, folder / "merged", "--merge", *data_dir)
    compare("vit merged", auto.from_pretrained(folder / "merged").eval(), tuned)
    print(f"ok    vit: loss {ours:.6f} (transformers {theirs:.6f}), {len(before)} tensors"
          f" bit for bit; with adapters {tuned:.6f}")


HEADS = """
model:
  gpt2: {layers: 2, width: 64, heads: 4, context: 32, vocabulary: 128}
  head_weight: 0.5
  heads: [{name: tag, classes: 5, weight: 2}, {name: kind, classes: 7}]
data:
  train: train.npy
  validation: validation.npy
  labels:
    - {head: tag, train: train.tag.npy, validation: validation.tag.npy}
    - {head: kind, train: train.kind.npy, validation: validation.kind.npy}
train:
  steps: 1
  precision: fp32
  init_from: %s
  batch: {global: 4, micro: 2}
  optimizer: {lr: 1e-50, weight_decay: 0}
  validation: {samples: 12}
resources: {ranks: 2, threads_per_rank: 1}
"""


def write_labels(folder, name, count, seed):
    generator = numpy.random.default_rng(seed)
    labels = {head: generator.integers(-1, classes, count).astype(numpy.int8)
              for head, classes in (("tag", 5), ("kind", 7))}
    for head, values in labels.items():
        numpy.save(folder / f"{name}.{head}.npy", values)
    return {head: torch.from_numpy(values.astype(numpy.int64)) for head, values in labels.items()}


def heads_loss(model, exported, tokens, labels):
    """Of the validation samples, with the heads' weights of the export."""
    tensors = safetensors.torch.load_file(exported / "model.safetensors")
    loss = 0.5 * reference_loss(model, tokens)
    inputs = torch.stack([tokens[i * T:i * T + T] for i in range(SAMPLES)])
    with torch.no_grad():
        features = model.transformer(inputs).last_hidden_state.flatten(0, 1).double()
    for head, weight in (("tag", 2), ("kind", 1)):
        layer = [tensors[f"heads.{head}.{part}"].double() for part in ("weight", "bias")]
        wanted = labels[head][:SAMPLES * T]
        logits = torch.nn.functional.linear(features, *layer)
        loss += weight * torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-1).item()
    return loss, tensors


def check_heads(bin_dir, folder):
    torch.manual_seed(1)
    original = auto_class(FAMILIES["gpt2"][0]).from_config(FAMILIES["gpt2"][0]).float().eval()
    original.save_pretrained(folder / "saved")
    write_tokens(folder / "train.npy", 40 * T + 1, 1)
    write_labels(folder, "train", 40 * T + 1, 3)
    tokens = write_tokens(folder / "validation.npy", SAMPLES * T + 1, 2)
    labels = write_labels(folder, "validation", SAMPLES * T + 1, 4)
    milepost, seen = bin_dir / "milepost", []
    for source, out in (("saved", "exported"), ("exported", "again")):
        (folder / "spec.yaml").write_text(HEADS % source)
        data_dir = ["--data-dir", folder / f"data-{out}"]
        run(milepost, "run", folder / "spec.yaml", *data_dir)
        described = json.loads(run(milepost, "checkpoint", "describe", "1", "-o", "json",
                                   *data_dir))
        run(milepost, "checkpoint", "export", "1", "--out", folder / out, *data_dir)
        run(milepost, "generate", "--checkpoint", "1", "--prompt-ids", "1,2,3", "--tokens", "4",
            *data_dir)
        loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder / out, output_loading_info=True)
        heads = {f"heads.{head}.{part}" for head in labels for part in ("weight", "bias")}
        check(set(info["unexpected_keys"]) == heads and not info["missing_keys"], f"heads: {info}")
        before, after = weights(original), weights(loaded)
        check(before.keys() == after.keys(), f"heads: {before.keys() ^ after.keys()}")
        for name, value in before.items():
            check(torch.equal(value, after[name]), f"heads: {name} is not the same bit for bit")
        theirs, tensors = heads_loss(loaded.eval(), folder / out, tokens, labels)
        ours = described["state"]["validation_loss"]
        check(abs(ours - theirs) <= 1e-5 * theirs, f"heads: loss {ours}, torch's {theirs}")
        seen.append({name: tensors[name] for name in heads})
    check(seen[0]["heads.tag.weight"].std() > 0.01, "heads: not initialised")
    for name, value in seen[0].items():
        check(torch.equal(value, seen[1][name]), f"heads: {name} has changed on its way")
    print(f"ok    heads: loss {ours:.6f} (torch {theirs:.6f}), there and back bit for bit")


def main():
    bin_dir = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/dev/bin").resolve()
    special = {"resnet": check_resnet, "vit": check_vit, "heads": check_heads}
    for family in sys.argv[2:] or [*FAMILIES, *special]:
        with tempfile.TemporaryDirectory() as folder:
            if family in special:
                special[family](bin_dir, pathlib.Path(folder))
            else:
                check_family(bin_dir, pathlib.Path(folder), family)


if __name__ == "__main__":
    main()
