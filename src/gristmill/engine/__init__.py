"""The engine: scheduler, steps, sampling glue, output, plan, loader, and the thread itself."""
