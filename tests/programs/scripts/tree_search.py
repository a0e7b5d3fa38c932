"""Self-play: a tree of nodes with parents grows while it trains, and its root moves down."""

import math
import random

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


class Node:
    def __init__(self, state, parent=None):
        self.state, self.parent = state, parent
        self.visits, self.value, self.children = 0, 0.0, {}

    def best(self):
        def score(child):
            return child.value / (1 + child.visits) + math.sqrt(1 + self.visits) / (
                1 + child.visits
            )

        return max(self.children.values(), key=lambda child: (score(child), child.state))


def search(root, net, simulations):
    for _ in range(simulations):
        node = root
        while node.children:
            node = node.best()
        for move in range(3):
            node.children[move] = Node((7 * node.state + move) % 1009, node)
        with torch.no_grad():
            value = net(features(node.state)).item()
        while node is not None:
            node.visits, node.value = node.visits + 1, node.value + value
            node = node.parent


def features(state):
    return torch.tensor([math.sin(state * k) for k in range(1, 9)])


def count(node):
    return 1 + sum(count(each) for each in node.children.values())


dist.init_process_group("gloo")
rank = dist.get_rank()
random.seed(rank)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
root, history, games = Node(rank), [], 0

for step in session.steps(range(90)):
    with step:
        states = [root.state, *(child.state for child in root.children.values())]
        x = torch.stack([features(state) for state in states])
        loss = (model(x) - root.visits / 10).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    search(root, model.module, 3)
    best = root.best()
    history.append((root.state, root.visits, best.state))
    root, best.parent = best, None
    if step.index % 11 == 10:
        root, games = Node(random.randrange(1000)), games + 1
finish(rank, model, history=history, games=games, size=count(root), value=root.value)
