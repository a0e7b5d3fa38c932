"""Hugging Face Accelerate with a gradient scaler that skips steps whose gradients overflow."""

import torch
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.accelerate import TrainMoverAccelerator

torch.manual_seed(42)
accelerator = TrainMoverAccelerator(gradient_accumulation_steps=2)
accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=7)
accelerator.native_amp = True
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=90)
loader = DataLoader(Data(960), batch_size=8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
skipped = 0

for epoch in range(2):
    for step in accelerator.steps(loader):
        with step as (x, y), accelerator.accumulate(model):
            loss = (model(x) - y).float().pow(2).mean()
            if step.index % 13 == 12:
                loss = loss * float("inf")
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.unscale_gradients()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            accelerator.session.log(loss=loss)
        skipped += accelerator.optimizer_step_was_skipped and accelerator.sync_gradients
finish(
    accelerator.process_index,
    model,
    skipped=skipped,
    scale=accelerator.scaler.get_scale(),
    lr=scheduler.get_last_lr(),
)
