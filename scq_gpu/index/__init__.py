"""Indexes over vectors: an encoder, its codes, and the vectors that re-rank what they find."""
