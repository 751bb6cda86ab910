"""Damaged or edited state of a run: a refusal in one sentence, or the bytes of the whole run."""

import json
import sys
import threading

import numpy as np

from campaign import mutate, runs
from campaign.core import dice
from campaign.formats import npy, zipped
from data.makers import noise
from torchcaps.training import Callback, train
from torchcaps.training.files import load_tensors, save_tensors
from training.makers import contents

TESTS = {
    "one bit": 340,
    "bit flips": 20,
    "truncation": 20,
    "splices": 20,
    "signed": 40,
    "config": 60,
    "environment": 30,
    "metrics": 30,
    "other data": 5,
    "two threads": 5,
}
LAST = "checkpoints/last.safetensors"
PREVIOUS = "checkpoints/previous.safetensors"
MODEL = "model.safetensors"
JSON = {"config": "config.json", "environment": "environment.json", "metrics": "metrics.jsonl"}
SECONDS = 60.0  # of training, evaluation and threads


def prepare():
    """Train the whole run once."""
    runs.history()


def draw(test, random):
    """After which step the run was killed, and which of its files is damaged."""
    return {"step": random.randint(3, 9), "file": random.choice((LAST, LAST, PREVIOUS, MODEL))}


def check(case, folder):
    """Damage the state, resume, and judge."""
    if case["test"] == "two threads":
        two_threads(folder)
        return
    random = dice(case)
    state = damaged(case, runs.history()[0][case.get("step", 6)], folder, random)
    runs.put(folder / "run", state)
    runs.put(
        folder,
        {"bars.npz": make_other_pixels(random) if case["test"] == "other data" else runs.bars()},
    )
    outcome = runs.command(*runs.RESUME)
    if outcome.status != 0:
        runs.refusal(outcome)
        return
    assert "Traceback" not in outcome.err, outcome.err[-300:]
    assert case["test"] != "other data", "other pixels were taken"
    if case["test"] != "signed":  # who can sign can write another state that is as good
        runs.check_finished(folder, metrics=case["test"] != "metrics")


def damaged(case, state, folder, random):
    """The files of a run, one of them edited."""
    test = case["test"]
    name = case.get("file", LAST)
    name = name if name in state else LAST
    if "drop" in case:
        return {key: data for key, data in state.items() if key not in case["drop"]}
    if test == "signed":
        return state | {LAST: signed(state[LAST], case, folder, random)}
    if test in JSON:
        return state | {JSON[test]: edited(state[JSON[test]].decode(), case, random)}
    if "zeros" in case:
        data = state[name]
        return state | {name: data[: len(data) // 2] + bytes(len(data) - len(data) // 2)}
    damage = mutate.BYTES.get(test)
    return state | ({name: damage(state[name], random)} if damage else {})


def signed(data, case, folder, random):
    """A checkpoint whose description is another, under a checksum that fits."""
    path = folder / "edited.safetensors"
    path.write_bytes(data)
    tensors, description = load_tensors(path)
    save_tensors(
        path,
        tensors,
        mutate.changed(description, case["set"])
        if "set" in case
        else mutate.edit(description, random),
    )
    data = path.read_bytes()
    path.unlink()
    return data


def edited(text, case, random):
    """JSON, or lines of it, of which one part is another."""
    if "depth" in case:
        return mutate.nested(case["depth"]).encode()
    lines = text.splitlines() if case["test"] == "metrics" else [text]
    number = random.randrange(len(lines)) if lines else 0
    if "set" in case:
        lines[0] = json.dumps(mutate.changed(json.loads(lines[0]), case["set"]))
    elif not lines or random.random() < 0.3:
        return mutate.BYTES[random.choice(("bit flips", "truncation", "splices", "numbers"))](
            text.encode(), random
        )
    else:
        lines[number] = json.dumps(mutate.edit(json.loads(lines[number]), random))
    return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")


def make_other_pixels(random):
    """As many images and labels of the same sizes, with other pixels."""
    labels = npy(np.arange(60) % 3)
    return zipped(
        {"images.npy": npy(noise(60, 18, 20, seed=random.randrange(1000))), "labels.npy": labels}
    )


def two_threads(folder):
    """Two trainings at once in one process end as each alone."""
    runs.put(folder, {"bars.npz": runs.bars()})
    failures = []

    seeds = {"a": 3, "b": 4, "c": 3, "d": 4}
    barrier = threading.Barrier(len(seeds), timeout=SECONDS)

    class Together(Callback):
        """Begins when all have read the data, whose header CPython 3.11 misreads in threads."""

        def on_start(self, trainer):
            barrier.wait()
            sys.setswitchinterval(1e-6)  # they take turns far more often than they would

    def run(name, seed):
        try:
            options = {"model_options": runs.OPTIONS, **runs.SETTINGS}
            callbacks = [Together()]
            train(
                "capsnet", folder / name, callbacks=callbacks, data="bars.npz", seed=seed, **options
            )
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=run, args=pair) for pair in seeds.items()]
    before = sys.getswitchinterval()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert not failures, failures[0]
    for name, seed in seeds.items():
        assert contents(folder / name) == runs.history(seed)[1], (
            "a training beside another gives other bits"
        )
