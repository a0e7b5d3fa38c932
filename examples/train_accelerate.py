"""Train a classifier with Hugging Face Accelerate, movable by TrainMover.

    pip install 'trainmover[accelerate]'
    trainmover run --slots 2 --standbys 1 examples/train_accelerate.py --epochs 3

The lines marked with (*) are all that differs from the usual loop of Accelerate.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainmover_executor.frameworks.accelerate import TrainMoverAccelerator as Accelerator  # (*)


def data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :10].argmax(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoints", default="")
    options = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
    train = DataLoader(data(4000, seed=1), batch_size=16, shuffle=True)
    test = DataLoader(data(500, seed=2), batch_size=64)
    model, optimizer, train, test, scheduler = accelerator.prepare(
        model, optimizer, train, test, scheduler
    )

    def evaluate():
        model.eval()
        right = []
        for inputs, labels in test:
            with torch.no_grad():
                answers = model(inputs).argmax(dim=1)
            right.append(accelerator.gather_for_metrics(answers == labels))
        model.train()
        return torch.cat(right).float().mean().item()

    for epoch in range(options.epochs):
        for step in accelerator.steps(train):  # (*)
            with step as (inputs, labels), accelerator.accumulate(model):  # (*)
                loss = F.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                accelerator.session.log(loss=loss)  # (*) to compare two runs
        accuracy = accelerator.between_steps(evaluate)  # (*)
        if accelerator.is_main_process:
            print(f"epoch {epoch}  accuracy {accuracy:.3f}", flush=True)
        if options.checkpoints:
            accelerator.save_state(f"{options.checkpoints}/epoch-{epoch}")


if __name__ == "__main__":
    main()
