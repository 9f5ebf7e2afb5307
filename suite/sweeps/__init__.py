"""Accuracy over batch, learning rate and world size: the grid, its file, and the training of its nets."""
