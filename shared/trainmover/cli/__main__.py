"""``python -m trainmover.cli`` is the ``trainmover`` command."""

from trainmover.cli import main

main()
