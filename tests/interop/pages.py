#!/usr/bin/env python3
"""The commands, specs and programs of docs/use/scripts.md, python.md and fine-tuning.md.

    scripts/test --interop                  builds, makes the environment, runs this too
    tests/interop/pages.py build/dev/bin    with python's transformers, torch and lightning

Every block of a page runs, with a coordinator and a worker of two CPU ranks. Only names of folders,
jobs, and numbers that would take long are replaced (REPLACED). What a page leaves to the reader,
such as the model, comes before a block (BEFORE). Prints a line each, and exits with 1 where a block
fails or is not known here.
"""

import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "procedures")]
import tiny_tokenizer  # noqa: E402
import transformers  # noqa: E402
from cluster import Place  # noqa: E402
from waiting import Failed, await_that, check, free_ports  # noqa: E402

transformers.utils.logging.disable_progress_bar()
WORDS = "alpha beta gamma delta".split()
MODEL = "models/SmolLM2-135M-Instruct"
REPLACED = (
    ("/shared/my-gpt", "."), ("ranks: 8, device: cuda", "ranks: 2"), ("steps: 300", "steps: 6"),
    ("steps: 200", "steps: 4"), ("warmup_steps: 20", "warmup_steps: 2"),
    ("global: 32", "global: 8"), ("sequence_length: 1024", "sequence_length: 128"),
    ("sequence_length: 2048", "sequence_length: 128"), ("--tokens 200", "--tokens 5"),
    ("--sequence-length 1024", "--sequence-length 128"),
)
GPT = """
import os, torch
from common import GPT, Text
"""
BEFORE = {
    "import milepost\n": GPT + """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
steps = 120
def train_step():
    loss = model(torch.ones(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
""",
    "import milepost.dcp": GPT + """
torch.distributed.init_process_group("gloo")
state, step = {"model": torch.nn.Linear(4, 4).state_dict()}, 3
""",
    "from milepost.transformers": GPT + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
class Samples(Text):
    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}
os.makedirs("out", exist_ok=True)
arguments = TrainingArguments("out", max_steps=4, per_device_train_batch_size=2, use_cpu=True)
model = GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=32, n_layer=1, n_head=2))
samples = Samples()
""",
    "from milepost.lightning": GPT + """
