"""What training takes, on paper: the memory of a model on its devices, and the time of a step."""
