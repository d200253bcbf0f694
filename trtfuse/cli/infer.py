"""`trtfuse infer`: flags to InferOptions, progress and the closing table to the terminal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from trtfuse.cli.build import parse_precision
from trtfuse.core.errors import UsageError
from trtfuse.core.options import (
    InferOptions,
    ObservingOptions,
    OnError,
    PictureFormat,
    ReadingOptions,
    WritingOptions,
)
from trtfuse.core.report import Progress
from trtfuse.core.units import parse_bytes, parse_pairs

_DEFAULT = InferOptions(source=Path())
_WRITING = _DEFAULT.writing
_OBSERVING = _DEFAULT.observing


def infer(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures and videos, or one of them.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where results go. Default: FOLDER-out.")
    ] = _DEFAULT.output,
    model: Annotated[
        str | None, typer.Option(help="Model under engines/. Default: the only one.")
    ] = _DEFAULT.model,
    engine: Annotated[
        str | None, typer.Option(help="One engine's folder name. Default: the only one that fits.")
    ] = _DEFAULT.engine,
    precision: Annotated[
        str | None, typer.Option(help="Of the engines. Default: what there is.")
    ] = None,
    engines: Annotated[Path, typer.Option(help="Folder of engines.")] = _DEFAULT.engines,
    devices: Annotated[
        str | None, typer.Option(help="cpu, or cpu:N for N workers on it. Default: what is there.")
    ] = _DEFAULT.devices,
    gpus: Annotated[
        str | None, typer.Option(help="all, or some: 0,1, or their UUIDs.")
    ] = _DEFAULT.gpus,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            "--instances",
            help="Workers per device, or auto: as many as a GPU's memory holds. Default: 1.",
        ),
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(
            help="Batches in flight in a worker on a GPU. Default: 4, or as many as find room."
        ),
    ] = _DEFAULT.lanes,
    cuda_graph: Annotated[
        bool,
        typer.Option("--cuda-graph/--no-cuda-graph", help="Record a GPU's work and replay it."),
    ] = _DEFAULT.cuda_graph,
    batch: Annotated[
        int | None, typer.Option(help="Items in one batch. Default: the engine's best.")
    ] = _DEFAULT.batch,
    memory: Annotated[
        str, typer.Option(help="Upper limit of the shared memory ring, as 512MiB or 2GiB.")
    ] = f"{_DEFAULT.memory_bytes >> 20}MiB",
    feeders: Annotated[
        int | None, typer.Option(help="Threads that decode. Default: one a core, at most 16.")
    ] = _DEFAULT.feeders,
    writers: Annotated[
        int | None, typer.Option(help="Threads that write. Default: as many as feeders.")
    ] = _DEFAULT.writers,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Also draw detections on copies of the pictures.")
    ] = _WRITING.annotate,
    format_: Annotated[
        str, typer.Option("--format", help="Of pictures written: png, jpeg or webp.")
    ] = _WRITING.format,
    quality: Annotated[
        int, typer.Option(help="Of JPEG and WebP, 1 to 100; WebP of 100 is lossless.")
    ] = _WRITING.quality,
    depth: Annotated[int, typer.Option(help="Bits of a channel in PNG, 8 or 16.")] = _WRITING.depth,
    codec: Annotated[
        str | None, typer.Option(help="Video encoder. Default: libx264; in WebM, libvpx-vp9.")
    ] = _WRITING.codec,
    crf: Annotated[
        int | None, typer.Option(help="Video quality on the encoder's own scale; less is better.")
    ] = _WRITING.crf,
    encoder_args: Annotated[
        str, typer.Option(help="Further encoder options: 'preset=slow tune=film pix_fmt=yuv444p'.")
    ] = "",
    on_error: Annotated[
        str, typer.Option(help="A failed frame: keep the original, skip it, or fail its clip.")
    ] = _WRITING.on_error,
    segment: Annotated[
        int, typer.Option(help="Frames of a video encoded apart: the most that a crash costs.")
    ] = _WRITING.segment,
    max_pixels: Annotated[
        int, typer.Option(help="Largest picture that is read; a larger one is a failed item.")
    ] = _DEFAULT.reading.max_pixels,
    hwaccel: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:N]", help="Decode videos on a GPU: cuda, cuda:1. Default: on the CPU."
        ),
    ] = _DEFAULT.reading.hwaccel,
    keep_rotation: Annotated[
        bool,
        typer.Option(
            "--keep-rotation", help="Leave turned videos as stored, and their turn to the player."
        ),
    ] = _DEFAULT.reading.keep_rotation,
    log_json: Annotated[
        Path | None,
        typer.Option(help="Write events as lines of JSON to this file; - is stderr."),
    ] = _OBSERVING.log_json,
    timings: Annotated[
        bool, typer.Option("--timings", help="Write the stages of every item to timings.jsonl.")
    ] = _OBSERVING.timings,
    report: Annotated[
        str | None, typer.Option(metavar="html", help="html: write report.html, the run on a page.")
    ] = _OBSERVING.report,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|:PORT", help="For Prometheus: a text file, or a port of this machine."
        ),
    ] = _OBSERVING.metrics,
    sample_every: Annotated[
        float, typer.Option(help="Seconds from one sample of memory and counts to the next.")
    ] = _OBSERVING.every_s,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew; default: go on where the last run ended.")
    ] = _DEFAULT.restart,
    batch_timeout: Annotated[
        float, typer.Option(help="Seconds without an answer after which a worker is ended.")
    ] = _DEFAULT.batch_timeout_s,
    restarts: Annotated[
        int, typer.Option(help="Workers that may be started again in one run, all together.")
    ] = _DEFAULT.restarts,
) -> int:
    """Run every picture and video below FOLDER through the pool; results.jsonl in input order.

    A picture or frame that cannot be read is one failed item with its reason; the rest goes on,
    and the exit code is 1. After an interruption of any kind the same command goes on where the
    last one ended, to the same bytes.
    """
    options = InferOptions(
        source=folder,
        output=output,
        model=model,
        engine=engine,
        precision=None if precision is None else parse_precision(precision),
        engines=engines,
        devices=devices,
        gpus=gpus,
        workers=parse_workers(workers),
        lanes=lanes,
        cuda_graph=cuda_graph,
        batch=batch,
        memory_bytes=parse_bytes(memory, flag="--memory"),
        feeders=feeders,
        writers=writers,
        reading=ReadingOptions(max_pixels=max_pixels, hwaccel=hwaccel, keep_rotation=keep_rotation),
        writing=WritingOptions(
            format=cast(PictureFormat, format_),
            quality=quality,
            depth=depth,
            codec=codec,
            crf=crf,
            encoder_args=parse_pairs(encoder_args, flag="--encoder-args"),
            on_error=cast(OnError, on_error),
            segment=segment,
            annotate=annotate,
        ),
        observing=ObservingOptions(
            every_s=sample_every,
            log_json=log_json,
            timings=timings,
            metrics=metrics,
            report=cast(Literal["html"] | None, report),
        ),
        restart=restart,
        batch_timeout_s=batch_timeout,
        restarts=restarts,
    )
    from trtfuse.cli.progress import far, last_line, show_report, watching
    from trtfuse.infer import infer as run

    heard: list[Progress] = []

    def hear(progress: Progress) -> None:
        heard[:] = [progress]
        watch(progress)

    try:
        with watching(sys.stderr, silent=log_json == Path("-")) as watch:
            done = run(options, watch=hear, command=_command())
    except KeyboardInterrupt:
        sys.stderr.write(f"trtfuse infer: {far(heard)}the same command goes on from here\n")
        raise
    show_report(done)
    typer.echo(last_line(done))
    return 1 if done.failed else 0


def parse_workers(text: str | None) -> int | Literal["auto"] | None:
    """`--workers`. Raises UsageError."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--workers {text}: needs a whole number above 0, or auto.")
    return int(text)


def _command() -> tuple[str, ...]:
    return tuple(shlex.quote(word) for word in ["trtfuse", *sys.argv[1:]])
