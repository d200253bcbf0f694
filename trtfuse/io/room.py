"""Which errors of the file system are the folder's, and not one file's."""

from __future__ import annotations

import errno

# No space, no quota, over the process's limit, and a file system that has become read-only: the
# next file would fail in the same way, and so would ten thousand.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def is_no_room(error: BaseException) -> bool:
    """Whether nothing more can be written there."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM
