"""Files of rows (`open_rows`), models and codes, and formats of other software."""

from scq_gpu.io.code_tables import read_codes
from scq_gpu.io.models import ModelFileError
from scq_gpu.rows.sources import RowFileError, RowSource, open_rows

__all__ = ["ModelFileError", "RowFileError", "RowSource", "open_rows", "read_codes"]
