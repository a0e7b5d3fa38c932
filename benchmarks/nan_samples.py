"""How often a NaN is seen in samples of the one rank that made it, before the reduction.

    python -m benchmarks.nan_samples --json

A NaN is put into one random element of what a random layer of a small transformer gives
(``forward``), of the gradient with respect to that (``backward``), or of the gradient of one
parameter, as a fault of the memory would (``element``). Gradients are laid into buckets from the
last layer to the first, and looked at by what a rank looks at them with.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from trainmover_executor.collectives.finite import nonfinite_in

WAYS: Final = ("forward", "backward", "element")
_WORDS, _WIDTH, _LENGTH = 500, 128, 32
_BUCKET: Final = 250_000
"""Elements: at this size of model it has several, as large ones have."""


class Layers(nn.Module):
    """Blocks of attention and two linear layers between an embedding and a linear head."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                _WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the next word, (batch, length, words)."""
        values = self.embedding(words)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def poisoned(values: torch.Tensor) -> torch.Tensor:
    """A copy with a NaN in one element."""
    copy = values.detach().clone().contiguous()
    copy.view(-1)[random.randrange(copy.numel())] = float("nan")
    return copy


def poison(way: str, output: torch.Tensor) -> torch.Tensor | None:
    """What a layer gives in place of ``output``."""
    if way == "forward":
        return output + (poisoned(output) - output.detach())
    if way == "backward":
        output.register_hook(poisoned)
    return None


def buckets(model: nn.Module) -> list[torch.Tensor]:
    """All gradients, the last layer's first."""
    found: list[torch.Tensor] = []
    parts: list[torch.Tensor] = []
    for parameter in reversed(list(model.parameters())):
        assert parameter.grad is not None
        parts.append(parameter.grad.flatten())
        if sum(map(len, parts)) > _BUCKET:
            found.append(torch.cat(parts))
            parts = []
    return [*found, torch.cat(parts)] if parts else found


def one(model: nn.Module, way: str) -> tuple[bool, bool]:
    """Whether a NaN that is put there shows in the loss, and in samples."""
    model.zero_grad()
    # Attention uses the weights of its own layers without calling those.
    layers = [each for each in model.modules() if type(each) in {nn.Linear, nn.LayerNorm}]
    hook = random.choice(layers).register_forward_hook(lambda _, __, out: poison(way, out))
    words = torch.randint(0, _WORDS, (4, _LENGTH))
    loss = functional.cross_entropy(model(words).view(-1, _WORDS), words.view(-1))
    loss.backward()
    hook.remove()
    if way == "element":
        parameter = random.choice(list(model.parameters()))
        parameter.grad = poisoned(parameter.grad)  # type: ignore[arg-type]
    return not bool(loss.isfinite()), nonfinite_in(buckets(model)) > 0


def measure(times: int, depth: int) -> dict[str, Any]:
    """For each way, how many of so many showed."""
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    model = Layers(depth)
    result: dict[str, Any] = {"times": times, "depth": depth}
    for way in WAYS:
        seen = [one(model, way) for _ in range(times)]
        result[way] = {
            "in_loss": sum(loss for loss, _ in seen),
            "in_samples": sum(sample for _, sample in seen),
            "in_either": sum(loss or sample for loss, sample in seen),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--depth", type=int, default=4, help="blocks of the transformer")
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    result = measure(options.times, options.depth)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
