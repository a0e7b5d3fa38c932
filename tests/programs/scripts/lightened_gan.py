"""Lightning with manual optimization: two optimizers, of which one rests every other batch."""

import lightning as L
import torch
from helper import OUT, Data, finish
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.lightning import TrainMoverTrainer as Trainer


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        self.critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        self.scores = {}

    def training_step(self, batch, batch_idx):
        real, _ = batch
        ours, theirs = self.optimizers()
        noise = torch.randn(len(real), 8)
        if batch_idx % 2 == 0:
            self.toggle_optimizer(ours)
            loss = -self.critic(self.generator(noise)).mean()
            self.log("generator", loss, prog_bar=True, on_epoch=True)
            ours.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(ours, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            ours.step()
            self.untoggle_optimizer(ours)
        self.toggle_optimizer(theirs)
        fake = self.generator(noise).detach()
        loss = torch.relu(1 - self.critic(real)).mean() + torch.relu(1 + self.critic(fake)).mean()
        self.log("critic", loss, sync_dist=True)
        theirs.zero_grad()
        self.manual_backward(loss)
        theirs.step()
        self.untoggle_optimizer(theirs)
        self.scores["last"] = self.scores.get("last", 0.0) * 0.9 + loss.item()
        return loss

    def on_train_epoch_end(self):
        for each in self.lr_schedulers():
            each.step()

    def configure_optimizers(self):
        pair = [
            torch.optim.Adam(self.generator.parameters(), 2e-3, betas=(0.5, 0.9)),
            torch.optim.Adam(self.critic.parameters(), 2e-3, betas=(0.5, 0.9)),
        ]
        return pair, [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in pair]


L.seed_everything(43)
trainer = Trainer(
    max_epochs=4,
    ddp={"find_unused_parameters": True},
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(OUT / "checkpoints", every_n_train_steps=7, save_top_k=-1)],
)
model = GAN()
trainer.fit(model, DataLoader(Data(600), batch_size=8, shuffle=True))
finish(
    trainer.global_rank,
    model,
    scores=model.scores,
    steps=(trainer.global_step, trainer.current_epoch),
    lrs=[each.param_groups[0]["lr"] for each in trainer.optimizers],
    names=sorted(each.name for each in (OUT / "checkpoints").iterdir()),
    metrics={k: v.item() for k, v in trainer.callback_metrics.items()},
)
