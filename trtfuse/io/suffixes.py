"""File names that are taken for pictures and videos; what is inside is told by content alone."""

from __future__ import annotations

PICTURES = frozenset(
    {".apng", ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpe", ".jpeg", ".jpg"}
    | {".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
VIDEOS = frozenset(
    {".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"}
    | {".ogv", ".ts", ".webm", ".wmv"}
)
ALL = PICTURES | VIDEOS
