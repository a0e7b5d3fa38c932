"""Notes which files of ours run, from the start of the process on: on ``PYTHONPATH`` of ranks."""

import recorder

recorder.install()
