#!/usr/bin/env python3
"""lm-evaluation-harness on a served model, against the exported folder with transformers.

    scripts/test --interop                         builds, makes the environment, runs this too
    tests/interop/evaluation.py build/dev/bin      with python's lm_eval, transformers and torch

A tiny Llama is tuned for 20 steps. Then the harness asks `milepost serve` by its model
local-completions, four texts in a request, and transformers by its model hf, the same three tasks
of its three kinds: choices, of which the likeliest counts; whole texts and their perplexity; texts
that are written. The tokenizer begins texts with a token of its own. Before that, tokens' names are
looked at, of tokenizers of two kinds.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval  # noqa: E402
import lm_eval.tasks  # noqa: E402
import numpy  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "client" / "cli")]
import generate_text  # noqa: E402
import tiny_tokenizer  # noqa: E402

transformers.utils.logging.disable_progress_bar()
WORDS = "alpha beta gamma delta the model train step loss spec field caf\u00e9 \u4e2d".split()
LENGTH, LIMIT = 256, 1e-4
SPEC = """model: {{hugging_face: {folder}}}
data: {{train: {tokens}, sequence_length: 64}}
train:
  steps: 20
  precision: fp32
  batch: {{global: 4, micro: 1}}
  optimizer: {{lr: 5e-3}}
resources: {{ranks: 1}}
"""
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
{more}
"""
TASKS = {
    "choices": """output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
num_fewshot: 0
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]""",
    "perplexity": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]""",
    "writing": """output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{question}}}}"
