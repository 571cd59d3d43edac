"""The contract: what a method, an adapter, a message and a round are. Imports torch alone."""
