"""Real ranks, as the integration tests have them."""

from tests.integration.conftest import nursery, rules, start, undisturbed

__all__ = ["nursery", "rules", "start", "undisturbed"]
