"""``python -m scq_gpu.cli``."""

from scq_gpu.cli import end

end()
