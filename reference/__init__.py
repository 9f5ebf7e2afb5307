"""Data parallelism done right, small and complete: what the suite tests by default, and the oracle it compares with.

Importing this package costs nothing: torch is loaded by the modules that use it.
"""
