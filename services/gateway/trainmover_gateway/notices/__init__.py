"""What others know about machines, turned into ``machine.noticed`` facts.

``watch`` publishes changes of what a source says; ``kubernetes`` and ``slurm`` are sources that are
asked every few seconds, ``http`` is an endpoint that others call.
"""
