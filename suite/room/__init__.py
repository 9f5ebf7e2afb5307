"""What surrounds a measurement: quieting a process, naming what disturbs it, recording the conditions of each block."""
