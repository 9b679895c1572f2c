"""How bytes move inside one group.  A transport only starts work and tests it; it knows no plan."""
