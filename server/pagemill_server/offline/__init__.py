"""What `llm.LLM` is made of: its arguments as configs, the run of many requests over an engine, and what comes back.

Synchronous and without HTTP; imports neither torch nor the model.
"""
