"""Lightning over torchdata's StatefulDataLoader, and a distributed checkpoint behind each epoch."""

import lightning as L
import torch
import torch.distributed.checkpoint as dcp
from helper import OUT, Data, finish
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torchdata.stateful_dataloader import StatefulDataLoader

from trainmover_executor.frameworks.lightning import TrainMoverTrainer as Trainer


class Saver(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        folder = OUT / f"epoch-{trainer.current_epoch}"
        trainer.session.between_steps(
            lambda: dcp.save({"model": get_model_state_dict(module)}, checkpoint_id=str(folder))
        )


class Small(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 24), nn.Dropout(0.2), nn.Linear(24, 16))

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


L.seed_everything(67)
trainer = Trainer(
    max_epochs=3, logger=CSVLogger(OUT, "log"), callbacks=[Saver()], enable_checkpointing=False
)
model = Small()
trainer.fit(model, StatefulDataLoader(Data(450), batch_size=5, shuffle=True))
finish(trainer.global_rank, model, saved=sorted(each.name for each in OUT.glob("epoch-*")))
