"""``python -m hpcdl`` is ``hpcdl``: neither imports from the current folder."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which python -m puts first

from hpcdl.cli import main

sys.exit(main())
