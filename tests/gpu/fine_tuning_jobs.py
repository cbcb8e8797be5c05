#!/usr/bin/env python3
"""Fine-tuning by one command, on a GPU, as users do it.

    python3 tests/gpu/fine_tuning_jobs.py BIN_FOLDER     on the first GPU; without one, on the CPU

A tiny Llama with a tokenizer of its own, as transformers saves them, is tuned by `milepost run
--model` as a whole. What that made is tuned on other answers: by adapters, by adapters over a base
in 4 bits, and by adapters on preferences. Each must learn, and go on when it is called again with
more steps. `milepost generate` must answer as the chats did. PEFT must load the exported adapters
and write the same answer. Needs torch, transformers, tokenizers and peft in the Python that runs
this. Prints a line each, and exits with 1 where something misses.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import peft
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_tokenizer  # noqa: E402

LENGTH, STEPS, EVERY = 128, 150, 50
ANSWERS = {"alpha": "one two three", "beta": "four five six", "gamma": "seven eight nine"}
# Name: model, data, what the flags add, and the answer to "beta" then.
WAYS = {
    "whole": ("model", "chats", [], ANSWERS["beta"]),
    "lora": ("tuned", "others", ["--lora"], ANSWERS["gamma"]),
    "nf4": (
        "tuned",
        "others",
        ["--lora", "--set", "model.lora.quantize_base=nf4"],
        ANSWERS["gamma"],
    ),
    "pairs": ("tuned", "pairs", ["--lora"], None),
}


def make_model(folder):
    tiny_tokenizer.save(folder, " ".join([*ANSWERS, *ANSWERS.values()]))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        eos_token_id=2,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def make_data(folder):
    draw = random.Random(1)
    names = sorted(ANSWERS)
    chats, others, pairs = [], [], []
    for _ in range(600):
        asked = draw.randrange(len(names))
        question = [{"role": "user", "content": names[asked]}]
        first, second = (
            [{"role": "assistant", "content": ANSWERS[names[(asked + i) % len(names)]]}]
            for i in range(2)
        )
        chats.append({"messages": question + first})
        others.append({"messages": question + second})
        pairs.append({"prompt": question, "chosen": second, "rejected": first})
    for name, lines in (("chats", chats), ("others", others), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def milepost(args, *words):
    return subprocess.run(
        [str(args.bin / "milepost"), *map(str, words)],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=180,
    )


def tune(args, folder, name, steps):
    """What `milepost run --model` says of its end, and the losses on the way."""
    model, data, more, _ = WAYS[name]
    settings = [f"train.steps={steps}", "train.batch.global=8", "train.optimizer.lr=1e-3"]
    settings += [f"train.validation.every={EVERY}", f"checkpoint.every={EVERY}"]
    done = milepost(
        args,
        *("run", "--model", folder / model, "--data", folder / f"{data}.jsonl", *more),
        *("--sequence-length", LENGTH, "--out", folder / name, "-o", "json"),
        *(word for setting in settings for word in ("--set", setting)),
        *data_folder(folder, name),
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    finished = next((event for event in events if event["event"] == "finished"), {})
    losses = [event["train_loss"] for event in events if event["event"] == "progress"]
    if done.returncode != 0:
        print(done.stderr[-3000:], flush=True)
    return finished, losses


def data_folder(folder, name):
    return ["--data-dir", folder / f"{name}-data"]


def answer_here(args, folder, name, device):
    done = milepost(
        args,
        *("generate", "--chat", "--prompt", "beta", "--tokens", 20, "--temperature", 0),
        *("--job", "jobs/1", "--device", device, *data_folder(folder, name)),
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr


def export(args, folder, name, out):
    """False: it was said why not."""
    job = milepost(args, "checkpoint", "list", "-o", "name", *data_folder(folder, name))
    newest = job.stdout.split("\n")[0].removeprefix("checkpoints/")
    done = milepost(args, "checkpoint", "export", newest, "--out", out, *data_folder(folder, name))
    if done.returncode != 0:
        print(job.stdout, done.stderr, flush=True)
    return done.returncode == 0


def answer_of_peft(args, folder, name):
    out = folder / f"{name}-adapters"
    if not export(args, folder, name, out):
        return "nothing"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "tuned")
    model = peft.PeftModel.from_pretrained(model, out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "beta"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    text = model.generate(input_ids=ids, max_new_tokens=20, do_sample=False)[0]
    return tokenizer.decode(text[len(ids[0]) :], skip_special_tokens=True).strip()


def check(args, folder, name):
    first, losses = tune(args, folder, name, STEPS)
    more, later = tune(args, folder, name, STEPS + EVERY)
    went_on = more.get("state") == "SUCCEEDED" and more.get("step") == STEPS + EVERY
    # Not from the beginning.
    went_on = went_on and bool(losses and later) and later[0] < losses[0] / 2
    learned = first.get("state") == "SUCCEEDED" and first.get("train_loss", 99) < 0.2
    wanted, texts = WAYS[name][-1], {}
    if wanted:
        texts["generate"] = answer_here(args, folder, name, args.device)
    if name == "lora":
        texts["PEFT"] = answer_of_peft(args, folder, name)
    if name == "whole" and not export(args, folder, name, folder / "tuned"):
        learned = False
    ok = learned and went_on and all(text == wanted for text in texts.values())
    print(
        f"{'ok  ' if ok else 'FAIL'} {name}: {first.get('state')}, loss {losses[:1]} to"
        f" {first.get('train_loss')}, then {later[:1]} to {more.get('train_loss')} at step"
        f" {more.get('step')}, {first.get('tokens_per_second', 0):.0f} tokens/s; {texts}",
        flush=True,
    )
    return ok


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bin", type=pathlib.Path)
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="milepost-") as temporary:
        folder = pathlib.Path(temporary)
        make_model(folder / "model")
        make_data(folder)
        done = [check(args, folder, name) for name in WAYS]
        spec = (folder / "lora" / "spec.yaml").read_text()
        print(spec, flush=True)
        if args.device == "cuda":
            done.append("device: cuda" in spec)
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
