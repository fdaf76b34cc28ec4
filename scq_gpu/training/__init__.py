"""The maths of a fit: the loop of sign passes and V steps, where it starts, and the V steps themselves.

T. Hoang, T.-T. Do, H. Le, D.-K. Le-Tan, N.-M. Cheung, "Simultaneous Compression and Quantization: A Joint Approach for
Efficient Unsupervised Hashing", Computer Vision and Image Understanding, 2019. Algorithms and equations cited in this
package are those of that paper.

V steps are pure functions from ``lam`` and ``M`` to ``V`` in the eigenbasis of the covariance. ``lam (D,)`` are the
eigenvalues of X'X / n, ``M = X'B / n`` is (D, L), and every function takes a leading batch axis over independent
problems: ``lam (D,)`` or ``(R, D)``, ``M (R, D, L)``. None moves data to the host, unless its docstring says so.
"""
