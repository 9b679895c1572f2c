"""Tests of hpccoll; `make test` runs them (CONTRIBUTING.md)."""
