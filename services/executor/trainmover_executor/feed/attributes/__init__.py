"""What a pass over the data depends on besides random numbers: told with it, begun with again."""
