"""Run the command line as `python -m acclimate`."""

from acclimate.cli.main import main

main()
