"""A masked language model: random masking, lengths grouped, labels smoothed, a plateau schedule."""

import json
import random
from collections import Counter
from importlib.util import find_spec

import numpy as np
import torch
from helper import OUT, finish
from transformers import BertConfig, BertForMaskedLM, TrainerCallback, TrainingArguments, set_seed

from trainmover import Session
from trainmover_executor.frameworks.transformers import TrainMoverTrainer as Trainer

WRITES = find_spec("tensorboard") is not None
VOCABULARY, MASK, PAD = 40, 1, 0


def sentences(count, seed):
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        start, length = rng.randrange(2, VOCABULARY), rng.randrange(4, 20)
        made.append({"input_ids": [2 + (start + i) % (VOCABULARY - 2) for i in range(length)]})
    return made


def mask(features):
    longest = max(len(each["input_ids"]) for each in features)
    tokens = torch.full((len(features), longest), PAD)
    for row, each in zip(tokens, features, strict=True):
        row[: len(each["input_ids"])] = torch.tensor(each["input_ids"])
    attention = (tokens != PAD).long()
    hidden = (torch.rand(tokens.shape) < 0.15) & attention.bool()
    hidden[:, random.randrange(4)] = True
    labels = torch.where(hidden, tokens, -100)
    noise = torch.from_numpy(np.random.randint(2, VOCABULARY, tokens.shape))
    replaced = torch.where(torch.rand(tokens.shape) < 0.8, torch.tensor(MASK), noise)
    inputs = torch.where(hidden, replaced, tokens)
    return {"input_ids": inputs, "attention_mask": attention, "labels": labels}


def accuracy(prediction):
    answers = prediction.predictions.argmax(-1)
    asked = prediction.label_ids != -100
    return {"accuracy": float((answers == prediction.label_ids)[asked].mean())}


class Journal(TrainerCallback):
    """Counts, and writes what is logged to a file: each line once."""

    def __init__(self):
        self.events = {}
        self.losses = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.events["begin"] = self.events.get("begin", 0) + 1

    def on_step_end(self, args, state, control, **kwargs):
        self.events["end"] = self.events.get("end", 0) + 1

    def on_prediction_step(self, args, state, control, **kwargs):
        self.events["predicted"] = self.events.get("predicted", 0) + 1

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses.append(logs.get("loss"))
        if state.is_world_process_zero:
            with open(OUT / "journal.jsonl", "a") as file:
                file.write(json.dumps([state.global_step, sorted(logs)]) + "\n")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.events["best"] = max(self.events.get("best", 0), metrics["eval_accuracy"])


Session.init()
set_seed(11)
journal = Journal()
trainer = Trainer(
    model=BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
        )
    ),
    args=TrainingArguments(
        output_dir=str(OUT / "bert"),
        max_steps=60,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=6,
        train_sampling_strategy="group_by_length",
        label_smoothing_factor=0.1,
        learning_rate=1e-2,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0, "factor": 0.5},
        metric_for_best_model="accuracy",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=7,
        eval_on_start=True,
        save_strategy="best",
        dataloader_num_workers=1,
        remove_unused_columns=False,
        report_to=["tensorboard"] if WRITES else [],
        disable_tqdm=True,
    ),
    data_collator=mask,
    train_dataset=sentences(400, seed=1),
    eval_dataset=sentences(40, seed=2),
    compute_metrics=accuracy,
    callbacks=[journal],
)
trainer.train()
counts = Counter()
if trainer.is_world_process_zero():
    counts.update((OUT / "journal.jsonl").read_text().splitlines())
    if WRITES:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        (run,) = (OUT / "bert" / "runs").iterdir()
        for file in run.iterdir():
            for event in EventFileLoader(str(file)).Load():
                counts.update(
                    (each.tag, event.step) for each in event.summary.value if "/" in each.tag
                )
finish(
    trainer.args.process_index,
    trainer.model,
    events=journal.events,
    losses=journal.losses,
    twice=sorted(str(each) for each, count in counts.items() if count > 1),
    wrote=len(counts) > 60,
    lr=trainer.lr_scheduler.get_last_lr(),
    best=(trainer.state.best_metric, trainer.state.best_global_step),
)
