"""Direct links between ranks: handshake, the exchange of bytes, and the table that keeps them."""
