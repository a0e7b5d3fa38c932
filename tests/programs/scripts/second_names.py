"""Objects of the program with several names: views are taken from a stack, tasks are shuffled."""

import random

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


class Task:
    def __init__(self, uid):
        self.uid, self.used = uid, 0
        self.image = torch.randn(12, generator=torch.Generator().manual_seed(uid))


class Note:
    def __init__(self, step, task):
        self.step, self.task = step, task


dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(rank)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(12, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
tasks = [Task(uid) for uid in range(24)]
stack, current, best, best_loss = None, tasks[0], None, 9e9
order, notes, last, seen = tasks[:8], [], None, []

for step in session.steps(range(1, 91)):
    with step as iteration:
        if not stack:
            stack = tasks.copy()
        view = stack.pop(random.randint(0, len(stack) - 1))
        seen.append((view.uid, current.uid, order[iteration % 8].uid))
        current.used += 1
        other = order[iteration % 8].image
        loss = (model(view.image) - current.image).abs().mean() + (
            model(other) - other
        ).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if iteration % 7 == 0:
        current = random.choice(tasks)
    if iteration % 12 == 0:
        random.shuffle(order)
    if loss.item() < best_loss:
        best_loss, best = loss.item(), current
    if iteration % 5 == 0:
        last = Note(iteration, best)
        notes.append(last)
    if notes and last is notes[-1]:
        last.task.used += 1
finish(
    rank,
    model,
    seen=seen,
    left=[each.uid for each in stack],
    names=(current.uid, best.uid, last.step, last.task.uid),
    order=[each.uid for each in order],
    notes=[(each.step, each.task.uid) for each in notes],
    used=[(each.uid, each.used) for each in tasks],
)
