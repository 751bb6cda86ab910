"""torchcaps export."""

from pathlib import Path
from typing import Annotated

import torchcaps as tc
from torchcaps.cli.console import UsageError, announce, note, show, usage
from torchcaps.cli.parser import Flag, Json, Root, Run


def export(
    run: Run,
    *,
    format: Annotated[str | None, Flag(metavar="onnx|torch|hub|page")] = None,
    output: Path | None = None,
    half: bool = False,
    int8: bool = False,
    opset: int | None = None,
    push: Annotated[str | None, Flag(metavar="OWNER/NAME")] = None,
    private: bool = False,
    root: Root = None,
    json: Json = False,
) -> int:
    """Write a trained model as a file that other programs run, without torchcaps.

    The file takes batches of any size, and has the names of the classes and the preprocessing in
    it. It is checked on test images of the run before it gets its name.

    Example: torchcaps export runs/capsnet-digits --format onnx --output digits.onnx

    Args:
        format: onnx; torch for a program of torch.export (.pt2); hub for a folder in the layout of
            the Hugging Face Hub; or page for a web page that runs the network and explains it. By
            default from the ending of --output, or onnx.
        output: The file, or the folder; by default model.onnx, model.pt2, hub or page/index.html in
            the run folder.
        half: Store weights in float16; they are computed with in float32.
        int8: Store the matrices of capsule layers as whole numbers of 8 bits.
        opset: Version of ONNX's operators; by default the converter's.
        push: With --format hub, repository to upload the folder to, as the user that
            `hf auth login` has logged in.
        private: With --push, make a repository for its owner alone.
    """
    from torchcaps.exporting.formats import EXPORT_FORMATS

    if output is None:
        format = format or "onnx"
        output = tc.reporting.evaluation_folder(run) / EXPORT_FORMATS[format].file
    if push is not None and format != "hub":
        raise UsageError(f"--push: expected --format hub, got {format}")
    with usage(), announce("writing the file, and comparing its answers on test images"):
        exported = tc.export(
            run, output, format=format, half=half, int8=int8, opset=opset, root=root
        )
    rows = [["figure", "value"]]
    for name, figure in exported.to_dict().items():
        rows.append([name, f"{figure:.3g}" if isinstance(figure, float) else str(figure)])
    if push is not None:
        note(f"uploaded to {tc.exporting.push(exported.path, push, private=private)}")
    show(json, exported.to_dict(), rows)
    return 0
