"""The peer of bench/step and, with --device cuda, of bench/gpu_step: the same step of a GPT-2, a
Llama, a BERT or a ResNet in PyTorch.

fp32, or bf16 by autocast (fp32 master parameters, which is what `precision: bf16` here means too);
eager, torch.compile, or each block compiled (all have the same code); fused AdamW where this
PyTorch has it for the CPU; gradient clipping to 1.0.
BERT's logits are made at all positions, as transformers' BertForMaskedLM makes them; --gather makes
those of the masked positions alone (eager only: their number varies). --pure-bf16: parameters,
gradients and optimizer states are bf16. --lora N: PEFT's adapters of rank N, in fp32, beside every
linear layer of the blocks train alone; the rest is bf16, and with --nf4 those layers' weights are
bitsandbytes' in 4 bits.
"""

import argparse
import json
import math
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        heads = lambda t: t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if "c_proj" in name else 1))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, True) + 1e-5)).to(x.dtype) * self.weight


def rotate(x, cosines, sines):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm_1, self.norm_2 = RmsNorm(width), RmsNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cosines, sines):
        batch, length, width = x.shape
        counts = [self.heads, self.kv_heads, self.kv_heads]
        packed = self.qkv(self.norm_1(x)).split([n * self.dim for n in counts], dim=2)
        q, k, v = (t.view(batch, length, n, self.dim).transpose(1, 2)
                   for t, n in zip(packed, counts))
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        shared = self.heads // self.kv_heads
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers, width, heads, kv_heads, hidden, vocabulary, context):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads, hidden)
                                    for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        dim = width // heads
        frequencies = 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
        angles = torch.arange(context).double()[:, None] * frequencies
        self.register_buffer("cosines", angles.cos().float())
        self.register_buffer("sines", angles.sin().float())
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if "c_proj" in name else 1))

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Bottleneck(nn.Module):
    def __init__(self, inside, inner, stride):
        super().__init__()
        def convolve(i, o, kernel, stride):
            return nn.Sequential(
                nn.Conv2d(i, o, kernel, stride=stride, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(o))
        self.first, self.second = convolve(inside, inner, 1, 1), convolve(inner, inner, 3, stride)
        self.third = convolve(inner, 4 * inner, 1, 1)
        same = inside == 4 * inner and stride == 1
        self.shortcut = nn.Identity() if same else convolve(inside, 4 * inner, 1, stride)

    def forward(self, x):
        y = F.relu(self.second(F.relu(self.first(x))))
        return F.relu(self.third(y) + self.shortcut(x))


class ResNet(nn.Module):
    """Of images as bytes, [N, H, W, 3]: channels last throughout."""
    LAYERS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

    def __init__(self, depth):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        layers, inside = [], 64
        for stage, count in enumerate(self.LAYERS[depth]):
            for layer in range(count):
                inner = 64 * 2**stage
                layers.append(Bottleneck(inside, inner, 2 if stage > 0 and layer == 0 else 1))
                inside = 4 * inner
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inside, 1000)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]) * 255)
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]) * 255)

    def forward(self, images, labels):
        x = ((images.float() - self.mean) / self.deviation).permute(0, 3, 1, 2)
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        logits = self.head(self.layers(x).mean((2, 3)))
        return F.cross_entropy(logits.float(), labels)


class BertBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.qkv, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        heads = lambda t: t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v))
        x = self.norm_1(x + self.c_proj(y.transpose(1, 2).reshape(batch, length, width)))
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, layers, width, heads, hidden, vocabulary, context, gather):
        super().__init__()
        self.gather = gather
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.segments = nn.Embedding(2, width)
        self.norm, self.transform_norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(BertBlock(width, heads, hidden) for _ in range(layers))
        self.transform = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.norm(x + self.segments.weight[0])
        for block in self.blocks:
            x = block(x)
        x, targets = x.flatten(0, 1), targets.flatten()
        if self.gather:
            x, targets = x[targets >= 0], targets[targets >= 0]
        x = self.transform_norm(F.gelu(self.transform(x)))
        return F.cross_entropy(F.linear(x, self.words.weight, self.bias), targets, ignore_index=-1)


def masked(tokens):
    """Inputs and targets: of 15% of the tokens, 80% become the mask, 10% random ones."""
    mask, random = int(tokens.max()), torch.randint_like(tokens, int(tokens.max()))
    chosen, fate = torch.rand(tokens.shape) < 0.15, torch.rand(tokens.shape)
    inputs = torch.where(chosen & (fate < 0.8), mask, tokens)
    inputs = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random, inputs)
    return inputs, torch.where(chosen, tokens, -1)


