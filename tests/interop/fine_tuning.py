#!/usr/bin/env python3
"""Fine-tuning a Hugging Face folder, against TRL, with the real programs.

    scripts/test --interop                             builds, makes the environment, runs this too
    tests/interop/fine_tuning.py build/dev/bin         with python's trl, transformers and torch

A tiny Llama and a tiny Qwen3 with a tokenizer of their own are tuned for 20 steps in fp32 by TRL's
SFTTrainer, each step on all samples, and by Milepost, on the same lines packed by
`milepost dataset tokenize`. Lines are prompts and completions, as texts and as messages. The losses
agree within 1e-4. A text that is encoded in pieces has the tokens of the whole. Then the export
loads with its tokenizer and chat template, and `milepost generate` writes greedily what
transformers' `generate` writes.

Then the same with LoRA by PEFT, and with preferences by TRL's DPOTrainer and LoRA, from the same
initial adapters; once with DoRA. PEFT loads the exported adapters, and the merged export has the
weights of its `merge_and_unload`. (With DoRA there is no weight decay: transformers' trainer decays
magnitudes too.)
Passed with trl 1.16.0, peft 0.21.2, transformers 5.24.0, torch 2.15.0.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import datasets
import numpy
import peft
import safetensors.torch
import torch
import transformers
import trl

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_tokenizer  # noqa: E402
from tiny_tokenizer import TEMPLATE  # noqa: E402

transformers.utils.logging.disable_progress_bar()
STEPS, LENGTH, LIMIT, DECAY = 20, 256, 1e-4, 0.1
WORDS = "alpha beta gamma delta the model train step loss spec field".split()
SHAPE = dict(vocab_size=512, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=LENGTH, eos_token_id=2, pad_token_id=0)
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        intermediate_size=128, num_hidden_layers=2, tie_word_embeddings=True, **SHAPE)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        intermediate_size=96, num_hidden_layers=3, head_dim=32, **SHAPE)),
}
SPEC = """model: {{hugging_face: {model}{lora}}}
data:
  train: {tokens}.npy
  loss_mask: {{train: {tokens}.mask.npy}}
  document_separator: 0
  sequence_length: {length}
train:
  steps: {steps}
  precision: fp32{dpo}
  batch: {{global: {samples}, micro: 1}}
  optimizer: {{lr: 1e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: {decay}}}
  schedule: {{type: constant, warmup_steps: 0}}
