"""Flags to one frozen options object to one call. The only place that prints."""
