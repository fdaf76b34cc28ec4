"""Arrays, devices, validation, the bit contract, files and memory: what every room stands on."""
