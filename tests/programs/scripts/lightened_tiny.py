"""Lightning: epochs of two batches, a data module, a warm-up by hand, and a test behind the fit."""

import lightning as L
import torch
from helper import OUT, Data, finish
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.lightning import TrainMoverTrainer as Trainer


class Numbers(L.LightningDataModule):
    def setup(self, stage):
        self.train, self.held = Data(60), Data(30)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=10, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.held, batch_size=5)

    test_dataloader = val_dataloader


class Tiny(L.LightningModule):
    def __init__(self, width=24, rate=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, width), nn.Dropout(0.2), nn.Linear(width, 16))
        self.example_input_array = torch.zeros(2, 16)

    def forward(self, x):
        return self.net(x)

    def on_fit_start(self):
        self.best, self.starts = float("inf"), 0

    def on_train_epoch_start(self):
        self.starts += 1
        self.noise = torch.rand(()).item()

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y) + 0.01 * self.noise
        self.log_dict({"loss": loss, "lr": self.optimizers().param_groups[0]["lr"]})
        return loss

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 20:
            for group in optimizer.param_groups:
                group["lr"] = self.hparams.rate * (self.trainer.global_step + 1) / 20

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("val", loss, sync_dist=True)
        self.best = min(self.best, loss.item())

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test", nn.functional.mse_loss(self(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.rate)

    def configure_callbacks(self):
        return [ModelCheckpoint(OUT / "checkpoints", monitor="val", save_last=True)]


L.seed_everything(53)
logger = CSVLogger(OUT, "log", prefix="tiny")
trainer = Trainer(
    max_steps=81, max_epochs=-1, check_val_every_n_epoch=3, logger=logger, log_every_n_steps=3
)
model = Tiny()
trainer.fit(model, datamodule=Numbers())
tested = trainer.test(model, datamodule=Numbers(), verbose=False)
finish(
    trainer.global_rank,
    model,
    best=model.best,
    starts=model.starts,
    steps=(trainer.global_step, trainer.current_epoch),
    tested=tested,
    names=sorted(each.name for each in (OUT / "checkpoints").iterdir()),
    rows=open(f"{logger.log_dir}/metrics.csv").read() if trainer.global_rank == 0 else "",
    hparams=open(f"{logger.log_dir}/hparams.yaml").read(),
)
