"""Campaigns against the library: fuzzed files, kills, threads, interrupts, soak; in full by ``make campaign``."""
