"""Sources and sinks: folders of pictures and videos in, the like, arrays and results.jsonl out."""
