"""What happens between pixels and tensors: one file a task, one table."""
