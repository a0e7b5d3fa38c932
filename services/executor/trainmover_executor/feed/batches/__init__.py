"""A batch in the body of a step: in parts (``microbatches``), and as it was drawn (``kept``)."""
