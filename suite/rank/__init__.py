"""What one worker process does: its commands, and the trainer that it times. Most of it loads torch."""
