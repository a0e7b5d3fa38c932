"""Hugging Face Accelerate: accumulation, clipping, a schedule, evaluations and checkpoints."""

import torch
from helper import OUT, Data, finish
from torch import nn
from torch.utils.data import DataLoader

from trainmover_executor.frameworks.accelerate import TrainMoverAccelerator

EPOCHS = 3
torch.manual_seed(41)
accelerator = TrainMoverAccelerator(gradient_accumulation_steps=4)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=60)
train = DataLoader(Data(890), batch_size=10, shuffle=True)
evaluation = DataLoader(Data(50), batch_size=4)
model, optimizer, train, evaluation, scheduler = accelerator.prepare(
    model, optimizer, train, evaluation, scheduler
)


def evaluate():
    model.eval()
    errors = []
    for x, y in evaluation:
        with torch.no_grad():
            error = (model(x) - y).pow(2).mean(dim=1)
        errors.append(accelerator.gather_for_metrics(error))
    model.train()
    return torch.cat(errors).tolist()


history, optimizer_steps = [], 0
for epoch in range(EPOCHS):
    for step in accelerator.steps(train):
        with step as (x, y), accelerator.accumulate(model):
            loss = (model(x) - y).pow(2).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            accelerator.session.log(loss=loss)
        optimizer_steps += accelerator.sync_gradients
    history.append(accelerator.between_steps(evaluate))
    accelerator.save_state(str(OUT / f"checkpoint-{epoch}"))
assert all(len(errors) == 50 for errors in history)
finish(
    accelerator.process_index,
    model,
    history=history,
    optimizer_steps=optimizer_steps,
    lr=scheduler.get_last_lr(),
    passes=(train.iteration, evaluation.iteration),
)
