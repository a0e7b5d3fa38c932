"""Lightning: early stopping and a plateau, metrics that differ from rank to rank, workers."""

import lightning as L
import torch
import torchmetrics
from helper import Data, finish
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.lightning import TrainMoverTrainer as Trainer


class Small(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
        )
        self.train_error = torchmetrics.MeanSquaredError()
        self.val_error = torchmetrics.MeanSquaredError()
        self.outputs = []
        self.sums = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        answer = self.net(x)
        loss = nn.functional.mse_loss(answer, y)
        self.train_error(answer, y)
        self.log("train_error", self.train_error, on_step=False, on_epoch=True)
        self.log("mine", loss * (1 + self.global_rank), on_epoch=True)
        self.outputs.append(loss.detach())
        return {"loss": loss, "answer": answer}

    def on_train_epoch_end(self):
        self.sums.append(torch.stack(self.outputs).sum().item())
        self.outputs.clear()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        answer = self.net(x)
        if dataloader_idx == 0:
            self.val_error(answer, y)
            self.log("val_error", self.val_error, add_dataloader_idx=False)
        self.log("val_own", nn.functional.mse_loss(answer, y) * (1 + self.global_rank))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.5, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=1, threshold=0.05
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_error"},
        }


class Slower(L.Callback):
    """Sets a learning rate by hand, and counts in an object of its own."""

    class Count:
        def __init__(self):
            self.epochs = 0

    def __init__(self):
        self.count = self.Count()
        self.seen = set()

    def on_train_epoch_start(self, trainer, module):
        self.count.epochs += 1
        self.seen.add(trainer.current_epoch % 3)
        trainer.optimizers[0].param_groups[0]["weight_decay"] = 1e-4 * self.count.epochs


L.seed_everything(47, workers=True)
slower = Slower()
stop = EarlyStopping("val_error", min_delta=0.02, patience=2)
trainer = Trainer(
    max_epochs=40,
    limit_train_batches=12,
    logger=False,
    enable_checkpointing=False,
    callbacks=[slower, stop],
)
model = Small()
train = DataLoader(Data(900), batch_size=10, shuffle=True, num_workers=1, persistent_workers=True)
trainer.fit(model, train, [DataLoader(Data(100), batch_size=5), DataLoader(Data(40), batch_size=5)])
finish(
    trainer.global_rank,
    model,
    sums=model.sums,
    steps=(trainer.global_step, trainer.current_epoch),
    groups={k: v for k, v in trainer.optimizers[0].param_groups[0].items() if k != "params"},
    slower=(slower.count.epochs, sorted(slower.seen)),
    stop=(stop.wait_count, stop.stopped_epoch, stop.best_score.item()),
    metrics={k: v.item() for k, v in trainer.callback_metrics.items()},
)
