"""Scaling studies: measured in one job over more and more of its nodes, or priced for machines elsewhere."""