resources: {{ranks: 1}}
"""


def make_folder(folder, make_model):
    """A model, a byte-level tokenizer and a chat template."""
    tiny_tokenizer.save(folder, " ".join(WORDS) + __doc__)
    torch.manual_seed(0)
    make_model().save_pretrained(folder)


def make_lines(path, messages):
    """Prompts and completions; the prompts are chats of one to three turns, or texts."""
    draw = random.Random(1)

    def words():
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))

    with open(path, "w", encoding="utf-8") as file:
        for number in range(40):
            turns = [words() for _ in range(2 * (number % 3) + 2)]
            roles = ["user", "assistant"] * (number % 3 + 1)
            chat = [{"role": r, "content": t} for r, t in zip(roles, turns)]
            line = {"prompt": chat[:-1], "completion": chat[-1:]} if messages else {
                "prompt": f"Question: {turns[-2]}\nAnswer:", "completion": " " + turns[-1]}
            file.write(json.dumps(line) + "\n")


def make_pairs(path):
    """Preferences; prompts are chats of one to three turns. Each pair fits a sample."""
    draw = random.Random(2)

    def words():
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))

    with open(path, "w", encoding="utf-8") as file:
        for number in range(24):
            roles = ["user", "assistant"] * (number % 3) + ["user"]
            line = {"prompt": [{"role": role, "content": words()} for role in roles]}
            for answer in ("chosen", "rejected"):
                line[answer] = [{"role": "assistant", "content": words()}]
            file.write(json.dumps(line) + "\n")


def our_name(name):
    """Of a parameter under PEFT."""
    for part in ("base_model.model.", "base_layer.", "default."):
        name = name.replace(part, "")
    return name


def save_with_adapters(network, folder, out):
    """The folder, whose weights are those of the network, adapters among them."""
    shutil.copytree(folder, out)
    safetensors.torch.save_file(
        {our_name(name): weight.detach().clone().contiguous()
         for name, weight in network.named_parameters()}, out / "model.safetensors")


def losses_of_trl(folder, lines, work, lora=None, dpo=False, start=None, decay=DECAY):
    losses = []

    class Log(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **unused):
            if "loss" in logs:
                losses.append(logs["loss"])

    data = datasets.load_dataset("json", data_files=str(lines), split="train")
    config = (trl.DPOConfig if dpo else trl.SFTConfig)(
        str(work / "trl"), max_steps=STEPS, per_device_train_batch_size=len(data),
        learning_rate=1e-3, lr_scheduler_type="constant", adam_beta2=0.95, weight_decay=decay,
        max_grad_norm=1.0, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        max_length=LENGTH, save_strategy="no", disable_tqdm=True, gradient_checkpointing=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    trainer = (trl.DPOTrainer if dpo else trl.SFTTrainer)(
        model=model, args=config, train_dataset=data, processing_class=tokenizer,
        callbacks=[Log()], peft_config=lora)
    if lora is not None:
        save_with_adapters(trainer.model, folder, start)
    trainer.train()
    return losses


def run(*command):
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def losses_here(milepost, folder, lines, work, lora="", dpo="", decay=DECAY):
    tokens = work / f"{folder.name}-{lines.stem}"
    run(milepost, "dataset", "tokenize", "--input", lines, "--tokenizer", folder,
        "--sequence-length", LENGTH, "--separator", "<|endoftext|>", "--output", f"{tokens}.npy")
    samples = len(numpy.load(f"{tokens}.npy")) // LENGTH
    spec = tokens.with_suffix(".yaml")
    spec.write_text(SPEC.format(model=folder, tokens=tokens, length=LENGTH, steps=STEPS,
                                samples=samples, lora=lora, dpo=dpo, decay=decay))
    data = tokens.with_suffix(".data")
    run(milepost, "run", spec, "--data-dir", data)
    curves = json.loads(run(milepost, "job", "curves", "1", "--data-dir", data, "-o", "json"))
    loss = next(one for one in curves["curves"] if one["name"] == "train_loss")
    return data, dict(zip(loss["steps"], loss["means"]))


def check_export(milepost, data, work):
    out = work / f"{data.stem}-tuned"
    run(milepost, "checkpoint", "export", "1", "--data-dir", data, "--out", out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert tokenizer.chat_template == TEMPLATE and model.config.eos_token_id == 2
    ids = tokenizer("the model", return_tensors="pt")["input_ids"]
    text = model.generate(ids, max_new_tokens=20, do_sample=False)[0]
    theirs = tokenizer.decode(text, skip_special_tokens=True)
    ours = run(milepost, "generate", "--data-dir", data, "--checkpoint", "1", "--prompt",
               "the model", "--tokens", "20", "--temperature", "0")
    assert ours == theirs + "\n", (ours, theirs)


def check_adapters(milepost, start, data, work):
    """What PEFT makes of the exported adapters, and of them and their model."""
    adapters, merged = work / f"{data.stem}-adapters", work / f"{data.stem}-merged"
    run(milepost, "checkpoint", "export", "1", "--data-dir", data, "--out", adapters)
    run(milepost, "checkpoint", "export", "1", "--data-dir", data, "--out", merged, "--merge")
    base = transformers.AutoModelForCausalLM.from_pretrained(start)
    model = peft.PeftModel.from_pretrained(base, adapters)
    tokenizer = transformers.AutoTokenizer.from_pretrained(adapters)
    ids = tokenizer("the model", return_tensors="pt")["input_ids"]
    text = model.generate(input_ids=ids, max_new_tokens=20, do_sample=False)[0]
    theirs = tokenizer.decode(text, skip_special_tokens=True)
    ours = run(milepost, "generate", "--data-dir", data, "--checkpoint", "1", "--prompt",
               "the model", "--tokens", "20", "--temperature", "0")
    assert ours == theirs + "\n", (ours, theirs)
    whole = model.merge_and_unload().state_dict()
    exported = transformers.AutoModelForCausalLM.from_pretrained(merged).state_dict()
    assert whole.keys() == exported.keys()
    most = max((whole[name] - exported[name]).abs().max().item() for name in whole)
    assert most < 1e-6, most
    return most


def check_text(milepost, folder, work):
    """A long text, encoded in pieces, has the tokens that it has as a whole."""
    text = (__doc__ + "\n\n   a\n\t\tb\r\n\r\n") * 500 + "\n" * 100000 + "end"
    (work / "text.txt").write_bytes(text.encode())
    run(milepost, "dataset", "tokenize", "--input", work / "text.txt", "--tokenizer", folder,
        "--output", work / "text.npy")
    whole = transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)
    ours = numpy.load(work / "text.npy").tolist()
    assert ours == whole["input_ids"], "a text in pieces has other tokens"
    print(f"ok   text: {len(ours)} tokens, as if in one piece", flush=True)


def compare(what, theirs, ours):
    """0: they agree."""
    most = max(abs(loss - theirs[step - 1]) for step, loss in ours.items())
    good = most < LIMIT and max(ours) == STEPS
    print(f"{'ok  ' if good else 'FAIL'} {what}: {len(ours)} losses to step {max(ours)}, at most "
          f"{most:.1e} from TRL's", flush=True)
    return not good


def check_lora(milepost, family, work):
    """Adapters of every layer, and of some, tuned on answers and on preferences."""
    wrong = 0
    for form, targets, more in (("messages", "all-linear", ""), ("pairs", "all-linear", ""),
                                ("pairs", ["q_proj", "v_proj"], ", rank_stabilized: true"),
                                ("messages", ["q_proj", "v_proj"], ", dora: true"),
                                ("messages", "all-linear", ", dora: true")):
        some, dora, dpo = targets != "all-linear", "dora" in more, form == "pairs"
        kind, decay = ("DoRA", 0.0) if dora else ("LoRA", DECAY)
        config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets,
                                 use_rslora="rank_stabilized" in more, use_dora=dora,
                                 lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
        named = (", targets: [q_proj, v_proj]" if some else "") + more
        start = work / f"{family}-{kind}-{form}-{some}"
        theirs = losses_of_trl(work / family, work / f"{form}.jsonl", work, config, dpo, start,
                               decay)
        data, ours = losses_here(
            milepost, start, work / f"{form}.jsonl", work,
            f", lora: {{rank: 8, alpha: 16{named}}}", "\n  dpo: {beta: 0.1}" if dpo else "", decay)
        wrong += compare(f"{family}, {kind}, {form}, {targets}", theirs, ours)
        most = check_adapters(milepost, start, data, work)
        print(f"ok   {family}, {kind}, {form}: PEFT's merged weights, to {most:.0e}", flush=True)
    return wrong


def check_preferences(milepost, family, work):
    """Of the whole model, against a copy of what it began with."""
    lines = work / "pairs.jsonl"
    theirs = losses_of_trl(work / family, lines, work, dpo=True)
    _, ours = losses_here(milepost, work / family, lines, work, dpo="\n  dpo: {beta: 0.1}")
    return compare(f"{family}, whole, pairs", theirs, ours)


def check_tables(milepost, folder, work):
    """Parquet files and folders of `datasets` have the tokens of their lines; damaged ones end."""
    lines = work / "messages.jsonl"
    data = datasets.load_dataset("json", data_files=str(lines), split="train")
    data.to_parquet(work / "messages.parquet")
    data.save_to_disk(work / "messages.set")
    made = []
    for source in (lines, work / "messages.parquet", work / "messages.set"):
        out = work / "table.npy"
        run(milepost, "dataset", "tokenize", "--input", source, "--tokenizer", folder,
            "--sequence-length", LENGTH, "--output", out)
        made.append((numpy.load(out).tolist(), numpy.load(work / "table.mask.npy").tolist()))
    assert made[0] == made[1] == made[2], "a table has other tokens than its lines"
    whole = (work / "messages.parquet").read_bytes()
    draw = random.Random(3)
    for _ in range(30):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (work / "damaged.parquet").write_bytes(bytes(damaged[:draw.randint(1, len(damaged))]))
        done = subprocess.run(
            [milepost, "dataset", "tokenize", "--input", work / "damaged.parquet", "--tokenizer",
             folder, "--output", work / "none.npy"], capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 2), done
        assert "Traceback" not in done.stderr, done.stderr
    print("ok   tables: Parquet and datasets as lines, 30 damaged files", flush=True)


def main():
    milepost = pathlib.Path(sys.argv[1]).resolve() / "milepost"
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for form in ("messages", "texts"):
            make_lines(work / f"{form}.jsonl", form == "messages")
        make_pairs(work / "pairs.jsonl")
        for family, make_model in MODELS.items():
            make_folder(work / family, make_model)
            check_text(milepost, work / family, work)
            check_tables(milepost, work / family, work)
            for form in ("messages", "texts"):
                theirs = losses_of_trl(work / family, work / f"{form}.jsonl", work)
                data, ours = losses_here(milepost, work / family, work / f"{form}.jsonl", work)
                wrong += compare(f"{family}, {form}", theirs, ours)
                check_export(milepost, data, work)
            wrong += check_preferences(milepost, family, work)
            wrong += check_lora(milepost, family, work)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
