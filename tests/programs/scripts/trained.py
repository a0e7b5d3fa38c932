"""Hugging Face Trainer: a small causal language model, evaluations, checkpoints, early stopping."""

import math

import torch
from helper import OUT, finish
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
)

from trainmover import Session
from trainmover_executor.frameworks.transformers import TrainMoverTrainer
from trainmover_executor.worker.runtime import current_runtime

VOCABULARY, LENGTH = 32, 12


class Text(Dataset):
    def __init__(self, samples, seed):
        generator = torch.Generator().manual_seed(seed)
        begin = torch.randint(VOCABULARY, (samples, 1), generator=generator)
        pace = torch.randint(1, 4, (samples, 1), generator=generator)
        self.tokens = (begin + pace * torch.arange(LENGTH)) % VOCABULARY

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class FailPoint(TrainerCallback):
    def on_prediction_step(self, args, state, control, **kwargs):
        current_runtime().reach("evaluating")


class Breakable(TrainMoverTrainer):
    def save_model(self, *args, **kwargs):
        super().save_model(*args, **kwargs)
        current_runtime().reach("saving")


Session.init()
arguments = TrainingArguments(
    str(OUT / "checkpoints"),
    num_train_epochs=3,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    warmup_steps=10,
    max_grad_norm=0.5,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=10,
    save_steps=20,
    save_total_limit=2,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
    report_to="none",
    disable_tqdm=True,
    dataloader_drop_last=False,
    seed=7,
)
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=LENGTH,
    attention_dropout=0.1,
)
torch.manual_seed(3)
trainer = Breakable(
    LlamaForCausalLM(config),
    arguments,
    train_dataset=Text(710, seed=1),
    eval_dataset=Text(50, seed=2),
    callbacks=[EarlyStoppingCallback(early_stopping_patience=50), FailPoint()],
)
result = trainer.train()
final = trainer.evaluate()
log = [
    {k: v for k, v in each.items() if not k.endswith(("runtime", "per_second", "_time"))}
    for each in trainer.state.log_history
]
finish(
    trainer.args.process_index,
    trainer.model,
    log=log,
    steps=trainer.state.global_step,
    epoch=trainer.state.epoch,
    best=(trainer.state.best_metric, trainer.state.best_global_step),
    flos=trainer.state.total_flos,
    loss=result.training_loss,
    final=math.exp(final["eval_loss"]),
)
