"""Sources and sinks: folders of pictures in, pictures, arrays and results.jsonl out."""
