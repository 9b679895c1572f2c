"""The documentation under test: its examples run, its commands parse, its pictures are what the plans are."""
