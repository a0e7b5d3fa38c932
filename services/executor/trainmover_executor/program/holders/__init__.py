"""What holds the variables of the program: names of frames and modules, hooks, data sets."""
