"""Sources and sinks: folders of pictures, results.jsonl."""
