"""The only package that starts processes or shares memory. Knows neither GPU nor CPU runtimes."""
