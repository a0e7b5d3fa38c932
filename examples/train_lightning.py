"""Train a classifier with Lightning, movable by TrainMover.

    pip install 'trainmover[lightning]'
    trainmover run --slots 2 --standbys 1 examples/train_lightning.py --epochs 3

The line marked with (*) is all that differs from the usual script of Lightning.
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainmover_executor.frameworks.lightning import TrainMoverTrainer as Trainer  # (*)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        accuracy = (self.net(inputs).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", accuracy, prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :10].argmax(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", default="lightning_logs")
    options = parser.parse_args()

    L.seed_everything(0)
    trainer = Trainer(
        max_epochs=options.epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=CSVLogger(options.folder),
        callbacks=[
            ModelCheckpoint(monitor="accuracy", mode="max"),
            EarlyStopping(monitor="accuracy", mode="max", patience=50),
        ],
    )
    train = DataLoader(data(4000, seed=1), batch_size=16, shuffle=True)
    test = DataLoader(data(500, seed=2), batch_size=64)
    trainer.fit(Classifier(), train, test)


if __name__ == "__main__":
    main()
