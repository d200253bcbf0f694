"""What happens between pixels and tensors: one file a task, registered in `table`."""
