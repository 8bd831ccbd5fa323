"""``python -m pyrula``: the `pyrula` command where its script isn't on the path."""

import sys

from pyrula.cli import main

sys.exit(main())
