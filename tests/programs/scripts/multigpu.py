"""The shape of PyTorch's DDP tutorial: a Trainer with a snapshot that it goes on from."""

import os

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.global_rank = dist.get_rank()
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model)
        self.session = Session(model=self.model, optimizer=optimizer)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = torch.nn.functional.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()
        self.session.log(loss=loss)

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for step in self.session.steps(self.train_data):
            with step as (source, targets):
                self._run_batch(source, targets)

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def load_train_objs():
    train_set = Data(960)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    return train_set, model, optimizer


def main(save_every, total_epochs, batch_size, snapshot_path):
    dist.init_process_group("trainmover")
    torch.manual_seed(75)
    dataset, model, optimizer = load_train_objs()
    train_data = DataLoader(
        dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset)
    )
    trainer = Trainer(model, train_data, optimizer, save_every, snapshot_path)
    trainer.train(total_epochs)
    finish(dist.get_rank(), trainer.model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(1, 3, 8, str(OUT / "snapshot.pt"))
