"""Memory that several ranks of a node see: mapped segments, and the flags that order access to them."""
