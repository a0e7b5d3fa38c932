"""Accelerate with torchdata's loaders, and a distributed checkpoint behind each epoch."""

import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import DataLoaderConfiguration
from helper import OUT, Data, finish
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.accelerate import TrainMoverAccelerator as Accelerator

torch.manual_seed(5)
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
model = nn.Sequential(nn.Linear(16, 24), nn.Dropout(0.2), nn.Linear(24, 16))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
loader = DataLoader(Data(600), batch_size=5, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def save():
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(parts, checkpoint_id=str(OUT / f"epoch-{epoch}"))


for epoch in range(2):
    for step in accelerator.steps(loader):
        with step as (x, y):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.session.log(loss=loss)
    accelerator.between_steps(save)
saved = sorted(each.name for each in OUT.glob("epoch-*"))
finish(accelerator.process_index, model, saved=saved)
