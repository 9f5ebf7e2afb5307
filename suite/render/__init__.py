"""Ways to show a record: the terminal and Markdown. They read the record alone, and know neither torch nor pytest."""
