"""Values of the program's variables: what can be carried, as what, and back."""
