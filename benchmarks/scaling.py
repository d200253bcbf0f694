"""What do 2 and 4 GPUs of one host give over one, and what do deaths and slow devices cost?

    python benchmarks/scaling.py WORK --devices 1,2,4
    python benchmarks/scaling.py WORK --devices 1 --instances 2,3  several workers on one GPU
    python benchmarks/scaling.py WORK --devices 1 --kind cpu       everything, small, on CPU workers

Models are exported (PyTorch), built with `trtfuse build` once for all equal GPUs, and run through
the pool with one worker a device: pictures that lie decoded in the ring, then folder to folder with
decoding and encoding. DataParallel and DDP run the same network on the same devices. Outputs of
every number of devices are compared byte by byte. Then a worker is killed under way, and one is
slowed to a third: one of all devices, or of `--instances` workers where there is one device.

What is in WORK already (graphs, engines, pictures) is used again, and what was found is written
after every part. `--parts`, `--models` and `--precisions` leave things out.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import scaling_models as models
import scaling_runs as runs
from gpu_chart import bars
from scaling_models import KINDS, Kind, Model

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.record import to_json
from trtfuse.core.specs import Precision
from trtfuse.gpu.devices import scan

HERE = Path(__file__).parent
QUESTION = (
    "What do several devices of one host give over one, and what do deaths and slow ones cost?"
)
COMPARED = 96  # batches whose outputs are compared between numbers of devices
IMITATED = {"model": "imitated", "precision": f"{runs.IMITATED_S * 1e3:g} ms a batch"}
# What is measured, the most important first.
PARTS = ("decoded", "disturbed", "bound", "folder", "pytorch")


def main() -> None:
    """Measure, print, write the result file after every part."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--devices", default="1,2,4")
    arguments.add_argument("--instances", default="2", help="workers on one device, in turn")
    arguments.add_argument("--kind", choices=list(KINDS), default="gpu")
    arguments.add_argument("--parts", default=",".join(PARTS))
    arguments.add_argument("--models", help="of these names alone")
    arguments.add_argument("--precisions", help="these alone")
    arguments.add_argument("--torch", default=sys.executable, help="Python that has PyTorch")
    arguments.add_argument("--pictures", type=int, default=4096, help="folder to folder")
    arguments.add_argument("--seconds", type=float, default=20.0, help="of a disturbed run")
    arguments.add_argument("--results", type=Path, default=HERE / "results")
    given = arguments.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(600, repeat=True)  # a hang would be silent
    Scaling(given, chosen_kind(given), tuple(map(int, given.devices.split(",")))).run()


def chosen_kind(given: argparse.Namespace) -> Kind:
    """The kind, with the models and precisions that are asked for."""
    kind = KINDS[given.kind]
    names = given.models.split(",") if given.models else [one.name for one in kind.models]
    asked = given.precisions.split(",") if given.precisions else [p.value for p in kind.precisions]
    return replace(
        kind,
        models=tuple(one for one in kind.models if one.name in names),
        precisions=tuple(one for one in kind.precisions if one.value in asked),
    )


