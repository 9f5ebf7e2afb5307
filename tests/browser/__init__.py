"""Tests in a browser: pages load nothing else, run no script, fit on a phone and can be used by keyboard."""
