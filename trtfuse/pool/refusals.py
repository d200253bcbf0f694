"""What the system refuses a pool, in words, and the way out."""

from __future__ import annotations

import errno

_WAYS = {
    errno.EMFILE: "Raise this process's limit of open files (ulimit -n).",
    errno.ENFILE: "The whole system has no open file left: end something else.",
    errno.EAGAIN: "Raise the limit of processes and threads (ulimit -u, docker run --pids-limit).",
    errno.ENOMEM: "Give it more memory, or use fewer workers and a smaller --memory.",
    errno.EROFS: "Mount a writable tmpfs there (docker run --tmpfs /dev/shm).",
    errno.ENOENT: "Mount a tmpfs there (docker run --tmpfs /dev/shm).",
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f), or use a smaller --memory.",
}
_FORBIDDEN = "Something forbids it here: rights, or a security profile (seccomp, AppArmor)."


def refused(what: str, error: OSError) -> str:
    """`what` was refused: why, and what to do.

    >>> refused("worker 0 cannot be started", OSError(errno.EMFILE, "Too many open files"))
    "worker 0 cannot be started (Too many open files). Raise this process's limit of open files (ulimit -n)."
    """  # noqa: E501 - the sentence is as long as it is
    return f"{what} ({error.strerror}). {_WAYS.get(error.errno or 0, _FORBIDDEN)}"


def no_thread(error: RuntimeError) -> str:
    """Python gives no number where a thread cannot be started."""
    return f"a thread cannot be started ({error}). {_WAYS[errno.EAGAIN]}"
