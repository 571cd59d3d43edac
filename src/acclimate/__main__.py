"""Run the command line as `python -m acclimate`."""

import sys

from acclimate.cli.main import main

sys.argv[0] = "acclimate"  # what results say they were made by
main()
