"""What a rank does with a user's training script: run it as it is, and stop it between two updates (worker's side)."""