import lightning
from lightning import Trainer as Base
from lightning.pytorch.callbacks import ModelCheckpoint
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT()
    def training_step(self, batch, index):
        return self.model(*batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
def Trainer(**given):
    return Base(accelerator="cpu", strategy="ddp", max_epochs=1, logger=False, **given)
model, loader = Module(), torch.utils.data.DataLoader(Text(16), batch_size=8)
""",
}


def blocks(page):
    """The page's blocks as (language, text), in their order."""
    text = (ROOT / "docs/use" / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
    check(found, f"{page} has no blocks")
    return found


def replaced(text):
    for old, new in REPLACED:
        text = text.replace(old, new)
    return text


def commands(block):
    """Of a block of commands: lines, joined where one goes on, without remarks."""
    joined = block.replace("\\\n", " ")
    return [line.split("  #")[0].strip() for line in joined.splitlines() if line.strip()]


def say(page, what):
    print(f"ok   {page}: {what}", flush=True)


class Pages(Place):
    def start_all(self):
        (self.folder / "bin").mkdir()
        for name in ("python3", "python"):  # of the pages: the one that runs this
            (self.folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            (self.folder / "bin" / name).chmod(0o755)
        self.environment.update(
            HF_HUB_OFFLINE="1", PATH=f"{self.folder}/bin:{self.binaries}:{os.environ['PATH']}",
            PYTHONPATH=str(HERE.parent / "scripts/programs"))
        self.coordinator("c", self.folder / "c", "--listen", "127.0.0.1:0")
        self.login = ["--coordinator", self.address_of("c")]
        self.environment["MILEPOST_COORDINATOR"] = self.address_of("c")
        self.worker("w", self.address_of("c"), "--allow-scripts")

    def shell(self, page, command, within):
        done = subprocess.run(command, shell=True, text=True, stdout=subprocess.PIPE, cwd=within,
                              stderr=subprocess.STDOUT, env=self.environment, timeout=600,
                              stdin=subprocess.DEVNULL, check=False)
        check(done.returncode == 0,
              f"{page}: {command}: exit code {done.returncode}\n{done.stdout}")
        say(page, command)
        return done.stdout

    def newest(self, kind):
        """The name of the newest job or checkpoint."""
        listed = json.loads(self.cli(kind, "list", "-o", "json"))
        items = listed.get(f"{kind}s", listed) if isinstance(listed, dict) else listed
        return max((item["name"] for item in items), key=lambda name: int(name.split("/")[1]))

    def job_ends(self, page, what):
        name = self.newest("job")

        def ended():
            job = json.loads(self.cli("job", "describe", name, "-o", "json"))
            return job if job["state"].endswith(("SUCCEEDED", "FAILED")) else None

        job = await_that(ended, f"{page}: {what} ends", patience=300)
        check(job["state"].endswith("SUCCEEDED"),
              f"{page}: {what}: {job}\n{self.cli('job', 'logs', name)}")
        say(page, what)

    def script(self, page, what, program, ranks=1):
        """Runs a Python program as a job."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "program.py").write_text(program, encoding="utf-8")
        (folder / "spec.yaml").write_text(
            f"name: page\nscript: {{command: [python3, program.py], folder: {folder}}}\n"
            f"resources: {{ranks: {ranks}}}\nrestart: {{max_failures: 0}}\n", encoding="utf-8")
        self.cli("job", "submit", folder / "spec.yaml")
        self.job_ends(page, what)


def scripts_page(place):
    page = "scripts.md"
    folder = place.folder / "scripts"
    folder.mkdir()
    shutil.copy(ROOT / "examples/script/train.py", folder)
    (folder / "requirements.txt").write_text("numpy\n", encoding="utf-8")  # it is there already
    text = (folder / "train.py").read_text(encoding="utf-8")
    check("--steps" in text, "examples/script/train.py has no --steps")
    for language, block in blocks(page):
        if language == "yaml":
            (folder / "script.yaml").write_text(
                replaced(block).replace('--lr, "3e-4"', '--steps, "20"'), encoding="utf-8")
            if "container:" in block:
                place.shell(page, "milepost job submit script.yaml --validate-only", folder)
                print(f"SKIPPED {page}: the container's image; tests/deploy/podman.py has its own")
            elif "files: ." in block:
                place.shell(page, "milepost job submit script.yaml", folder)
                place.job_ends(page, "the job whose files are sent along")
        elif block.startswith("curl"):
            place.script(page, "curl's report", "import subprocess\nsubprocess.run(['sh', '-ec', "
                         f"{block!r}], check=True)\n")
            job = json.loads(place.cli("job", "describe", place.newest("job"), "-o", "json"))
            check(job["progress"]["step"] in (42, "42"), f"{page}: {job['progress']}")
        elif language == "sh":
            for command in commands(block):
                place.shell(page, command.replace("jobs/7", "jobs/1"), folder)
        else:
            check("waited in" in block, f"{page}: a block that is not known here:\n{block}")


def python_page(place):
    page = "python.md"
    for language, block in blocks(page):
        if language == "yaml":
            continue  # common/spec/docs_test.cc reads it
        before = [text for begin, text in BEFORE.items() if block.startswith(begin)]
        check(len(before) == 1, f"{page}: a block that is not known here:\n{block}")
        place.script(page, block.splitlines()[0], before[0] + block)
    name = place.newest("checkpoint")
    for command in ("list", f"describe {name}", f"verify {name}", f"pin {name}",
                    f"export {name} --out exported"):
        place.shell(page, f"milepost checkpoint {command}", place.folder)


def make_model(folder, text):
    tiny_tokenizer.save(folder, text)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128, num_hidden_layers=2, max_position_embeddings=128, eos_token_id=2,
        pad_token_id=0, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def make_data(folder):
    """Chats, and pairs of answers."""
    draw = random.Random(3)
    with open(folder / "chats.jsonl", "w", encoding="utf-8") as chats, \
            open(folder / "pairs.jsonl", "w", encoding="utf-8") as pairs:
        for _ in range(200):
            words = [" ".join(draw.choices(WORDS, k=5)) for _ in range(3)]
            asked, good, bad = ({"role": "user", "content": words[0]},
                                {"role": "assistant", "content": words[1]},
                                {"role": "assistant", "content": words[2]})
            chats.write(json.dumps({"messages": [asked, good]}) + "\n")
            pairs.write(json.dumps({"prompt": [asked], "chosen": [good], "rejected": [bad]}) + "\n")


def fine_tuning_page(place):
    page = "fine-tuning.md"
    folder = place.folder / "tuning"
    place.environment.pop("MILEPOST_COORDINATOR")  # one machine is enough for this page
    (folder / "models").mkdir(parents=True)
    make_model(folder / MODEL, " ".join(WORDS))
    make_data(folder)
    spec = {}  # the parts of the newest spec, by their first words
    for language, block in blocks(page):
        block = replaced(block)
        if "milepost serve" in block or "127.0.0.1:8000" in block:
            serve(place, page, folder, block)
        elif language == "python":
            place.shell(page, f"python3 -c '{block}'", folder)
        elif language == "yaml":
            for part in filter(None, re.split(r"^(?=\w)", block, flags=re.M)):
                spec[part.split(":")[0]] = part
            (folder / "chats.yaml").write_text("".join(spec.values()), encoding="utf-8")
            if "lora" in block:  # of the page's other specs a command is said before
                run_spec(place, page, folder, "dpo" in block)
        else:
            for command in commands(block):
                run_tuning(place, page, folder, command, spec)


def run_spec(place, page, folder, pairs):
    if pairs:
        place.shell(page, f"milepost dataset tokenize --input pairs.jsonl --tokenizer {MODEL} "
                    "--sequence-length 128 --output pairs.npy", folder)
    place.shell(page, "milepost run chats.yaml", folder)


def run_tuning(place, page, folder, command, spec):
    if command == "milepost run chats.yaml" and not spec:  # the page shows it only then
        text = replaced(next(b for language, b in blocks(page) if language == "yaml"))
        (folder / "chats.yaml").write_text(text, encoding="utf-8")
    if "checkpoint export" in command:
        listed = place.shell(page, "milepost checkpoint list -o json", folder)
        numbers = [int(number) for number in re.findall(r'"checkpoints/(\d+)"', listed)]
        command = command.replace("checkpoints/4", f"checkpoints/{max(numbers)}")
        shutil.rmtree(folder / command.split("--out ")[1].split()[0], ignore_errors=True)
    place.shell(page, command, folder)


def serve(place, page, folder, block):
    """A model is served while the rest of the block asks it."""
    port = free_ports(1)[0]
    with subprocess.Popen([place.binaries / "milepost", "serve", "--port", str(port)], cwd=folder,
                          env=place.environment) as server:
        try:
            await_that(lambda: answers(port), "the model is served")
            asked = block.replace(":8000/", f":{port}/")
            if "openai" in block:
                if importlib.util.find_spec("openai") is None:
                    print(f"SKIPPED {page}: a program, because openai is not installed")
                else:
                    place.shell(page, f"python3 - <<'END'\n{asked}END", folder)
            else:
                first, *others = commands(asked)
                check(first.startswith("milepost serve"), f"{page}: {first}")
                for command in others:
                    if command.startswith("lm_eval"):
                        print(f"SKIPPED {page}: lm_eval, whose tasks are on the hub; "
                              "evaluation.py has tasks of its own")
                        continue
                    place.shell(page, command, folder)
        finally:
            server.terminate()
    check(server.returncode == 0, f"{page}: milepost serve ended with {server.returncode}")


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def main():
    pages = {"scripts": scripts_page, "python": python_page, "fine-tuning": fine_tuning_page}
    chosen = sys.argv[2:] or list(pages)
    failed = False
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder, Pages(sys.argv[1], folder) as place:
            place.start_all()
            try:
                pages[name](place)
            except (Failed, subprocess.TimeoutExpired) as why:
                print("FAIL", why, flush=True)
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
