"""Trackside side by side with what people would use instead. Run by ``make bench``."""
