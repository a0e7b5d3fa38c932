"""The shape of nanoGPT: get_batch from an array in memory, iter_num, micro steps, estimate_loss."""

import math

import numpy as np
import torch
import torch.distributed as dist
from helper import OUT, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainmover import Session

block_size = 16
batch_size = 4
gradient_accumulation_steps = 2
eval_interval = 30
eval_iters = 3
max_iters = 100
learning_rate = 3e-3
min_lr = 3e-4
warmup_iters = 10
decay_lr = True
grad_clip = 1.0
config_keys = [
    k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, str))
]
config = {k: globals()[k] for k in config_keys}

dist.init_process_group("trainmover")
rank = dist.get_rank()
master_process = rank == 0
seed_offset = rank
torch.manual_seed(1337 + seed_offset)

tokens = np.random.default_rng(5).integers(0, 32, 4096, dtype=np.uint16)
if rank == 0:
    tokens.tofile(OUT / "train.bin")
train_data = tokens[:3600]
val_data = tokens[3600:]


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
    )
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(32, 16)
        self.wpe = nn.Embedding(block_size, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.lm_head = nn.Linear(16, 32, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        positions = torch.arange(idx.size(1))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.block(self.wte(idx) + self.wpe(positions), src_mask=mask, is_causal=True)
        logits = self.lm_head(x)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


iter_num = 0
best_val_loss = 1e9
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
model = DDP(model)
session = Session(model=model, optimizer=optimizer)


def estimate_loss():
    out = {}
    model.eval()
    with torch.no_grad():
        for split in ["train", "val"]:
            losses = torch.zeros(eval_iters)
            for k in range(eval_iters):
                X, Y = get_batch(split)
                _, loss = model(X, Y)
                losses[k] = loss.item()
            dist.all_reduce(losses)
            out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    decay_ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return min_lr + coeff * (learning_rate - min_lr)


raw_model = model.module
running_mfu = -1.0
X, Y = get_batch("train")
for step in session.steps(range(max_iters)):
    lr = get_lr(iter_num) if decay_lr else learning_rate
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = session.between_steps(estimate_loss)
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            if iter_num > 0 and master_process and not session.is_shadow:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                    "config": config,
                }
                torch.save(checkpoint, OUT / "ckpt.pt")
    with step:
        for micro_step in range(gradient_accumulation_steps):
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
            X, Y = get_batch("train")
            loss.backward()
        if grad_clip != 0.0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        session.log(loss=loss)
    lossf = loss.item() * gradient_accumulation_steps
    running_mfu = lossf if running_mfu == -1.0 else 0.9 * running_mfu + 0.1 * lossf
    iter_num += 1
finish(rank, model, iter_num=iter_num, best=best_val_loss, mfu=running_mfu)
