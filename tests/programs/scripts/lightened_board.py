"""Lightning with a TensorBoardLogger, which whoever is the main process writes to."""

from pathlib import Path

import lightning as L
import torch
from helper import OUT, Data, finish
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.lightning import TrainMoverTrainer as Trainer
from trainmover_executor.worker.runtime import current_runtime


class Small(L.LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, width), nn.Dropout(0.2), nn.Linear(width, 16))

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, at):
        x, y = batch
        self.log("validation", nn.functional.mse_loss(self.net(x), y), sync_dist=True)
        current_runtime().reach("program.validating")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


def written(folder):
    events = [
        event
        for path in Path(folder).glob("events*")
        for event in EventFileLoader(str(path)).Load()
    ]
    events.sort(key=lambda event: event.wall_time)
    values = [
        (one.tag, event.step, one.tensor.float_val[0])
        for event in events
        for one in event.summary.value
        if one.tag in {"loss", "validation"}
    ]
    once = list(dict.fromkeys(values))
    assert len(values) - len(once) <= 2, "more than those of one step are there twice"
    return sorted(once)


L.seed_everything(71)
logger = TensorBoardLogger(OUT, "log")
trainer = Trainer(
    max_epochs=3,
    logger=logger,
    log_every_n_steps=1,
    val_check_interval=10,
    enable_checkpointing=False,
)
model = Small()
trainer.fit(
    model,
    DataLoader(Data(450), batch_size=5, shuffle=True),
    DataLoader(Data(60), batch_size=5),
)
main = trainer.global_rank == 0
finish(
    trainer.global_rank,
    model,
    values=written(logger.log_dir) if main else "",
    folder=sorted(each.name for each in (OUT / "log").iterdir()),
    hparams=(Path(logger.log_dir) / "hparams.yaml").read_text() if main else "",
)
