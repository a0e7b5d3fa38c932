"""What comes in front of an optimizer's step."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from trainmover_executor.training.body.vote import Voting


@pytest.mark.parametrize(("before", "after"), [(False, False), (False, True), (True, True)])
def test_a_step_is_noted_for_a_later_vote_only_where_it_was_not_voted_for(
    before: bool, after: bool
) -> None:
    """The vote that has the next ones come at the end is itself in front of its optimizer.

    Noted once more, the next slot was taken to hold units that nobody had sent.
    """
    state = SimpleNamespace(votes_at_end=before)
    following = Mock()
    voting = Voting(
        Mock(decisions=Mock(state=state)),
        Mock(committed=7),
        private_state=Mock(),
        following=following,
        timing=Mock(),
    )
    voting.begin_step(redone=False)
    voting.before_optimizer(0, lambda: setattr(state, "votes_at_end", after))
    assert following.note.called == before
