"""`python -m hpccoll.cli` is the command `hpccoll`."""

import sys

from hpccoll.cli import main

sys.exit(main())
