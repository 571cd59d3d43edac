"""Vectorised clients: one `vmap` over a cohort, in buckets, captured as a CUDA graph where there is one."""
