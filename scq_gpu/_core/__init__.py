"""Arrays, devices, validation, the bit contract, files, memory and threads: the base of every subpackage."""
