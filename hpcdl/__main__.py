"""``hpcdl`` and ``python -m hpcdl``: neither imports from the current folder."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which python -m puts first

from hpcdl.exit_codes import INTERRUPTED


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from hpcdl import cli  # here, because Ctrl-C may come while it is imported

        return cli.main()
    except (KeyboardInterrupt, RuntimeError) as error:
        if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__cause__)):
            raise  # a class that is being made when Ctrl-C comes raises RuntimeError before Python 3.12
        print("hpcdl: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
