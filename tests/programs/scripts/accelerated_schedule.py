"""Accelerate: gradients of two batches are accumulated, and the schedule steps in the body."""

import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from helper import finish
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmover_executor.frameworks.accelerate import TrainMoverAccelerator as Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(42)
model = nn.Linear(12, 3)
x = torch.randn(1080, 12, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(x, torch.arange(1080) % 3), shuffle=True, batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 400)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

rates = []
for step in accelerator.steps(loader):
    with step as (x, y), accelerator.accumulate(model):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.session.log(loss=loss)
    rates.append(scheduler.get_last_lr()[0])
finish(accelerator.process_index, model, rates=rates)
