"""Data in blocks: rows of arrays, files and Dask arrays, and the passes over them."""
