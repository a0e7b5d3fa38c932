"""Lightning: a callback keeps sums on the trainer, and tells the data set which epoch it is."""

import lightning as L
import torch
import torch.nn.functional as F
from helper import finish
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainmover_executor.frameworks.lightning import TrainMoverTrainer


class Tokens(Dataset):
    def __init__(self):
        self.tokens = torch.randint(0, 30, (3000,), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return 120

    def __getitem__(self, index):
        at = 1 + self.real_epoch * 120 * self.world + index * self.world + self.rank
        begin = at * at * at % 2903
        chunk = self.tokens[begin : begin + 9]
        return chunk[:-1], chunk[1:], at


class Keeps(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        dataset = trainer.train_dataloader.dataset
        dataset.rank, dataset.world = trainer.global_rank, trainer.world_size
        dataset.real_epoch = trainer.current_epoch

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 0 and trainer.is_global_zero:
            trainer.my_sum = trainer.my_count = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero:
            trainer.my_sum += float(outputs["loss"])
            trainer.my_count += 1
            trainer.my_mean = trainer.my_sum / trainer.my_count

    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            trainer.my_sum = trainer.my_count = 0


class Words(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 30)
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y, at = batch
        self.seen.append(int(at[0]))
        hidden, _ = self.rnn(self.embed(x))
        loss = F.cross_entropy(self.out(hidden).flatten(0, 1), y.flatten())
        self.trainer.session.log(loss=loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


L.seed_everything(0)
trainer = TrainMoverTrainer(
    max_epochs=3,
    callbacks=[Keeps()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    use_distributed_sampler=False,
)
model = Words()
trainer.fit(model, DataLoader(Tokens(), batch_size=4))
finish(trainer.global_rank, model, seen=model.seen, mean=getattr(trainer, "my_mean", None))
