"""Text work: templates, tokenising and back, stop strings. Runs in the text threads, never on the engine's or the event loop."""
