"""``python -m scq_gpu.cli``."""

import sys

from scq_gpu.cli import main

sys.exit(main())
