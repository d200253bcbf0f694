"""CenterFace: one face a cell of the score map, with five landmarks.

The maps lie at 1/`stride` of the input, rows y and columns x. Layout and formulas are those of
the authors' own runner (Star-Clouds/CenterFace, `centerface.py`, MIT), but for one thing: there
a box that begins outside the picture is moved inside, here it is cut.
"""

from __future__ import annotations

import numpy as np

from trtfuse.core.card import DetectTask
from trtfuse.core.errors import ItemError
from trtfuse.core.specs import Array, Arrays
from trtfuse.tasks.boxes import Decoder, Found
from trtfuse.tasks.reading import finite

_PLANES = {"score": 1, "size": 2, "offset": 2, "landmarks": 10}

# A face of 4 * e^20 pixels fits no picture, and a larger power overflows.
_LARGEST_LOG_SIZE = 20.0


def _find(task: DetectTask, outputs: Arrays, size: tuple[int, int]) -> Found:
    maps = {name: _maps(task, outputs, size, name) for name in _PLANES}
    rows, columns = np.nonzero(maps["score"][0] > task.score)
    score, log_size, offset, points = (
        one[:, rows, columns].astype(np.float64) for one in maps.values()
    )
    # All pairs are (y, x), one column a face: (2, n), and (2, 5, n) for the landmarks.
    sizes = task.stride * np.exp(np.minimum(log_size, _LARGEST_LOG_SIZE))
    corners = task.stride * (np.stack((rows, columns)) + offset + 0.5) - sizes / 2
    points = points.reshape(5, 2, -1).swapaxes(0, 1) * sizes[:, None] + corners[:, None]
    return Found(
        boxes=np.concatenate((corners[::-1], (corners + sizes)[::-1])).T,
        scores=score[0],
        labels=np.zeros(len(rows), np.intp),
        landmarks=points[::-1].T,
    )


def _maps(task: DetectTask, outputs: Arrays, size: tuple[int, int], name: str) -> Array:
    """One output as lent, checked to be maps at 1/stride of the input."""
    maps = finite(outputs, task.outputs[name])
    needed = (_PLANES[name], size[0] // task.stride, size[1] // task.stride)
    if maps.shape != needed:
        raise ItemError(
            f"output {task.outputs[name]!r} ({name}): got {maps.shape}, needs {needed} for an "
            f"input of {size[1]} x {size[0]} at stride {task.stride}."
        )
    return maps


DECODER = Decoder(needs=tuple(_PLANES), find=_find)
