"""The worker role: what one rank decides about plans, votes and broken steps.

Read in this order: ``state`` and ``effects`` (what a rank knows, what can happen, what it can do),
``chart`` (its phases), ``core`` (the state machine), ``orders`` (its part for commands), then the
shell: ``shell``, which the training thread and the control thread share.

Nothing here imports torch.
"""
