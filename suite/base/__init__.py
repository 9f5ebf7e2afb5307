"""What a run is compared with in the same hour: finding it, checking it out, keeping its workers."""
