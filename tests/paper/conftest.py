"""Real ranks, as the integration tests have them."""

from tests.integration.conftest import nursery, start, undisturbed

__all__ = ["nursery", "start", "undisturbed"]
