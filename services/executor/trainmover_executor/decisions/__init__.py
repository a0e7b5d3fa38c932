"""What a rank decides about its membership: a pure core and its shell."""
