#!/usr/bin/env python3
"""Script jobs with PyTorch and transformers, through CLI, coordinator and worker, as users do.

    python3 tests/gpu/script_jobs.py BIN_FOLDER               on the first GPU
    python3 tests/gpu/script_jobs.py BIN_FOLDER --device cpu  the same without one

An unmodified transformers `Trainer` (a tiny GPT-2 that it makes itself): it must end, report its
steps, losses and time left by itself, and see the GPU that it was given. The same with its rank
killed (SIGKILL) after the first checkpoint: it must go on from there. The same with
MilepostCallback. Then torchrun's DistributedDataParallel of examples/script, as one rank, and its
FSDP2 with checkpoints of Milepost's: undisturbed, and killed after a checkpoint, with the same last
loss. Needs torch, transformers and accelerate in the Python that runs this. Prints a line each, and
exits with 1 where something misses.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from processes import below  # noqa: E402

STEPS, EVERY, LOGGING = 600, 100, 5
TRAINER = f"""
import os
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        ids = (torch.arange(64) * (index % 7 + 1)) % 256
        return {{"input_ids": ids, "labels": ids}}

torch.manual_seed(0)
print("device", torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
      torch.cuda.device_count(), flush=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4))
arguments = TrainingArguments("out", max_steps={STEPS}, per_device_train_batch_size=8,
    logging_steps={LOGGING}, save_steps={EVERY}, bf16=torch.cuda.is_available(), disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=Numbers())
last = get_last_checkpoint("out") if os.path.isdir("out") else None
print("begins at", last, "in attempt", os.environ["MILEPOST_ATTEMPT"], flush=True)
trainer.train(resume_from_checkpoint=last)
"""
SPEC = """name: {name}
script:
  command: [{python}, {program}]
  folder: {folder}
resources: {{ranks: 1, device: {device}}}
restart: {{max_failures: 2}}
"""


def run(args, spec, folder, kill_after=None, program="trainer.py", kill_at=None):
    """What `milepost run` says, event by event, and how many ranks were killed."""
    command = [str(args.bin / "milepost"), "run", str(spec), "--data-dir", str(folder)]
    command += ["-o", "json"]
    events, kills = [], 0
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        for line in process.stdout:
            events.append(json.loads(line))
            logged = sum("'loss'" in event.get("text", "") for event in events) * LOGGING
            reached = kill_after and logged >= kill_after
            reached = reached or (kill_at and kill_at in events[-1].get("text", ""))
            if reached and not kills:
                ranks = [pid for pid, _, command in below(process.pid) if program in command]
                for pid in ranks:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        errors = process.stderr.read()
    if process.returncode != 0:
        print(f"milepost run: exit {process.returncode}: {errors[-3000:]}", flush=True)
    return events, kills


def logs(args, folder):
    done = subprocess.run(
        [str(args.bin / "milepost"), "job", "logs", "jobs/1", "--data-dir", str(folder)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    return done.stdout


def spec_of(args, folder, name, program, script_folder):
    spec = folder / f"{name}.yaml"
    spec.write_text(
        SPEC.format(
            name=name,
            python=sys.executable,
            program=program,
            folder=script_folder,
            device=args.device,
        )
    )
    return spec


def say(ok, text):
    print(f"{'ok  ' if ok else 'FAIL'} {text}", flush=True)
    return ok


def check_trainer(args, folder, name, kill_after=None):
    scripts = folder / name
    scripts.mkdir()
    text = TRAINER
    if name == "callback":
        text = "from milepost.transformers import MilepostCallback\n" + TRAINER.replace(
            "train_dataset=Numbers()", "train_dataset=Numbers(), callbacks=[MilepostCallback()]"
        )
    (scripts / "trainer.py").write_text(text)
    spec = spec_of(args, folder, name, "trainer.py", scripts)
    events, kills = run(args, spec, folder / f"{name}-data", kill_after)
    steps = [event for event in events if event["event"] == "progress"]
    finished = next((event for event in events if event["event"] == "finished"), {})
    printed = logs(args, folder / f"{name}-data")
    for line in printed.splitlines():
        if "] device " in line or "begins at" in line:
            print(f"     {line}", flush=True)
    if args.verbose:
        print(printed, events, flush=True)
    device = args.device == "cpu" or ("device NVIDIA" in printed and "begins at" in printed)
    resumed = not kill_after or (kills > 0 and "checkpoint-" in printed)
    counted = finished.get("step") == STEPS and finished.get("train_loss", 9) < 5
    ok = finished.get("state") == "SUCCEEDED" and counted and device and resumed
    return say(
        ok,
        f"{name}: {finished.get('state')} at step {finished.get('step')}, loss"
        f" {finished.get('train_loss')}, {len(steps)} reports, {kills} killed",
    )


def check_torchrun(args, folder):
    spec = spec_of(args, folder, "ddp", "train.py", folder / "ddp")
    (folder / "ddp").mkdir()
    (folder / "ddp/train.py").write_text((ROOT / "examples/script/train.py").read_text())
    events, _ = run(args, spec, folder / "ddp-data")
    finished = next((event for event in events if event["event"] == "finished"), {})
    return say(finished.get("state") == "SUCCEEDED", f"ddp: {finished.get('state')}")


def check_fsdp(args, folder):
    last, killed = [], 0
    for name in ("fsdp", "fsdp-killed"):
        (folder / name).mkdir()
        program = ROOT / "examples/script/train_fsdp.py"
        (folder / name / "train_fsdp.py").write_text(program.read_text())
        spec = spec_of(args, folder, name, "train_fsdp.py, --steps, '2000'", folder / name)
        at = "committed in" if name == "fsdp-killed" else None
        events, kills = run(args, spec, folder / f"{name}-data", None, "train_fsdp.py", at)
        finished = next((event for event in events if event["event"] == "finished"), {})
        texts = [event.get("text", "") for event in events]
        last += [text for text in texts if text.startswith("done: loss")]
        killed += kills
        if finished.get("state") != "SUCCEEDED":
            return say(False, f"{name}: {finished.get('state')} {finished}")
    resumed = any("goes on after step" in text for text in texts)
    ok = len(last) == 2 and last[0] == last[1] and killed > 0 and resumed
    return say(ok, f"fsdp: {killed} killed, {last}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryDirectory(prefix="milepost-") as temporary:
        folder = pathlib.Path(temporary)
        done = [
            check_trainer(args, folder, "trainer"),
            check_trainer(args, folder, "killed", kill_after=EVERY + 20),
            check_trainer(args, folder, "callback"),
            check_torchrun(args, folder),
            check_fsdp(args, folder),
        ]
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
