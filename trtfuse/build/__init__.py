"""From a proven graph to an engine with its manifest: plan, build, gates, store."""
