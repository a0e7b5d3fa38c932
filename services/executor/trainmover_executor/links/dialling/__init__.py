"""How a link comes about: listen, dial, prove a secret."""
