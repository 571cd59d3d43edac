"""The parts of scripts/mutate.py: what is changed, which tests run what, and how a change is judged."""
