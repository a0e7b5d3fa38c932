"""The file that says how jobs share a pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainmover.policy import PolicyError
from trainmover.policy.sharing import read_sharing
from trainmover_pool.sharing_file import SharingFile

GOOD = """
jobs:
  gpt:
    priority: 10
    wanted: 2
    quota: 4
    agent: --slots 4 --standbys 0 -- train.py --lr "3e-4"
    env: {TRAINMOVER_LINK_SECRET_FILE: /etc/links/gpt}
    folder: /srv/gpt
  small:
    agent: [--slots, "2", --, train.py]
settle: 2m
"""


def test_what_is_said_is_read() -> None:
    sharing = read_sharing(GOOD, name="pool.yaml")
    gpt, small = sharing.jobs["gpt"], sharing.jobs["small"]
    assert (gpt.priority, gpt.wanted, gpt.quota) == (10, 2, 4)
    assert gpt.agent == ("--slots", "4", "--standbys", "0", "--", "train.py", "--lr", "3e-4")
    assert (small.priority, small.wanted, small.quota) == (0, 1, None)
    assert (sharing.settle_s, sharing.silent_s) == (120.0, 15.0)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "this has to be said"),
        ("- gpt", 1, "'jobs:' with one entry for each job"),
        ("jobs:\n  gpt:\n    wantd: 1\n    agent: -- a", 3, "Did you mean 'wanted'?"),
        ("jobs:\n  gpt:\n    quota: -1\n    agent: -- a", 3, "greater than or equal to 0"),
        ("jobs:\n  gpt:\n    agent: train.py", 3, "write it after --"),
        ("jobs:\n  gpt:\n    agent: --job x -- a", 3, "is said by the machine itself"),
        ("jobs:\n  gpt:\n    agent: --pool=x -- a", 3, "is said by the machine itself"),
        ("jobs:\n  gpt:\n    agent: -- a 'b", 3, "close what is quoted"),
        ("jobs:\n  g.t:\n    agent: -- a", 1, "letters, digits"),
        ("jobs:\n  gpt: 3", 2, "'key: value' lines are needed here"),
        ("jobs:\n  gpt:\n    agent: -- a\nsettle: soon", 4, "is no duration"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_sharing(text, name="pool.yaml")
    assert f"pool.yaml:{line}: " in str(caught.value)
    assert words in str(caught.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_bytes(b"\xff\xfe\x00jobs")
    with pytest.raises(PolicyError, match="no text in UTF-8"):
        SharingFile(file).load()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pool.yaml"
    os.mkfifo(pipe)
    with pytest.raises(PolicyError, match="A pipe can be read once only"):
        SharingFile(pipe).load()


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        SharingFile(tmp_path / "none.yaml").load()
