"""What the programs share: data, and what they leave behind for the comparison."""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

OUT = Path(sys.argv[1])
DEVICE = os.environ.get("DEVICE", "cpu")


class Data(torch.utils.data.Dataset):
    def __init__(self, length=4096, width=16):
        self.length, self.width = length, width

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = torch.randn(self.width, generator=torch.Generator().manual_seed(index))
        return x, x.roll(1)


def finish(rank, *models, **variables):
    """Leave a hash of the models and the program's own variables."""
    digest = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode())
            local = value.to_local() if isinstance(value, DTensor) else value
            digest.update(local.detach().cpu().contiguous().numpy().tobytes())
    result = {"models": digest.hexdigest(), **{k: repr(v) for k, v in variables.items()}}
    (OUT / f"result-{rank}.json").write_text(json.dumps(result))
