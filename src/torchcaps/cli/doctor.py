"""torchcaps doctor."""

from __future__ import annotations

from torchcaps.cli.console import print_json, print_table


def doctor(json: bool = False) -> int:
    """Say what this machine offers: versions, device, threads, precision, and which routing kernel runs and why.

    Example: torchcaps doctor

    Args:
        json: Print JSON.
    """
    import torch

    from torchcaps import ops
    from torchcaps.training.environment import environment, package_version
    from torchcaps.training.optim import resolve_device, resolve_precision

    device = resolve_device("auto")
    facts = environment() | {"device": str(device), "precision auto": resolve_precision("auto", device)}
    pose, weight = torch.zeros(1, 2, 8, device=device), torch.zeros(2, 2, 16, 8, device=device)
    for op in ops.operators():
        facts[f"kernel of {op}"] = ops.explain(op, pose, weight, None)
    for extra in ("matplotlib", "numba", "triton"):
        facts[extra] = package_version(extra)
    if json:
        print_json(facts)
        return 0
    print_table([("", ""), *((name, str(value)) for name, value in facts.items())])
    return 0
