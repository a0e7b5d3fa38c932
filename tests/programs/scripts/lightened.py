"""Lightning: validations, checkpoints, schedules, accumulation, clipping, a log, callbacks."""

import csv

import lightning as L
import torch
from helper import OUT, Data, finish
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.lightning import TrainMoverTrainer
from trainmover_executor.worker.runtime import current_runtime

reach = current_runtime().reach
"""Fail-points of the program's own: a machine is killed in the middle of its hooks."""


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.errors = []
        self.history = []

    def training_step(self, batch, batch_idx):
        reach("program.training")
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("synced", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        if batch_idx == 2:
            reach("program.validating")
        x, y = batch
        error = nn.functional.mse_loss(self.net(x), y)
        self.errors.append(error)
        self.log("val_loss", error, sync_dist=True)

    def on_validation_epoch_end(self):
        reach("program.validated")
        self.history.append(torch.stack(self.errors).mean().item())
        self.errors.clear()

    def on_validation_end(self):
        reach("program.validation_end")

    def on_save_checkpoint(self, checkpoint):
        reach("program.saving")

    def on_train_epoch_end(self):
        reach("program.epoch_end")
        self.history.append(self.all_gather(torch.tensor(float(self.global_step))).sum().item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 5e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Watch(L.Callback):
    def __init__(self):
        self.losses, self.batches, self.rows = [], 0, 0

    def on_before_optimizer_step(self, trainer, module, optimizer):
        reach("program.optimizer")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        reach("program.batch_end")
        self.batches += 1
        self.losses = [*self.losses, outputs["loss"].item()][-20:]


L.seed_everything(41)
watch = Watch()
checkpoint = ModelCheckpoint(
    OUT / "checkpoints", monitor="val_loss", save_top_k=2, save_last=True, filename="{step}"
)
logger = CSVLogger(OUT / "logs")
trainer = TrainMoverTrainer(
    max_epochs=3,
    accumulate_grad_batches=4,
    gradient_clip_val=0.5,
    val_check_interval=15,
    log_every_n_steps=1,
    logger=logger,
    callbacks=[watch, checkpoint, LearningRateMonitor()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
disk = trainer.strategy.checkpoint_io
save, remove = disk.save_checkpoint, disk.remove_checkpoint
disk.save_checkpoint = lambda *a, **options: [save(*a, **options), reach("program.saved")]
disk.remove_checkpoint = lambda path: [reach("program.removing"), remove(path)]
model = Regression()
train = DataLoader(Data(890), batch_size=10, shuffle=True)
trainer.fit(model, train, DataLoader(Data(50), batch_size=4))
trainer.strategy.barrier()
rows = list(csv.reader(open(f"{logger.log_dir}/metrics.csv"))) if trainer.global_rank == 0 else []
names = sorted(each.name for each in (OUT / "checkpoints").iterdir())
best = torch.load(checkpoint.best_model_path, weights_only=False) if names else {}
finish(
    trainer.global_rank,
    model,
    history=model.history,
    losses=watch.losses,
    batches=watch.batches,
    steps=(trainer.global_step, trainer.current_epoch),
    lr=trainer.optimizers[0].param_groups[0]["lr"],
    rows=rows,
    names=names,
    best=[str(checkpoint.best_model_score), checkpoint.best_model_path.rpartition("/")[2]],
    saved=sum(v.double().sum().item() for v in best["state_dict"].values()),
    metrics={k: v.item() for k, v in trainer.callback_metrics.items()},
)
