"""Where the stages of detection run: in the agents, or here. See ``docs/concepts/detection.md``."""
