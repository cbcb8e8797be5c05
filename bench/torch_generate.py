"""The peer of bench/generate: greedy text from the same model with random weights by transformers.

`generate` with its key-value cache, as it comes (scaled dot product attention, eager). The first
token's time is the prompt's; the others' follow from when each comes.
"""

import argparse
import json
import resource
import statistics
import time

import torch
import transformers


class Clock:
    """A streamer that notes when tokens come; the first call brings the prompt."""

    def __init__(self):
        self.times = []

    def put(self, _):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def make(args):
    ids = dict(bos_token_id=None, eos_token_id=None)
    if args.family == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=args.layers, hidden_size=args.width, num_attention_heads=args.heads,
            num_key_value_heads=args.kv_heads, intermediate_size=args.hidden,
            max_position_embeddings=args.context, vocab_size=args.vocabulary, **ids)
    else:
        config = transformers.GPT2Config(
            n_layer=args.layers, n_embd=args.width, n_head=args.heads, n_positions=args.context,
            vocab_size=args.vocabulary, **ids)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    model = transformers.AutoModelForCausalLM.from_config(config).to(types[args.precision]).eval()
    return model


def write(model, args):
    """Seconds of the prompt, and of each further token."""
    torch.manual_seed(1)
    prompt = torch.randint(0, args.vocabulary, (1, args.prompt))
    clock = Clock()
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                       max_new_tokens=args.tokens, min_new_tokens=args.tokens, pad_token_id=0,
                       streamer=clock)
    tokens = clock.times[1:]
    return tokens[0] - start, [b - a for a, b in zip(tokens, tokens[1:])]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", default="gpt2")
    for name, default in dict(layers=12, width=768, heads=12, kv_heads=4, hidden=2048,
                              vocabulary=50257, context=1024, prompt=64, tokens=128, texts=3,
                              threads=2).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    parser.add_argument("--precision", default="fp32")
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    model = make(args)
    write(model, args)  # warm-up
    prompts, tokens = [], []
    for _ in range(args.texts):
        first, others = write(model, args)
        prompts.append(first)
        tokens += others
    print(json.dumps({
        "prompt_seconds": statistics.median(prompts), "token_seconds": statistics.median(tokens),
        "tokens_per_second": 1 / statistics.median(tokens),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