def make_batch(args):
    if args.family == "resnet":
        images = torch.randint(256, (args.batch, args.image, args.image, 3), dtype=torch.uint8)
        return images, torch.randint(1000, (args.batch,))
    if args.family == "bert":
        return masked(torch.randint(args.vocabulary, (args.batch, args.context)))
    tokens = torch.randint(args.vocabulary, (args.batch, args.context + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def make_model(args):
    if args.family == "resnet":
        return ResNet(args.depth).to(memory_format=torch.channels_last)
    if args.family == "bert":
        return Bert(args.layers, args.width, args.heads, args.hidden, args.vocabulary, args.context,
                    args.gather)
    if args.family == "llama":
        return Llama(args.layers, args.width, args.heads, args.kv_heads, args.hidden,
                     args.vocabulary, args.context)
    return Gpt2(args.layers, args.width, args.heads, args.vocabulary, args.context)


def add_adapters(model, args):
    """In place; what is adapted is bf16, or in 4 bits."""
    import peft

    model = model.to(torch.bfloat16)
    layers = [name for name, layer in model.named_modules()
              if isinstance(layer, nn.Linear) and name.startswith("blocks.")]
    if args.nf4:
        import bitsandbytes

        for name in layers:
            layer = model.get_submodule(name)
            packed = bitsandbytes.nn.Linear4bit(
                layer.in_features, layer.out_features, bias=layer.bias is not None,
                compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=False)
            packed.weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, requires_grad=False, quant_type="nf4",
                compress_statistics=False).to(args.device)
            model.set_submodule(name, packed)
    config = peft.LoraConfig(r=args.lora, lora_alpha=args.lora, lora_dropout=0.0,
                             target_modules=layers)
    peft.inject_adapter_in_model(config, model)
    for name, p in model.named_parameters():
        p.requires_grad = "lora_" in name
        if p.requires_grad:
            p.data = p.data.float()
    return model


def make_optimizer(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in trained if p.dim() >= 2]
    rest = [p for p in trained if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    arguments = dict(lr=6e-4, betas=(0.9, 0.95), eps=1e-8)
    try:
        return torch.optim.AdamW(groups, fused=True, **arguments), "fused"
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(groups, **arguments), "foreach"


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in [("layers", 6), ("width", 384), ("heads", 6), ("kv-heads", 2),
                          ("hidden", 1024), ("vocabulary", 256), ("context", 256), ("batch", 8),
                          ("depth", 50), ("image", 224),
                          ("threads", 2), ("steps", 8), ("warmup", 3)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--family", choices=["gpt2", "llama", "bert", "resnet"], default="gpt2")
    parser.add_argument("--gather", action="store_true")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--mode", choices=["eager", "compile", "blocks"], default="eager")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--pure-bf16", action="store_true")
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--nf4", action="store_true")
    return parser.parse_args()


def finish(args):
    """Waits for what has been enqueued."""
    if args.device == "cuda":
        torch.cuda.synchronize()


def used_bytes(args):
    """Of the whole GPU: driver, libraries and context are part of it."""
    if args.device == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"used_bytes": total - free}


def main():
    args = parse()
    begin = time.perf_counter()
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    torch.manual_seed(0)
    model = make_model(args)
    if args.pure_bf16:
        model = model.to(torch.bfloat16)
    if args.lora > 0:
        model = add_adapters(model, args)
    optimizer, kind = make_optimizer(model)
    forward = torch.compile(model) if args.mode == "compile" else model
    if args.mode == "blocks":
        # Blocks that were not compiled after all would be no peer.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        for block in model.blocks:
            block.compile()
    batch = make_batch(args)
    seconds = []
    loss, first = None, 0.0
    for step in range(args.warmup + args.steps):
        if args.family == "bert":  # how many are masked varies, as it does in training
            batch = make_batch(args)
        start = time.perf_counter()
        autocast = args.precision == "bf16" and not args.pure_bf16
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=autocast):
            loss = forward(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        finish(args)
        if step == 0:
            first = time.perf_counter() - begin
        if step >= args.warmup:
            seconds.append(time.perf_counter() - start)
    rows = args.batch * (1 if args.family == "resnet" else args.context)
    json.dump({
        "torch": torch.__version__, "mode": args.mode, "optimizer": kind,
        "tokens_per_second": rows / statistics.median(seconds),
        "step_seconds_median": statistics.median(seconds),
        "step_seconds_min": min(seconds), "step_seconds_max": max(seconds),
        "first_step_seconds": first, **used_bytes(args),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": loss.item(),
    }, sys.stdout)
    print()


if __name__ == "__main__":
    main()
