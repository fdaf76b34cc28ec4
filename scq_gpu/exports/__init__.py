"""A linear map ``[x . w_k >= t_k]`` handed to other libraries, each in a module of its own that imports it when asked.

Every function takes W' (n_bits, d) and t (n_bits,) as float32 arrays on the host; `scq_gpu.linear` makes them methods.
"""
