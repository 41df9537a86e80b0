"""The parts of the demo that are not its training loop."""
