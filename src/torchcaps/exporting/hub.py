"""A folder in the layout of the Hugging Face Hub, and its upload: weights, config.json, model card.

`torchcaps.load` reads the folder, and "hf:OWNER/NAME" once it was uploaded.
"""

from pathlib import Path

import torch
from torch import nn

from torchcaps import words
from torchcaps.errors import ArgumentError, ExportError, check_packages, one_line
from torchcaps.exporting.formats import Subject, answer_of, register_export_format
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting.prediction import load_model
from torchcaps.training import Run, load, save
from torchcaps.training.files import (
    CONFIG_FILE,
    MODEL_FILE,
    load_tensors,
    save_tensors,
    write_json,
)
from torchcaps.training.run import is_run
from torchcaps.types import StrPath, spec_of

CARD_FILE = "README.md"
REPOSITORY = "OWNER/NAME"  # in a card, until its folder is uploaded
# Names of the Hub.
PIPELINES = {False: "image-classification", True: "image-segmentation"}
CARD = """\
---
{{ front }}
---

# {{ model }}

A capsule network of [torchcaps](https://pypi.org/project/torchcaps/) {{ version }}.

```python
import torchcaps as tc

predictions = tc.predict("hf:{{ repository }}", "photo.png")
```

`tc.load("hf:{{ repository }}")` is the network itself. Its outputs are activations of classes
({{ activation }}). The file `config.json` has the names of the classes, and how pictures are prepared.

## Figures

{% if figures %}
- test images: {{ "{:,}".format(run.figures.num_samples) }}
{% for name, figure in figures.items() %}
- {{ name }}: {{ words.format_metric(name, figure) }}
{% endfor %}
{% else %}
The run has no evaluation.
{% endif %}

## Training

- parameters: {{ "{:,}".format(parameters) }}
- weights: {{ weights }}
{% if run %}
- trained on: {{ data }}
- epochs: {{ run.best_epoch }} of {{ run.config.training.epochs }}
- seed: {{ run.config.training.seed }}, one training
- time: {{ words.duration(run.seconds or 0) }}
- machine: {{ run.environment.get("gpu") or run.environment.get("processor") }}
{% endif %}
"""


@register_export_format("hub", "", lambda path: answer_of(load(path)), reads=("half",))
def write_hub(subject: Subject, path: Path) -> None:
    """Write a folder; its config.json is the metadata.

    Args:
        subject: what to write.
        path: of the folder.

    Raises:
        ArgumentError: huggingface_hub is missing, or a model that `torchcaps.save` does not take.
    """
    check_packages("format", "hub", "huggingface_hub")
    network = load_model(subject.origin)
    save(network, path)
    if subject.metadata["weights"] == "float16":
        tensors, description = load_tensors(path / MODEL_FILE)
        for name, tensor in tensors.items():
            if tensor.dtype == torch.float32:
                tensors[name] = tensor.half()
        save_tensors(path / MODEL_FILE, tensors, description)
    write_json(path / CONFIG_FILE, subject.metadata)
    (path / CARD_FILE).write_text(_make_card(subject, network), encoding="utf-8")


def push(folder: StrPath, repository: str, *, private: bool = False) -> str:
    """Upload a folder that was exported as "hub", through huggingface_hub and its log-in.

    Args:
        folder: of the model; its card gets the name of the repository.
        repository: "OWNER/NAME", which is made where it is missing.
        private: whether one that is made is for its owner alone.

    Returns:
        Address of the repository.

    Raises:
        ArgumentError: huggingface_hub is missing, or the folder is none of this format.
        ExportError: the upload failed.

    Example:
        >>> exported = tc.export("runs/capsnet-digits", "digits", format="hub")
        >>> push(exported.path, "me/digits")
    """
    check_packages("repository", "hub", "huggingface_hub")
    from huggingface_hub import HfApi

    card = Path(folder) / CARD_FILE
    if not card.exists():
        raise ArgumentError("folder", f"expected one with a {CARD_FILE}, got {folder}")
    text = card.read_text(encoding="utf-8").replace(REPOSITORY, repository)
    card.write_text(text, encoding="utf-8")
    api = HfApi()
    # Its errors, and those of the network, are of many types.
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:
        raise ExportError(f"{repository}: cannot be uploaded ({one_line(str(error))})") from error
    return str(address)


def _make_card(subject: Subject, network: nn.Module) -> str:
    """The model card, with the figures of the run."""
    from huggingface_hub import EvalResult, ModelCardData
    from jinja2 import Template

    pipeline = PIPELINES[spec_of(network).is_dense]
    origin = subject.origin
    run = None
    data = ""
    figures = {}
    if not isinstance(origin, nn.Module) and is_run(Path(origin)):
        run = Run.open(Path(origin))
        data = Path(run.config.data.name).stem  # where it lies is for nobody else
        figures = words.numbers(run.figures or {})
    results = [EvalResult(pipeline, data, data, *figure) for figure in figures.items()]
    front = ModelCardData(
        eval_results=results or None,
        library_name="torchcaps",
        model_name=subject.metadata["model"],
        pipeline_tag=pipeline,
        tags=["capsule-network"],
    )
    card = Template(CARD, trim_blocks=True, keep_trailing_newline=True)
    return card.render(
        subject.metadata,
        front=front.to_yaml(),
        run=run,
        data=data,
        figures=figures,
        words=words,
        parameters=parameter_count(network),
        repository=REPOSITORY,
    )