class Scaling:
    """One session; `rows` is what has been found so far."""

    def __init__(self, given: argparse.Namespace, kind: Kind, counts: tuple[int, ...]) -> None:
        self.given = given
        self.kind = kind
        self.counts = counts
        self.work: Path = given.work
        self.rows: dict[str, Any] = {
            "builds": {},
            "decoded": [],
            "pytorch": [],
            "folder": [],
            "disturbed": [],
        }

    def run(self) -> None:
        """Every part for every model."""
        for model in self.kind.models:
            models.prepare(self.work, model, self.given.torch)
            self.rows["builds"][model.name] = models.engines(
                self.work, self.kind, model, max(self.counts), self.say
            )
        parts = {
            "decoded": self.all_decoded,
            "disturbed": self.all_disturbed,
            "bound": self.bound_to_its_gpu,
            "folder": self.all_folders,
            "pytorch": self.all_of_pytorch,
        }
        for part in self.given.parts.split(","):
            parts[part]()
        self.write()
        self.table()

    def all_decoded(self) -> None:
        """Every number of devices; then several workers on one."""
        for model, precision in self.engines():
            for count in self.counts:
                self.decoded(model, precision, count)
            if self.kind.name == "gpu":
                for instances in self.instances():
                    self.decoded(model, precision, 1, instances)
        if self.kind.name == "cpu":
            for count in (1, 2, 4):
                rates = to_json(spread(runs.decoded_rates(runs.imitated(count))))
                self._add("decoded", **IMITATED, batch=8, devices=count, items_per_s=rates)

    def all_disturbed(self) -> None:
        """All devices with a worker each, or several workers on the one."""
        most = max(self.counts)
        for model, precision in self.engines():
            for instances in self.instances() if most == 1 else (1,):
                self.disturbed(model, precision, most, instances)
        if self.kind.name == "cpu":
            row = runs.disturbed(runs.imitated(4), self.given.seconds)
            self._add("disturbed", **IMITATED, **row)

    def all_folders(self) -> None:
        """Every number of devices."""
        for model, precision in self.engines():
            for count in self.counts:
                self.folder(model, precision, count)

    def all_of_pytorch(self) -> None:
        """Every number of devices."""
        for model in self.kind.models:
            for count in self.counts:
                self.pytorch(model, count)

    def engines(self) -> Iterator[tuple[Model, Precision]]:
        """What was built."""
        for model in self.kind.models:
            for precision in self.kind.precisions:
                yield model, precision

    def instances(self) -> tuple[int, ...]:
        """How many workers are tried on one device."""
        return tuple(map(int, self.given.instances.split(",")))

    def decoded(self, model: Model, precision: Precision, count: int, instances: int = 1) -> None:
        """Rate with decoded pictures, and whether the bytes are those of one device."""
        chosen = self.kind.first(count, instances)
        options = models.running(self.work, model, precision, **chosen)
        crew = runs.crew(options, model)
        rates, sha256 = runs.decoded_rates(crew), runs.drive(crew, COMPARED).sha256
        self._add(
            "decoded",
            model=model.name,
            precision=precision.value,
            batch=model.batch,
            devices=count,
            **({"instances": instances} if instances > 1 else {}),
            items_per_s=to_json(spread(rates)),
            sha256=sha256,
        )

    def pytorch(self, model: Model, count: int) -> None:
        """DataParallel and DDP."""
        torch, script = self.given.torch, str(HERE / "scaling_torch.py")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
        ways = {
            "DataParallel": [torch, script, "dp", *model.words, "--devices", str(count)],
            "DDP": [torch, *launcher, script, "ddp", *model.words],
        }
        for way, words in ways.items():
            rates = json.loads(models.run_torch(words).splitlines()[-1])
            self._add(
                "pytorch",
                model=model.name,
                way=way,
                devices=count,
                items_per_s=to_json(spread(rates)),
            )

    def folder(self, model: Model, precision: Precision, count: int) -> None:
        """`trtfuse infer`, pictures to files."""
        source = models.folder(
            self.work / f"{model.name}-{self.given.pictures}-pictures", model, self.given.pictures
        )
        chosen = self.kind.first(count)
        options = models.running(self.work, model, precision, source=source, **chosen)
        output = self.work / "output"
        shutil.rmtree(output, ignore_errors=True)
        row = runs.folder_run(options, output)
        self._add(
            "folder",
            model=model.name,
            precision=precision.value,
            devices=count,
            **row,
        )

    def disturbed(self, model: Model, precision: Precision, count: int, instances: int) -> None:
        """A killed and a slowed worker."""
        chosen = self.kind.first(count, instances)
        options = models.running(self.work, model, precision, **chosen)
        row = runs.disturbed(runs.crew(options, model), self.given.seconds)
        self._add("disturbed", model=model.name, precision=precision.value, **row)

    def bound_to_its_gpu(self) -> None:
        """Which GPUs' memory a run with `--gpus N` takes: N the third, or the last."""
        if self.kind.name != "gpu":
            return
        model, number = self.kind.models[0], min(2, len(scan().gpus) - 1)
        options = models.running(self.work, model, self.kind.precisions[0])
        taken = runs.memory_taken(options, model, number)
        self.rows["memory_of_a_run_on"] = {f"cuda:{number}": taken}
        self.say(f"bound: a run on cuda:{number} takes {taken}")

    def say(self, line: str) -> None:
        """Progress."""
        print(line, flush=True)

    def _add(self, part: str, **row: Any) -> None:
        """Another row; what is comparable is compared with the row of the fewest devices."""
        rows: list[dict[str, Any]] = self.rows[part]
        first = next((one for one in rows if _what(one) == _what(row)), row)
        if "items_per_s" in row:
            row["times"] = round(_rate(row) / _rate(first), 3)
        if "sha256" in row:
            row["same_bytes"] = first["sha256"] == row["sha256"]
        rows.append(row)
        shown = {name: value for name, value in row.items() if name not in ("stages", "sha256")}
        self.say(f"{part}: {shown}")
        self.write()

    def write(self) -> None:
        """The result file, and the picture."""
        name = "scaling" if self.kind.name == "gpu" else f"scaling_{self.kind.name}"
        gpus = [f"{gpu.name}, {gpu.features}" for gpu in scan().gpus]
        write_result(
            self.given.results / f"{name}.json",
            question=QUESTION,
            conditions=conditions(
                gpus=gpus,
                load_average=[round(one, 1) for one in os.getloadavg()],
                niceness=os.nice(0),
                models={
                    one.name: f"{one.size} x {one.size}, batch {one.batch}, random weights"
                    for one in self.kind.models
                },
                pool="one worker a device; decoded: pictures in the ring, medians of rounds",
                folder=f"{self.given.pictures} JPEG files to answers and files",
                pytorch="eager, bytes from pinned host memory; FP16 channels_last on GPUs",
                imitated="devices that compute asleep: they cost no cores, and show the pool",
                disturbed=f"runs of about {self.given.seconds:g} s; the last worker is killed by "
                f"SIGKILL at a third, or takes {runs.SLOWER} times as long a batch",
                shared="workers of one device, or on CPUs, share what it has: where one rests, the "
                "others are faster; only devices apart have an expected_s",
            ),
            rows=self.rows,
        )
        (self.given.results / f"{name}.svg").write_text(self.picture(), encoding="utf-8")

    def picture(self) -> str:
        """Bars: a panel a model and precision, a bar a number of devices."""
        middle: dict[tuple[str, int, str], float] = {}
        for row in self.rows["decoded"]:
            panel = f"{row['model']} {row['precision']}", row["batch"]
            path = f"trtfuse x {row['devices']}"
            if "instances" in row:
                path += f", {row['instances']} workers"
            middle[panel[0], panel[1], path] = row["items_per_s"]["median"]
            for other in self.rows["pytorch"]:
                if other["model"] == row["model"]:
                    path = f"PyTorch {other['way']} x {other['devices']}"
                    middle[panel[0], panel[1], path] = other["items_per_s"]["median"]
        panels = list(dict.fromkeys((net, batch) for net, batch, _ in middle))
        return bars(middle, panels, sorted({path for _, _, path in middle}), columns=2)

    def table(self) -> None:
        """Rates and what they are of the first, as text."""
        for part in ("decoded", "folder", "pytorch"):
            print(f"\n{part:9} {'devices':>38} {'items/s':>12} {'times':>7}  bytes")
            for row in self.rows[part]:
                same = {True: "same", False: "DIFFERENT", None: ""}[row.get("same_bytes")]
                print(
                    f"{' '.join(_what(row)):40} {row['devices']:7} {_rate(row):12,.0f} "
                    f"{row['times']:7.2f}  {same}"
                )
        for row in self.rows["disturbed"]:
            calm, killed, slowed = row["calm"], row["killed"], row["slowed"]
            same = killed["same_bytes"] and slowed["same_bytes"]
            print(
                f"\n{row['model']} {row['precision']}, {row['workers']} workers, "
                f"{calm['seconds']:.2f} s, bytes {'same' if same else 'DIFFER'}\n"
                f"  one killed: {killed['longer_s']:+.2f} s; back after {killed['reload_s']} s, of "
                f"which its share is {killed['share_of_the_reload_s']:.2f} s\n"
                f"  one slowed: {slowed['seconds']:.2f} s"
                + (f", expected {slowed['expected_s']:.2f} s" if "expected_s" in slowed else "")
            )
            for one in slowed["devices"]:
                print(
                    f"    {one['device']}: {one['items']} items, busy "
                    f"{one['busy_share_until_its_last_answer']:.1%} until its last answer, "
                    f"{one['done_before_the_end_s']:.3f} s before the end"
                )


def _what(row: dict[str, Any]) -> tuple[str, str]:
    """What is compared over numbers of devices."""
    return row["model"], row.get("way", row.get("precision", ""))


def _rate(row: dict[str, Any]) -> float:
    """Items/s; the median of rounds, where there are several."""
    rate = row["items_per_s"]
    return float(rate["median"] if isinstance(rate, dict) else rate)


if __name__ == "__main__":
    main()
