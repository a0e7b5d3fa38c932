"""``python -m trainmover_console.cli`` is the ``trainmover`` command."""

from trainmover_console.cli import main

main()
