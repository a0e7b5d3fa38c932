"""The shape of PyTorch's ImageNet example: train(), validate(), meters, StepLR, best accuracy."""

import shutil
import time
from enum import Enum

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

best_acc1 = 0


class Labelled(Data):
    def __getitem__(self, index):
        x, _ = super().__getitem__(index)
        return x, index % 4


class Summary(Enum):
    NONE = 0
    AVERAGE = 1
    SUM = 2
    COUNT = 3


class AverageMeter:
    def __init__(self, name, fmt=":f", summary_type=Summary.AVERAGE):
        self.name = name
        self.fmt = fmt
        self.summary_type = summary_type
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count

    def __str__(self):
        fmtstr = "{name} {val" + self.fmt + "} ({avg" + self.fmt + "})"
        return fmtstr.format(**self.__dict__)


class ProgressMeter:
    def __init__(self, num_batches, meters, prefix=""):
        self.batch_fmtstr = self._get_batch_fmtstr(num_batches)
        self.meters = meters
        self.prefix = prefix
        self.lines = []

    def display(self, batch):
        entries = [self.prefix + self.batch_fmtstr.format(batch)]
        entries += [str(meter) for meter in self.meters if meter.name != "Time"]
        self.lines.append("\t".join(entries))

    def _get_batch_fmtstr(self, num_batches):
        num_digits = len(str(num_batches // 1))
        fmt = "{:" + str(num_digits) + "d}"
        return "[" + fmt + "/" + fmt.format(num_batches) + "]"


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / batch_size)
            for k in topk
        ]


def train(session, train_loader, model, criterion, optimizer, epoch):
    batch_time = AverageMeter("Time", ":6.3f", Summary.NONE)
    losses = AverageMeter("Loss", ":.4e", Summary.NONE)
    top1 = AverageMeter("Acc@1", ":6.2f", Summary.NONE)
    progress = ProgressMeter(
        len(train_loader), [batch_time, losses, top1], prefix=f"Epoch: [{epoch}]"
    )
    model.train()
    end = time.time()
    for i, step in enumerate(session.steps(train_loader)):
        with step as (images, target):
            output = model(images)
            loss = criterion(output, target)
            (acc1,) = accuracy(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if i % 10 == 0:
            progress.display(i + 1)
    return progress.lines, losses.avg


def validate(val_loader, model, criterion):
    def run_validate(loader, base_progress=0):
        with torch.no_grad():
            for i, (images, target) in enumerate(loader):
                i = base_progress + i
                output = model(images)
                loss = criterion(output, target)
                (acc1,) = accuracy(output, target)
                losses.update(loss.item(), images.size(0))
                top1.update(acc1[0].item(), images.size(0))

    losses = AverageMeter("Loss", ":.4e", Summary.NONE)
    top1 = AverageMeter("Acc@1", ":6.2f", Summary.AVERAGE)
    model.eval()
    run_validate(val_loader)
    top1.all_reduce()
    losses.all_reduce()
    return top1.avg


def save_checkpoint(state, is_best, filename):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, filename.with_name("model_best.pth"))


def main():
    global best_acc1
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(70)
    net = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    model = DistributedDataParallel(net)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    train_data, val_data = Labelled(960), Labelled(200)
    train_sampler = DistributedSampler(train_data)
    val_sampler = DistributedSampler(val_data, shuffle=False, drop_last=True)
    train_loader = DataLoader(train_data, batch_size=8, sampler=train_sampler)
    val_loader = DataLoader(val_data, batch_size=32, sampler=val_sampler)
    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    told = []
    for epoch in range(3):
        train_sampler.set_epoch(epoch)
        lines, mean = train(session, train_loader, model, criterion, optimizer, epoch)
        told.append((lines, mean))
        acc1 = session.between_steps(lambda: validate(val_loader, model, criterion))
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if rank == 0 and not session.is_shadow:
            save_checkpoint(
                {
                    "epoch": epoch + 1,
                    "state_dict": model.state_dict(),
                    "best_acc1": best_acc1,
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                },
                is_best,
                OUT / "checkpoint.pth",
            )
    finish(rank, model, best=best_acc1, told=told)


if __name__ == "__main__":
    main()
