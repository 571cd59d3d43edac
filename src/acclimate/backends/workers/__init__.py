"""Clients in workers elsewhere: processes of this machine, or Ray actors on many."""
