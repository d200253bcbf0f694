"""What a run says of itself: samples, verdict, events, metrics, the page. Knows `core` only."""
