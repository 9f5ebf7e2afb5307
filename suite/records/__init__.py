"""What is kept in files: records, accepted baselines, calibrations, and what several records say together."""
