"""transformers' Trainer, which knows nothing of Milepost, with checkpoints in a shared folder."""
import os

import torch
from common import VOCABULARY, Text, say_result
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Samples(Text):
    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


torch.manual_seed(0)
config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=4,
                    bos_token_id=0, eos_token_id=0)
out = os.path.join("out", os.environ["MILEPOST_JOB_UID"])
arguments = TrainingArguments(out, max_steps=400, per_device_train_batch_size=8, logging_steps=5,
                              save_steps=25, save_total_limit=3, use_cpu=True, disable_tqdm=True)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Samples())
last = get_last_checkpoint(out) if os.path.isdir(out) else None
print("goes on with", last, flush=True)
trainer.train(resume_from_checkpoint=last)
if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    say_result(losses[-1], trainer.accelerator.unwrap_model(trainer.model).state_dict().items())
