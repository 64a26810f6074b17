"""`python -m filmgate` is the `filmgate` command."""

import sys


def run() -> None:
    """The program of the package."""
    try:
        from filmgate.cli import main  # noqa: PLC0415 - Ctrl-C while it is imported is no error of the program
        from filmgate.cli.quick_exit import quick_exit  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(130)
    with quick_exit():
        main()


if __name__ == "__main__":
    run()
