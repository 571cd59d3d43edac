"""Serving live models: many clients' requests in one step, and a log from which their states can be made again."""
