"""YOLOv8 and its kin: one column an anchor, [x, y, width, height, one score a class].

Boxes are centred on (x, y), in pixels of the input; the scores are past their sigmoid and there
is no objectness. An anchor speaks for its best class only, as in the ultralytics runner.
"""

from __future__ import annotations

import numpy as np

from trtfuse.core.card import DetectTask
from trtfuse.core.errors import ItemError
from trtfuse.core.specs import Arrays
from trtfuse.tasks.boxes import Decoder, Found
from trtfuse.tasks.reading import finite


def _find(task: DetectTask, outputs: Arrays, _size: tuple[int, int]) -> Found:
    output = finite(outputs, task.outputs["boxes"])
    rows = 4 + len(task.labels)
    if output.ndim != 2 or len(output) != rows:
        raise ItemError(
            f"output {task.outputs['boxes']!r}: got {output.shape}, needs ({rows}, anchors): "
            f"4 for the box and one for each of the card's {len(task.labels)} labels."
        )
    scores = output[4:].max(axis=0).astype(np.float64)
    anchors = np.nonzero(scores > task.score)[0]
    centres = output[:2, anchors].T.astype(np.float64)
    halves = output[2:4, anchors].T.astype(np.float64) / 2
    return Found(
        boxes=np.hstack((centres - halves, centres + halves)),
        scores=scores[anchors],
        labels=output[4:, anchors].argmax(axis=0),
    )


DECODER = Decoder(needs=("boxes",), find=_find)
