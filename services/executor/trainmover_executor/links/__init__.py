"""Direct links between ranks: handshake, the duplex byte pump, and the book that keeps them."""
