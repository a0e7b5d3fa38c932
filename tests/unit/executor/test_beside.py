"""A vote is behind all hooks in front of the optimizer's step, and in front of those behind it."""

from __future__ import annotations

import torch

from trainmover_executor.training.body.beside import stand_beside


def test_hooks_of_the_program_come_first_and_last_whenever_they_were_registered() -> None:
    weight, called = torch.nn.Parameter(torch.ones(1)), list[str]()
    one, other = (torch.optim.SGD([weight], lr=0.1) for _ in range(2))
    one.register_step_pre_hook(lambda *_: called.append("clips"))
    one.register_step_post_hook(lambda *_: called.append("counts"))
    for each, name in ((one, ""), (other, "other ")):
        stand_beside(
            each,
            before=lambda *_, name=name: called.append(f"{name}vote"),
            after=lambda *_, name=name: called.append(f"{name}noted"),
        )
    late = one.register_step_pre_hook(lambda *_: called.append("clips late"))
    one.register_step_post_hook(lambda *_: called.append("counts late"))
    one.step()
    assert called == ["clips", "clips late", "vote", "noted", "counts", "counts late"]
    called.clear()
    late.remove()
    one.step()
    other.step()
    assert called[:2] == ["clips", "vote"]
    assert called[-2:] == ["other vote", "other noted"]
