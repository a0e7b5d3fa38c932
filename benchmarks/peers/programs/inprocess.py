"""The same under NVIDIA Resiliency Extension: the function is begun again in its process."""

import os
import signal
from datetime import timedelta

import nvidia_resiliency_ext.inprocess as inprocess
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import EVERY, OUT, Batches, Model, load, optimizer_of, save, say

PORT = int(os.environ["MASTER_PORT"])
QUICK = timedelta(seconds=0.1)


@inprocess.Wrapper(
    store_kwargs={"port": PORT + 1},
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.ActiveWorldSizeDivisibleBy(1),
        inprocess.rank_assignment.MaxActiveWorldSize(int(os.environ["PEERS_ACTIVE"])),
        inprocess.rank_assignment.ShiftRanks(),
    ),
    monitor_process_logfile=f"{OUT}/monitor.{{rank}}.log",
    monitor_thread_interval=QUICK,
    monitor_process_interval=QUICK,
    heartbeat_interval=2.5 * QUICK,
    progress_watchdog_interval=2.5 * QUICK,
    last_call_wait=QUICK,
)
def main(call_wrapper: inprocess.CallWrapper = None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = PORT + 2 + call_wrapper.iteration
    store = dist.TCPStore("localhost", port, world, rank == 0, multi_tenant=True)
    limit = timedelta(seconds=2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    model = Model()
    optimizer = optimizer_of(model)
    first = load(model, optimizer)
    ddp = DistributedDataParallel(model)
    batches = Batches(rank)
    leaving = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
    for step in range(first, len(batches)):
        x, y = batches[step]
        loss = ddp(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(rank, step + 1, world)
        if rank == 0 and (step + 1) % EVERY == 0:
            save(model, optimizer, step + 1)
        if leaving:
            raise SystemExit("planned")


try:
    main()
finally:
    os._exit(0)
