"""What `-m scaling` and `-m gpu` run."""
