"""Where a rank is: in its program, in its data, between which votes."""
