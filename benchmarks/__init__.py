"""Trackside side by side with its alternatives. Run by ``make bench``."""
