"""One machine's Neuron hardware as sysfs, /dev and udev show it."""
