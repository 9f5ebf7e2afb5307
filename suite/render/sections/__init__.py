"""The sections of a run's page, each made once from its record for every output."""
