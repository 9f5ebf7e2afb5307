"""Worker processes: starting them, talking with them, and telling how they ended."""