generation_kwargs: {{until: ["the"], max_gen_toks: 24, do_sample: false, temperature: 0}}
metric_list: [{{metric: exact_match}}]""",
}


def run(*command):
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def make_tokenizer(folder):
    """It begins texts with <|im_start|>."""
    tiny_tokenizer.save(folder, " ".join(WORDS))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save_pretrained(folder)


def check_names(work):
    """Of tokens by themselves, and what they add to a text."""
    make_tokenizer(work / "bytes")
    answers = generate_text.Answers(str(work / "bytes"))
    text = "the caf\u00e9 \u2603 loss"  # the snowman is three tokens
    ids = answers.answer({"text": text})["ids"]
    pieces = answers.answer({"pieces": ids})["texts"]
    added = answers.answer({"decode": ids})["texts"]
    assert "".join(added) == text, added
    assert pieces[0] == "<|im_start|>" and added[0] == "", (pieces, added)
    same = [one == piece for one, piece in zip(added[1:], pieces[1:]) if one.isascii() and one]
    assert len(same) > 2 and all(same), (pieces, added)
    parts = [piece for one, piece in zip(added[1:], pieces[1:]) if not one]
    assert parts and all(part and "\ufffd" not in part for part in parts), parts
    # As Llama 2's: a text's first blank is none of it. There is no "a".
    words = {"<unk>": 0, "<s>": 1, "\u2581the": 2, "\u2581loss": 3, "es": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    (work / "words").mkdir()
    tokenizer.save(str(work / "words" / "tokenizer.json"))
    answers = generate_text.Answers(str(work / "words"))
    assert answers.answer({"decode": [1, 2, 3, 4]})["texts"] == ["", "the", " loss", "es"]
    assert answers.answer({"pieces": [2, 3, 4]})["texts"] == [" the", " loss", "es"]
    strict = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "y": 1}))
    (work / "strict").mkdir()
    strict.save(str(work / "strict" / "tokenizer.json"))
    assert generate_text.Answers(str(work / "strict")).answer({"pieces": [0, 1]})["texts"] == [
        " x", " y"]  # between words are blanks
    print("ok   names of tokens", flush=True)


def make_tuned(milepost, work):
    """The exported folder of a job in work/data."""
    draw = random.Random(1)
    text = " ".join(draw.choices(WORDS, k=4000))
    make_tokenizer(work / "model")
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(work / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "model")
    numpy.save(work / "tokens.npy", numpy.array(tokenizer(text)["input_ids"], dtype=numpy.uint16))
    spec = work / "spec.yaml"
    spec.write_text(SPEC.format(folder=work / "model", tokens=work / "tokens.npy"))
    run(milepost, "run", spec, "--data-dir", work / "data")
    run(milepost, "checkpoint", "export", "1", "--data-dir", work / "data", "--out",
        work / "tuned")


def make_tasks(work):
    draw = random.Random(2)
    with open(work / "docs.jsonl", "w", encoding="utf-8") as file:
        for number in range(30):
            words = draw.choices(WORDS, k=draw.randint(1, 60 if number % 3 else 150))
            choices = [" " + " ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in "abcd"]
            file.write(json.dumps({"question": " ".join(words), "choices": choices}) + "\n")
    for name, more in TASKS.items():
        (work / f"{name}.yaml").write_text(
            TASK.format(name=name, data=work / "docs.jsonl", more=more.format()))


@contextlib.contextmanager
def served(milepost, work):
    """The model's address while the block runs."""
    with subprocess.Popen([milepost, "serve", "--job", "1", "--data-dir", work / "data", "--port",
                           "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = iter(server.stdout.readline, "")
            found = next((m for m in map(re.compile(r"http://127[0-9.:]+").search, lines) if m), None)
            if found is None:
                sys.exit("milepost serve has ended")
            threading.Thread(target=lambda: list(lines), daemon=True).start()
            yield found.group()
        finally:
            server.terminate()


def evaluated(work, kind, batch, **arguments):
    done = lm_eval.simple_evaluate(
        model=kind, model_args=arguments, tasks=list(TASKS), batch_size=batch, log_samples=True,
        bootstrap_iters=0, task_manager=lm_eval.tasks.TaskManager(include_path=str(work)))
    samples = {name: sorted(done["samples"][name], key=lambda one: one["doc_id"]) for name in TASKS}
    return done["results"], {
        name: [one["filtered_resps"] for one in found] for name, found in samples.items()}


def likelihoods(answers):
    """(log-probability, whether it is the likeliest) of each continuation, or log-probabilities."""
    return [one if isinstance(one, (list, tuple)) else (one, None)
            for doc in answers for one in doc]


def compare(ours, theirs):
    """How many kinds of answers differ."""
    wrong = 0
    for name in ("choices", "perplexity"):
        pairs = list(zip(likelihoods(ours[name]), likelihoods(theirs[name]), strict=True))
        most = max(abs(a[0] - b[0]) for a, b in pairs)
        greedy = sum(a[1] != b[1] for a, b in pairs)
        good = most < LIMIT and greedy == 0
        wrong += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {len(pairs)} log-probabilities, at most "
              f"{most:.1e} apart; {greedy} others the likeliest", flush=True)
    good = ours["writing"] == theirs["writing"]
    print(f"{'ok  ' if good else 'FAIL'} writing: {len(ours['writing'])} texts", flush=True)
    return wrong + (not good)


def main():
    milepost = pathlib.Path(sys.argv[1]).resolve() / "milepost"
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        check_names(work)
        make_tuned(milepost, work)
        make_tasks(work)
        with served(milepost, work) as address:
            results, ours = evaluated(
                work, "local-completions", 4, model="checkpoints/1", max_length=LENGTH,
                base_url=f"{address}/v1/completions", tokenizer=str(work / "tuned"),
                add_bos_token=True)
        theirs_results, theirs = evaluated(
            work, "hf", 1, pretrained=str(work / "tuned"), dtype="float32", device="cpu",
            max_length=LENGTH)
        wrong = compare(ours, theirs)
        for task in TASKS:
            for metric, value in results[task].items():
                if isinstance(value, float) and "stderr" not in metric:
                    print(f"     {task} {metric}: {value:.6g} and "
                          f"{theirs_results[task][metric]:.6g}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
