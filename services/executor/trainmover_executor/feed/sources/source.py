"""What a feed wants of a way to read a loader."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from trainmover.errors import TrainMoverError

__all__ = ["DataEndedError", "How", "Source"]

How = Literal["index", "state", "draw"]
"""How a place is reached: without loading what is before it, by the loader's own state, or by
drawing what is before it and dropping it."""


class DataEndedError(TrainMoverError):
    """The data ends before the place that was asked for."""

    def __init__(self, loader: Any, *, at: int, wanted: int) -> None:
        super().__init__(
            f"{type(loader).__name__} ends after {at} batches, and {wanted} of it were used "
            "elsewhere. A loader must give the same batches to every process of a rank: make it "
            "from the rank and from seeds, not from the machine."
        )


class Source(Protocol):
    """One loader, pass by pass. ``Feed`` counts batches; a source makes them and finds places.

    A mark says where in the data a source is, as a portable tree; that of a pass has an ``id``,
    equal for equal passes. All marks of a source are for the same source in another process.

    Attributes:
        how: How it reaches a place.
    """

    how: How

    @property
    def follows(self) -> bool:
        """Whether a standby is to draw and drop what training has used, while it waits."""

    @property
    def prepares(self) -> bool:
        """Whether ``prepare`` gets nearer to a place, and gives up the pass that is under way."""

    @property
    def drops(self) -> float:
        """Batches that are rather drawn and dropped than avoided by resuming anew."""

    @property
    def loads_ahead(self) -> bool:
        """Whether somebody else than the program loads batches, before they are drawn."""

    def lead(self, at: int) -> int:
        """Batches from ``at`` on that training uses, at the least, while workers begin."""

    def begin(self) -> None:
        """Begin a new pass."""

    def begin_at(self, batches: int) -> None:
        """Begin a new pass that many batches in; ``how`` is ``index``."""

    def pass_over(self) -> None:
        """Let a pass go by without loading it; ``how`` is ``index``."""

    def draw(self) -> Any:
        """The next batch of the pass.

        Raises:
            StopIteration: There is none.
        """

    def drop(self, left: int) -> None:
        """Draw a batch that nobody wants, of ``left`` such batches in a row.

        Raises:
            StopIteration: There is none.
        """

    @property
    def unloaded(self) -> int:
        """Batches from here on of which nothing may have been loaded: they can only be dropped."""

    def mark(self) -> dict[str, Any]:
        """The mark of the pass, after a batch was drawn; takes microseconds."""

    def goes_on(self, mark: dict[str, Any]) -> bool:
        """Whether the pass of ``mark`` is under way and what was drawn of it is the same.

        What ``mark`` says of the pass behind that is heeded when it is drawn.
        """

    def rest_mark(self) -> dict[str, Any]:
        """The mark of a source between two passes."""

    def rest(self, mark: dict[str, Any]) -> None:
        """Be where ``rest_mark`` returned ``mark``; no pass is under way."""

    def end(self) -> None:
        """The pass, if there is one, is over or given up."""

    def rewind(self) -> None:
        """Begin with the first batch of all again; no pass is under way."""

    def prepare(self, mark: dict[str, Any], at: int, *, until: float) -> bool:
        """Make ``resume`` to that or a later place of the pass quick, without loading.

        Args:
            mark: Of the pass.
            at: Batches before the place.
            until: When to stop (``time.monotonic``).

        Returns:
            Whether nothing is left to prepare.
        """

    def resume(self, mark: dict[str, Any], at: int) -> int:
        """Begin the pass of ``mark`` as close before the place after ``at`` batches as it can.

        Returns:
            Batches before where it is.
        """

    def arrive(self, mark: dict[str, Any]) -> None:
        """The pass is where ``mark`` was taken: put back what loading has changed there."""

    def recount(self, mark: dict[str, Any]) -> None:
        """As many passes count as begun as when ``mark`` was taken: others are to begin again."""

    def beside(self) -> dict[str, Any]:
        """What drawing changes besides the place: generator objects, attributes of samplers."""

    def put_beside(self, state: dict[str, Any]) -> None:
        """Put back what ``beside`` returned, in this process: batches are given again."""
