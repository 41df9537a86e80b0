"""``python -m trackside``: the command, where its script is not on the path."""

import sys

from trackside.cli import main

sys.exit(main())
