"""Reduction operators: one table of which dtypes each takes, and how elements are combined on hosts."""
