"""Looking for the variables of the program: where they are, and what they consist of."""
