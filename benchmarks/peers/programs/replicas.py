"""The same under torchft: each machine is a replica group of one rank."""

import os
import signal
from datetime import timedelta

import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.manager import WorldSizeMode
from workload import Batches, Model, optimizer_of, say

spares = WorldSizeMode.FIXED_WITH_SPARES
rank = int(os.environ["PEERS_RANK"])
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
model = Model()
plain = optimizer_of(model)
leaving = []
signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))


def state_dict():
    return {"model": model.state_dict(), "optimizer": plain.state_dict()}


def load_state_dict(state):
    model.load_state_dict(state["model"])
    plain.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
    min_replica_size=int(os.environ["PEERS_LEAST"]),
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"machine{rank}_",
    timeout=timedelta(seconds=30),
    quorum_timeout=timedelta(seconds=60),
    rank=0,
    world_size=1,
    store_addr="localhost",
    store_port=store.port,
    world_size_mode=spares if os.environ.get("PEERS_SPARES") else WorldSizeMode.DYNAMIC,
)
ddp = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, plain)
batches = Batches(rank)
while manager.current_step() < len(batches) and not leaving:
    before = manager.current_step()
    x, y = batches[before]
    optimizer.zero_grad()
    loss = ddp(x, y)
    loss.backward()
    optimizer.step()
    if manager.current_step() > before:
        say(rank, manager.current_step(), manager.num_participants())
manager.shutdown(wait=False)
os._exit(0)
