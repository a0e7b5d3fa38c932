"""Trains to the end, or goes on from a checkpoint of an earlier job."""

import sys

import torch
from helper import Data, finish
from torch import nn
from transformers import Trainer, TrainingArguments

from trainmover import Session
from trainmover_executor.frameworks.transformers import TrainMoverTrainer

OUTPUT, CHECKPOINT = sys.argv[2:]


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 16)
        )

    def forward(self, x, labels):
        y = self.layers(x)
        return {"loss": (y - labels).pow(2).mean(), "logits": y}


class Pairs(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


class Mine(TrainMoverTrainer, Trainer):
    pass


Session.init()
torch.manual_seed(5)
trainer = Mine(
    Regression(),
    TrainingArguments(
        OUTPUT,
        num_train_epochs=3,
        per_device_train_batch_size=5,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        save_steps=25,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=Pairs(600),
)
trainer.train(resume_from_checkpoint=CHECKPOINT if CHECKPOINT != "none" else None)
log = [(each["step"], each["loss"]) for each in trainer.state.log_history if "loss" in each]
losses = [each for each in log if each[0] > 30]  # that of 30 is of the steps since the checkpoint
finish(trainer.args.process_index, trainer.model, losses=losses, epoch=trainer.state.epoch)
